"""JAX's general product with the sums of `matmul`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.catalogue.products import check_bits
from bridge.jax._adapter.arguments import as_any_array
from bridge.jax._adapter.products import PRIMITIVES
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.product import ProductParams

ArrayLike = jax.typing.ArrayLike
_Dims = tuple[int, ...]


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    bits: str | None = None,
) -> jax.Array:
    """`jax.lax.dot_general` with the sums of `matmul`.

    It takes the place of JAX's function in layers and functions that accept one:
    `flax.nnx.Linear(..., dot_general=bridge.jax.dot_general)`, Linen's `Dense` and `DenseGeneral`,
    `jnp.einsum(..., _dot_general=...)`. Several contracted dimensions are one, in the order in
    which `dimension_numbers` lists them.

    Args:
      lhs, rhs: arrays of dtype float16, bfloat16, float32 or float64. Arrays of integers and bools
        go to JAX's own function, whose result no order changes.
      dimension_numbers: `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`.
      precision: without effect; the arithmetic is that of `matmul`.
      preferred_element_type: the floating dtype of the result. The default is the promoted dtype.
      out_sharding: None.
      bits: as for `matmul`; `functools.partial(dot_general, bits="portable")` is for layers.

    Returns:
      `[*batch, *lhs_free, *rhs_free]`.

    Raises:
      TypeError: an operand is no array, or has another dtype.
      ValueError: dimensions that do not fit, an out_sharding, another word.

    Example:
      >>> x = jnp.ones((2, 3))
      >>> dot_general(x, x, (((1,), (1,)), ((), ()))).shape
      (2, 2)
    """
    a, b = (as_any_array("dot_general", *each) for each in (("lhs", lhs), ("rhs", rhs)))
    (a_sum, b_sum), (a_batch, b_batch) = _dimensions(dimension_numbers, a.ndim, b.ndim)
    if all(x.dtype.kind in "iub" for x in (a, b)):
        return jax.lax.dot_general(
            a, b, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding
        )
    if out_sharding is not None:
        raise ValueError("dot_general: out_sharding is not None, which has no effect here")
    for name, x in (("lhs", a), ("rhs", b)):
        if x.dtype.name not in FLOATING:
            raise TypeError(
                f"dot_general: {name} has dtype {x.dtype.name}, expected one of "
                f"{', '.join(FLOATING)}"
            )
    dtype = promote(a.dtype.name, b.dtype.name)
    if preferred_element_type is not None:
        dtype = jnp.dtype(preferred_element_type).name
        if dtype not in FLOATING:
            raise TypeError(
                f"dot_general: preferred_element_type is {dtype}, expected one of "
                f"{', '.join(FLOATING)}"
            )
    operands = {"lhs": (a, a.dtype.name), "rhs": (b, b.dtype.name)}
    check_bits("dot_general", PRIMITIVES, bits, dtype, **operands)
    for one, two in ((a_sum, b_sum), (a_batch, b_batch)):
        if [a.shape[d] for d in one] != [b.shape[d] for d in two]:
            raise ValueError(
                f"dot_general: lhs has shape {list(a.shape)} and rhs {list(b.shape)}, which do not "
                f"fit the dimension numbers {dimension_numbers}"
            )
    left, transposed_a, a_free = _matrix(a, a_batch, a_sum, sums_first=False)
    right, transposed_b, b_free = _matrix(b, b_batch, b_sum, sums_first=True)
    params = ProductParams(dtype, transposed_a, transposed_b, bits=bits)
    batch = tuple(a.shape[d] for d in a_batch)
    return jnp.reshape(PRIMITIVES.product(left, right, None, params), (*batch, *a_free, *b_free))


def _dimensions(numbers: Any, a: int, b: int) -> tuple[tuple[_Dims, _Dims], tuple[_Dims, _Dims]]:
    try:
        (a_sum, b_sum), (a_batch, b_batch) = numbers
        found = [tuple(int(d) for d in dims) for dims in (a_sum, b_sum, a_batch, b_batch)]
    except (TypeError, ValueError):
        raise TypeError(
            f"dot_general: dimension_numbers is {numbers!r}, expected ((lhs_contracting, "
            "rhs_contracting), (lhs_batch, rhs_batch))"
        ) from None
    own = [
        tuple(d + n if d < 0 else d for d in f) for f, n in zip(found, (a, b, a, b), strict=True)
    ]
    fits = len(own[0]) == len(own[1]) and len(own[2]) == len(own[3])
    for sums, batches, ndim in ((own[0], own[2], a), (own[1], own[3], b)):
        dims = (*sums, *batches)
        fits = fits and len(set(dims)) == len(dims) and all(0 <= d < ndim for d in dims)
    if not fits:
        raise ValueError(
            f"dot_general: dimension_numbers is {numbers!r}, which does not fit operands of {a} "
            f"and {b} dimensions"
        )
    return (own[0], own[1]), (own[2], own[3])


def _matrix(
    x: jax.Array, batch: Sequence[int], sums: Sequence[int], sums_first: bool
) -> tuple[jax.Array, bool, _Dims]:
    """Arranges an operand as `[*batch, free, sums]`, or `[*batch, sums, free]` if it lies so.

    Returns:
      The matrix, whether its last two dimensions are in the other order than `sums_first` says,
      and the shape of its free dimensions.
    """
    free = [d for d in range(x.ndim) if d not in batch and d not in sums]
    lies_sums_first = [*batch, *sums, *free] == list(range(x.ndim))
    lies_free_first = [*batch, *free, *sums] == list(range(x.ndim))
    is_sums_first = lies_sums_first if lies_sums_first or lies_free_first else sums_first
    order = [*batch, *sums, *free] if is_sums_first else [*batch, *free, *sums]
    shape = tuple(x.shape[d] for d in free)
    inner = math.prod(x.shape[d] for d in sums), math.prod(shape)
    last = inner if is_sums_first else inner[::-1]
    moved = jnp.reshape(jnp.transpose(x, order), (*(x.shape[d] for d in batch), *last))
    return moved, is_sums_first != sums_first, shape
