"""The public rotary embedding of JAX."""

from __future__ import annotations

import jax
from jax import numpy as jnp

from bridge.catalogue import rotary as declarations
from bridge.catalogue.declaration import shape_of
from bridge.catalogue.rotary import Framework, run_rotary
from bridge.jax._adapter.arguments import refuse_traced
from bridge.jax._adapter.avals import unsplit

ArrayLike = jax.typing.ArrayLike

_JAX = Framework(
    declarations.rotary.jax,
    declarations.rotary_of_pairs.jax,
    lambda y, rest: jnp.concatenate((y, rest.astype(y.dtype)), -1),
)


def rotary(x: ArrayLike, cos: ArrayLike, sin: ArrayLike, *, interleaved: bool = False) -> jax.Array:
    r"""Pairs of numbers of a row, turned by the angles of two tables.

    y₁ = x₁·cos − x₂·sin, y₂ = x₂·cos + x₁·sin, each product rounded before the sum; x₁ is the first
    half of the row and x₂ the second, or, interleaved, its even and its odd columns. 16-bit arrays
    and float32 are computed in float32, float64 in float64, and rounded once; the same input gives
    the same bits in `bridge.torch`. Every transformation of JAX applies, derivatives of any order
    included, towards the tables too.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, d even.
      cos, sin: of any of these dtypes, of shapes that broadcast to `[..., d/2]` from the right, but
        for the last dimension: d/2; or d, a doubled table of which the first half is read; or fewer
        than d/2, where so many pairs of the leading columns are turned and the rest passes.
      interleaved: a pair is side by side.

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
    read = shape_of(cos)[-1:]
    # Types with explicit axes do not say how a leading part of split columns would lie.
    if isinstance(x, jax.Array) and x.ndim and read not in ((x.shape[-1],), (x.shape[-1] // 2,)):
        x = unsplit(x, slice(-1, None))
    return run_rotary(_JAX, x, cos, sin, interleaved)  # type: ignore[no-any-return]
