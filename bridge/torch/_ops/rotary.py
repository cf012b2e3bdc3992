"""The public rotary embedding for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.rotary import Rotary
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden

_rotary = Rotary(arrays)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
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

    Returns:
      A tensor of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: d is odd; the tables do not fit.

    Example:
      >>> rotary(torch.tensor([[1.0, 2.0]]), torch.zeros(1), torch.ones(1))
      tensor([[-2.,  1.]])

    Source: Su et al., "RoFormer", arXiv:2104.09864.
    """
    if is_overridden(given := (x, cos, sin)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("rotary", 3, x=x, cos=cos, sin=sin)
    return _rotary.run(x, cos, sin, interleaved)  # type: ignore[no-any-return]
