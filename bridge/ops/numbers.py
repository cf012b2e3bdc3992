"""Arguments that are one number: a scale, a probability."""

from __future__ import annotations

from typing import Any


def real_number(function: str, argument: str, value: Any, expected: str) -> float:
    """Returns a number as a float. One in an array without dimensions counts as one.

    Raises:
      TypeError: it is no real number, or several of them.
    """
    kind = type(value).__name__
    if isinstance(value, (bool, complex, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{function}: {argument} has type {kind}, expected {expected}")
    ndim = getattr(value, "ndim", 0)
    if ndim:
        dimensions = "dimension" if ndim == 1 else "dimensions"
        raise TypeError(
            f"{function}: {argument} has type {kind} and {ndim} {dimensions}, expected {expected}"
        )
    return float(value)
