"""The public matrix products of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.products import Products
from bridge.jax._adapter import arrays
from bridge.jax._adapter.products import PRIMITIVES

ArrayLike = jax.typing.ArrayLike

_products = Products(arrays, PRIMITIVES)


def matmul(a: ArrayLike, b: ArrayLike, *, bits: str | None = None) -> jax.Array:
    r"""The matrix product of a and b, with the same bits in both frameworks and for any batch.

    c[i, j] = Σₚ a[i, p]·b[p, j]. The contraction is cut into leaves of 256 terms. A leaf is a chain
    of fused multiply-adds in increasing order; leaves are added in the binary tree that is aligned
    at powers of two. So an element of c depends on its row of a and its column of b alone: not on
    other rows, the batch, threads or the instruction set, nor on the device (but see `bits`). The
    same input gives the
    same bits in `bridge.torch`. The arithmetic is float64 if an operand is, else float32; the sum
    is rounded once. Infinities, NaN and subnormal numbers are those of IEEE arithmetic in this
    order.

    Every transformation of JAX applies, and derivatives of any order are products again: da = g·bᵀ
    and db = aᵀ·g. A gradient towards an operand that was broadcast is one sum over the batches as
    well.

    Args:
      a: `[..., m, k]` or `[k]` of dtype float16, bfloat16, float32 or float64.
      b: `[..., k, n]` or `[k]` of any of these dtypes. Batch dimensions broadcast as in
        `numpy.matmul`.
      bits: "portable" for the same bits on every device. "device" for the sums of tensor cores, on
        CUDA for two operands of float16 or two of bfloat16: the bits of a generation of GPUs, which
        still depend on a row and a column alone. None is "device" for these, "portable" for others.

    Returns:
      `[..., m, n]` in the promoted dtype, without the dimension of an operand that has only one.
      With k = 0 it is zeros.

    Raises:
      TypeError: an operand is no array or has another dtype.
      ValueError: shapes that do not fit, an operand without dimensions, another word, "device"
        without tensor cores that take the operands.

    Example:
      >>> matmul(jnp.array([[1.0, 2.0]]), jnp.array([[3.0], [4.0]]))
      Array([[11.]], dtype=float32)
    """
    return _products.matmul(a, b, bits)  # type: ignore[no-any-return]


def linear(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, bits: str | None = None
) -> jax.Array:
    r"""x·weightᵀ + bias, with the sums of `matmul` and one rounding after the bias.

    Args:
      x: `[..., in]` of dtype float16, bfloat16, float32 or float64.
      weight: `[out, in]` of any of these dtypes, as in torch.
      bias: `[out]` of any of these dtypes, or None.
      bits: as for `matmul`, with x and weight as its operands.

    Returns:
      `[..., out]` in the promoted dtype of all arguments.

    Raises:
      TypeError: an argument is no array or has another dtype.
      ValueError: shapes that do not fit, another word.

    Example:
      >>> linear(jnp.ones((1, 2)), jnp.array([[3.0, 4.0]]), jnp.array([0.5]))
      Array([[7.5]], dtype=float32)
    """
    return _products.linear(x, weight, bias, bits)  # type: ignore[no-any-return]
