"""Checks of what may be passed where an array is expected."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bridge.ops.dtypes import FLOATING

_NUMPY_LIKE = (np.ndarray, np.generic, float, int, complex)


def as_array_like(function: str, name: str, value: Any) -> Any:
    """Returns `value` as something that a jitted function takes.

    Raises:
      TypeError: if it is no array, NumPy array or number, or NumPy's and of a dtype that JAX would
        refuse in words of its own.
    """
    if isinstance(value, jax.Array):  # tracers too
        return value
    if hasattr(value, "__jax_array__"):
        return value.__jax_array__()
    if not isinstance(value, _NUMPY_LIKE):
        raise TypeError(f"{function}: {name} has type {type(value).__name__}, expected an array")
    dtype = np.asarray(value).dtype.name
    if dtype not in FLOATING:
        raise TypeError(
            f"{function}: {name} has dtype {dtype}, expected one of {', '.join(FLOATING)}"
        )
    return value
