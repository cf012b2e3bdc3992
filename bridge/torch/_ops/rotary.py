"""The public rotary embeddings for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.norm_rotary import NormRotary
from bridge.catalogue.rotary import Rotary
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden

_rotary, _rms_norm_rotary = Rotary(arrays), NormRotary(arrays)


def rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    r"""Rotates pairs of numbers of each row by the angles of two tables.

    y₁ = x₁·cos − x₂·sin, y₂ = x₂·cos + x₁·sin, each product rounded before the sum. x₁ is the first
    half of the row and x₂ the second half; interleaved, x₁ is its even columns and x₂ its odd ones.
    16-bit tensors and float32 are computed in float32, float64 in float64, and rounded once. The
    same input gives the same bits in `bridge.jax`. Differentiable to any order, in reverse and
    forward mode, towards the tables too.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, d even.
      cos, sin: tables of any of these dtypes. All dimensions but the last broadcast to x's from the
        right. The last dimension is d/2; or d, a doubled table whose first half is read; or fewer
        than d/2: then so many pairs of the leading columns are rotated, and the other columns stay
        as they are.
      interleaved: the two numbers of a pair are adjacent.
      cu_seqlens: `[n + 1]` of any integer dtype: n sequences lie one after the other in the first
        dimension of x, `[tokens, ..., d]`, from 0 to its size. The tables are then `[positions, ·]`
        and each token reads the row of its position in its sequence. On a GPU and under transforms
        the values are not checked, and a token without a position gives NaN.

    Returns:
      A tensor of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: d is odd; the tables or cu_seqlens do not fit.

    Example:
      >>> rotary(torch.tensor([[1.0, 2.0]]), torch.zeros(1), torch.ones(1))
      tensor([[-2.,  1.]])

    Source: Su et al., "RoFormer", arXiv:2104.09864.
    """
    if is_overridden(given := (x, cos, sin, cu_seqlens)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("rotary", 3, x=x, cos=cos, sin=sin, cu_seqlens=cu_seqlens)
    return _rotary.run(x, cos, sin, interleaved, cu_seqlens)  # type: ignore[no-any-return]


def rms_norm_rotary(
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    interleaved: bool = False,
) -> Tensor:
    r"""Rotates x·r·(offset + weight) by two tables, with r = 1/√(mean(x²) + eps): QK-norm.

    The norm is that of the whole row, and its result is not rounded before the rotation of
    `rotary`. With x₁ and x₂ as there, mean(x²) is the sum over the pairs of x₁² + x₂², over d. A
    row whose sum of squares overflows gives 0. 16-bit tensors and float32 are computed in float32,
    float64 in float64, and rounded once. A row's bits depend on that row and its angles alone, and
    `bridge.jax` gives the same bits. Differentiable to any order, in reverse and forward mode,
    towards the tables too. The residuals are the arguments and r, one number for each row.

    Args:
      x: `[..., d]`, a head in each row, of dtype float16, bfloat16, float32 or float64, d even.
      weight: `[d]` of any of these dtypes, or None.
      cos, sin: tables as for `rotary`. With fewer than d/2 columns they rotate so many pairs of the
        leading columns; the other columns are normalised and scaled alone. Without `interleaved`,
        columns are then moved before and after the op, in one pass of memory each.
      eps: a positive finite number.
      offset: a finite number that is added to weight: 1.0 in Gemma and Qwen3-Next.
      interleaved: the two numbers of a pair are adjacent.

    Returns:
      A tensor of x's shape in the promoted dtype of all four.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; eps or offset is not a
        number.
      ValueError: d is odd; the weight or the tables do not fit; eps is not positive or not finite;
        an offset that is not finite, or without a weight.

    Example:
      >>> x, weight = torch.tensor([[3.0, 4.0]]), torch.ones(2)
      >>> rms_norm_rotary(x, weight, torch.zeros(1), torch.ones(1), eps=1e-12)
      tensor([[-1.1314,  0.8485]])

    Source: Henry et al., "Query-Key Normalization for Transformers", arXiv:2010.04245; Zhang and
    Sennrich, arXiv:1910.07467; Su et al., arXiv:2104.09864.
    """
    if is_overridden(given := (x, weight, cos, sin)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("rms_norm_rotary", 3, x=x, cos=cos, sin=sin, weight=weight)
    return _rms_norm_rotary.run(x, weight, cos, sin, eps, offset, interleaved)  # type: ignore[no-any-return]
