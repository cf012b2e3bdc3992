"""Checks of arguments that are one number, with the same messages in both frameworks."""

from __future__ import annotations

import math
import operator
from typing import Any

# The range of normal float32 numbers; many computations convert a Python number to float32.
LEAST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127

_REAL_DTYPES = ("float", "bfloat", "int", "uint")


def real_number(function: str, argument: str, value: Any, expected: str = "a number") -> float:
    """Converts a number of Python, NumPy or a framework to float.

    Raises:
      TypeError: if it is no real number, is an array with dimensions, or requires a gradient.
    """
    if type(value) is float:
        return value
    if getattr(value, "is_nested", False):  # a nested tensor of torch has no shape
        raise TypeError(f"{function}: {argument} is nested, expected {expected}")
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{function}: {argument} requires a gradient, which it would not get, expected "
            f"{expected}"
        )
    dtype, shape = getattr(value, "dtype", None), tuple(getattr(value, "shape", ()))
    if shape:
        found = f"shape {list(shape)}"
    elif dtype is not None and not dtype_name(dtype).startswith(_REAL_DTYPES):
        found = f"dtype {dtype_name(dtype)}"
    elif isinstance(value, (bool, complex, str)) or not hasattr(value, "__float__"):
        found = f"type {type(value).__name__}"
    else:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    raise TypeError(f"{function}: {argument} has {found}, expected {expected}")


def number_of_float32(function: str, argument: str, value: Any) -> float:
    """Converts a number to float; infinities and NaN stay.

    Raises:
      TypeError: as `real_number`.
      ValueError: if it is finite, and infinite in float32.
    """
    number = real_number(function, argument, value)
    if LARGEST_FLOAT32 < abs(number) < math.inf:
        raise ValueError(
            f"{function}: {argument} is {number}, expected a number up to {LARGEST_FLOAT32:.1e}"
        )
    return number


def whole_number(function: str, argument: str, value: Any, least: int = 0) -> int:
    """Converts to int.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it is less than `least`.
    """
    expected = f"an integer from {least} on"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"{function}: {argument} has type {type(value).__name__}, expected {expected}"
        )
    try:
        number = operator.index(value)
    except TypeError as error:  # an array with dimensions, or of another dtype
        raise TypeError(f"{function}: {argument} is {value!r}, expected {expected}") from error
    if number < least:
        raise ValueError(f"{function}: {argument} is {number}, expected {expected}")
    return number


def told_apart(value: Any) -> Any:
    """Returns a cache key that also distinguishes values that compare equal, in tuples too.

    Such values are 1, 1.0 and True, or 0.0 and -0.0.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is float and value):
        return kind
    return kind, repr(value)


_PLAIN = frozenset({int, bool, str, type(None)})


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
