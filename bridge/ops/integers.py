"""Checks of seeds and offsets, 64-bit integers, with the same messages in both frameworks."""

from __future__ import annotations

import operator
from typing import Any

from bridge.ops.definition import Spec


def check_integer(function: str, argument: str, value: Any) -> int:
    """Returns a seed or an offset, given as a number, as an unsigned 64-bit integer.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it does not fit 64 bits, signed or unsigned.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        value = operator.index(value)
    except TypeError:
        shape = list(getattr(value, "shape", ()))
        array = f", dtype {value.dtype} and shape {shape}" if hasattr(value, "dtype") else ""
        raise TypeError(
            f"{function}: {argument} has type {type(value).__name__}{array}, expected an integer"
        ) from None
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(
            f"{function}: {argument} is {value}, expected an integer from -2**63 to 2**64 - 1"
        )
    return value & (1 << 64) - 1


def check_integer_array(function: str, argument: str, spec: Spec) -> None:
    """Checks a seed or an offset given as an array.

    Raises:
      TypeError: if its dtype is not an integer dtype.
      ValueError: if it is not 0-dimensional.
    """
    if spec.dtype.removeprefix("u") not in ("int8", "int16", "int32", "int64"):
        raise TypeError(f"{function}: {argument} has dtype {spec.dtype}, expected an integer dtype")
    if spec.shape:
        raise ValueError(
            f"{function}: {argument} has shape {list(spec.shape)}, expected a 0-dimensional array"
        )
