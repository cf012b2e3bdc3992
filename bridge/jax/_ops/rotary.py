"""The public rotary embeddings of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.norm_rotary import NormRotary
from bridge.catalogue.rotary import Rotary
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import refuse_traced

ArrayLike = jax.typing.ArrayLike

_rotary, _rms_norm_rotary = Rotary(arrays), NormRotary(arrays)


def rotary(
    x: ArrayLike,
    cos: ArrayLike,
    sin: ArrayLike,
    *,
    interleaved: bool = False,
    cu_seqlens: ArrayLike | None = None,
) -> jax.Array:
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
      cu_seqlens: `[n + 1]` of any integer dtype: n sequences lie one after the other in the first
        dimension of x, `[tokens, ..., d]`, from 0 to its size. The tables are then `[positions, ·]`
        and each token reads the row of its position in its sequence. On a GPU and under transforms
        the values are not checked, and a token without a position gives NaN.

    Returns:
      An array of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is no array or of another dtype.
      ValueError: d is odd; tables or cu_seqlens that do not fit.

    Example:
      >>> rotary(jnp.array([[1.0, 2.0]]), jnp.zeros(1), jnp.ones(1))
      Array([[-2.,  1.]], dtype=float32)

    Source: Su et al., "RoFormer", arXiv:2104.09864.
    """
    refuse_traced("rotary", "interleaved", interleaved, "True or False")
    return _rotary.run(x, cos, sin, interleaved, cu_seqlens)  # type: ignore[no-any-return]


def rms_norm_rotary(
    x: ArrayLike,
    weight: ArrayLike | None,
    cos: ArrayLike,
    sin: ArrayLike,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    interleaved: bool = False,
) -> jax.Array:
    r"""Rotates x·r·(offset + weight) by two tables, with r = 1/√(mean(x²) + eps): QK-norm.

    The norm is that of the whole row, and is not rounded before the rotation of `rotary`. With x₁
    and x₂ as there, mean(x²) is the sum over the pairs of x₁² + x₂², over d. A row whose sum of
    squares overflows gives 0. 16-bit arrays and float32 are computed in float32, float64 in
    float64, and rounded once. The bits of a row depend on that row and its angles alone, and are
    the same in `bridge.torch`. Every transformation of JAX applies, derivatives of any order
    included, also with respect to the tables. The backward pass saves the arguments and r, one
    number per row.

    Args:
      x: `[..., d]`, one head per row, of dtype float16, bfloat16, float32 or float64, d even.
      weight: `[d]` of any of these dtypes, or None.
      cos, sin: tables as for `rotary`. With fewer than d/2 columns they rotate that many pairs of
        the leading columns; the other columns are only normalised and scaled. Unless interleaved,
        columns are then moved before and after the op, in one pass of memory each.
      eps: a positive finite number, known at compile time.
      offset: a finite number, known at compile time, added to weight; Gemma and Qwen3-Next use 1.0.
      interleaved: True if the numbers of a pair are side by side.

    Returns:
      An array of x's shape in the promoted dtype of all four.

    Raises:
      TypeError: an argument is no array or has another dtype; eps or offset is traced or no number.
      ValueError: d is odd; a weight or tables that do not fit; eps is not positive or not finite;
        an offset that is not finite or has no weight.

    Example:
      >>> x, weight = jnp.array([[3.0, 4.0]]), jnp.ones(2)
      >>> rms_norm_rotary(x, weight, jnp.zeros(1), jnp.ones(1), eps=1e-12)
      Array([[-1.1313709 ,  0.84852815]], dtype=float32)

    Source: Henry et al., "Query-Key Normalization for Transformers", arXiv:2010.04245; Zhang and
    Sennrich, arXiv:1910.07467; Su et al., arXiv:2104.09864.
    """
    refuse_traced("rms_norm_rotary", "interleaved", interleaved, "True or False")
    x, cos, sin, weight = arrays.checked("rms_norm_rotary", 3, x=x, cos=cos, sin=sin, weight=weight)
    return _rms_norm_rotary.run(x, weight, cos, sin, eps, offset, interleaved)  # type: ignore[no-any-return]
