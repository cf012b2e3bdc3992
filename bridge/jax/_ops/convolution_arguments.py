"""The arguments of JAX's convolutions, checked and in one form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.catalogue.convolutions import one_for_each
from bridge.catalogue.products import check_bits
from bridge.jax._adapter.arguments import as_any_array
from bridge.jax._adapter.convolutions import PRIMITIVES
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.convolution import in_order

_Dims = tuple[int, ...]


def as_operands(
    function: str, lhs: Any, rhs: Any, preferred: Any, bits: Any
) -> tuple[jax.Array, jax.Array, str]:
    """Returns both arrays and the dtype of the result.

    Raises:
      TypeError, ValueError: arrays or dtypes that a convolution does not take.
    """
    x, w = (as_any_array(function, *each) for each in (("lhs", lhs), ("rhs", rhs)))
    for name, array in (("lhs", x), ("rhs", w)):
        if array.dtype.name not in FLOATING:
            raise TypeError(
                f"{function}: {name} has dtype {array.dtype.name}, expected one of "
                f"{', '.join(FLOATING)}"
            )
    dtype = promote(x.dtype.name, w.dtype.name)
    if preferred is not None:
        dtype = jnp.dtype(preferred).name
        if dtype not in FLOATING:
            raise TypeError(
                f"{function}: preferred_element_type is {dtype}, expected one of "
                f"{', '.join(FLOATING)}"
            )
    pair = {"lhs": (x, x.dtype.name), "rhs": (w, w.dtype.name)}
    check_bits(function, PRIMITIVES, bits, dtype, **pair)
    if not 3 <= x.ndim <= 5 or w.ndim != x.ndim:
        raise ValueError(
            f"{function}: lhs has shape {list(x.shape)} and rhs {list(w.shape)}, expected 3 to 5 "
            "dimensions, the same number in both"
        )
    return x, w, dtype


def orders_of(
    function: str, lhs: jax.Array, rhs: jax.Array, numbers: Any
) -> tuple[_Dims, _Dims, _Dims]:
    """Returns the orders of lhs, rhs and the result, as of x, w and y.

    Raises:
      ValueError: other dimension numbers than JAX takes.
    """
    try:
        found = jax.lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)
    except (TypeError, ValueError) as cause:
        raise ValueError(
            f"{function}: dimension_numbers is {numbers!r}, expected three strings such as "
            f"'NHWC', 'HWIO' and 'NHWC', or None: {cause}"
        ) from cause
    x, w, y = (tuple(map(int, order)) for order in found)
    return x, w, y


def dilations_of(function: str, name: str, value: Any, dims: int) -> _Dims:
    """Returns a dilation for each dimension of space; 1 for None."""
    ones = (1,) * dims
    return one_for_each(function, name, ones if value is None else value, dims, 1, all_given=True)


def as_pairs(function: str, padding: Any, dims: int) -> list[tuple[int, int]]:
    """Returns the pairs of a padding.

    Raises:
      ValueError: others than a pair of integers for each dimension of space.
    """
    try:
        found = [(int(low.__index__()), int(high.__index__())) for low, high in padding]
    except (TypeError, ValueError, AttributeError):
        found = []
    if len(found) != dims:
        raise ValueError(
            f"{function}: padding is {padding!r}, expected 'SAME', 'VALID' or {dims} pairs of "
            "integers (low, high)"
        )
    return found


def pads_of(
    function: str,
    padding: str,
    lhs: jax.Array,
    rhs: jax.Array,
    orders: Sequence[_Dims],
    strides: _Dims,
    dilation: _Dims,
) -> Any:
    """Returns the pairs of a padding that a word names.

    Raises:
      ValueError: another word.
    """
    if padding.upper() not in ("SAME", "SAME_LOWER", "VALID"):
        raise ValueError(
            f"{function}: padding is {padding!r}, expected 'SAME', 'SAME_LOWER', 'VALID' or pairs "
            "of integers (low, high)"
        )
    space = in_order(lhs.shape, orders[0])[2:]
    kernel = in_order(rhs.shape, orders[1])[2:]
    spans = [d * (k - 1) + 1 if k else 0 for d, k in zip(dilation, kernel, strict=True)]
    return jax.lax.padtype_to_pads(space, spans, strides, padding)


def pads_around(span: int, stride: int, is_same: bool) -> tuple[int, int]:
    """Returns the padding of a dilated lhs for "SAME" or "VALID" in the other convolution."""
    both = span + stride - 2 + (0 if is_same else max(span - stride, 0))
    low = span - 1 if stride > span - 1 or not is_same else math.ceil(both / 2)
    return low, both - low
