"""The public dyt and poly_norm for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.dyt import Dyt, PolyNorm
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden

_dyt, _poly_norm = Dyt(arrays), PolyNorm(arrays)


def dyt(
    x: Tensor, alpha: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    r"""tanh(alpha·x)·weight + bias, with one number alpha for all elements, in one pass.

    16-bit tensors and float32 are computed in float32, float64 in float64, and rounded once. A
    row's bits depend on that row alone, and `bridge.jax` gives the same bits. Differentiable to any
    order, in reverse and forward mode; the arguments are the only residuals, and one kernel
    computes all gradients. That of alpha adds the rows first, and then the columns.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      alpha: one number, `[]` or `[1]`, of any of these dtypes.
      weight, bias: `[d]`, of any of these dtypes.

    Returns:
      A tensor of x's shape in the promoted dtype of all four.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: x is 0-dimensional; a shape that does not fit.

    Example:
      >>> dyt(torch.tensor([[-8.0, 0.0, 8.0]]), torch.tensor(0.5), torch.full((3,), 2.0))
      tensor([[-1.9987,  0.0000,  1.9987]])

    Source: Zhu et al., "Transformers without Normalization", arXiv:2503.10622.
    """
    if is_overridden(given := (x, alpha, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("dyt", 2, x=x, alpha=alpha, weight=weight, bias=bias)
    return _dyt.run(x, alpha, weight, bias)  # type: ignore[no-any-return]


def poly_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-6
) -> Tensor:
    r"""weight₀·norm(x³) + weight₁·norm(x²) + weight₂·norm(x) + bias, in one pass.

    norm(u) is u/√(mean(u²) + eps) over the last dimension. 16-bit tensors and float32 are computed
    in float32, float64 in float64, and rounded once. A row's bits depend on that row alone, and
    `bridge.jax` gives the same bits. A norm whose sum of squares overflows is 0, for x³ from about
    |x| = 2.6·10⁶ in float32, and NaN where the power itself overflows. Differentiable to any order,
    in reverse and forward mode. The residuals are the arguments and three numbers for each row.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      weight: three numbers, `[3]`, of any of these dtypes: for x³, x² and x.
      bias: one number, `[]` or `[1]`, of any of these dtypes.
      eps: a positive finite number.

    Returns:
      A tensor of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; eps is not a number.
      ValueError: x is 0-dimensional; a shape that does not fit; eps is not positive or not finite.

    Example:
      >>> poly_norm(torch.tensor([[1.0, -1.0]]), torch.tensor([0.5, 0.25, 1.0]), eps=1e-12)
      tensor([[ 1.7500, -1.2500]])

    Source: Zhuo et al., "Polynomial Composition Activations", arXiv:2411.03884.
    """
    if is_overridden(given := (x, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("poly_norm", 2, x=x, weight=weight, bias=bias)
    return _poly_norm.run(x, weight, bias, eps)  # type: ignore[no-any-return]
