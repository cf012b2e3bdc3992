"""The public rotary embedding of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.rotary import Rotary
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import refuse_traced

ArrayLike = jax.typing.ArrayLike

_rotary = Rotary(arrays)


def rotary(x: ArrayLike, cos: ArrayLike, sin: ArrayLike, *, interleaved: bool = False) -> jax.Array:
    r"""Rotates pairs of numbers in each row by the angles of two tables.

    y₁ = x₁·cos − x₂·sin, y₂ = x₂·cos + x₁·sin; each product is rounded before the sum. x₁ is the
    first half of the row and x₂ the second; if interleaved, they are the even and the odd columns.
    16-bit arrays and float32 are computed in float32, float64 in float64, and rounded once; the
    same input gives the same bits in `bridge.torch`. Every transformation of JAX applies,
    derivatives of any order included, also with respect to the tables.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, d even.
      cos, sin: tables of any of these dtypes, whose leading dimensions broadcast to those of x from
        the right. Their last dimension is d/2, or d for a doubled table, whose first half is read,
        or less than d/2 to rotate that many pairs of the leading columns and pass on the rest.
      interleaved: True if the numbers of a pair are side by side.

    Returns:
      An array of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is no array or of another dtype.
      ValueError: d is odd; tables that do not fit.

    Example:
      >>> rotary(jnp.array([[1.0, 2.0]]), jnp.zeros(1), jnp.ones(1))
      Array([[-2.,  1.]], dtype=float32)

    Source: Su et al., "RoFormer", arXiv:2104.09864.
    """
    refuse_traced("rotary", "interleaved", interleaved, "True or False")
    return _rotary.run(x, cos, sin, interleaved)  # type: ignore[no-any-return]
