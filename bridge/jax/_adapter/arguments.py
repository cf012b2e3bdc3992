"""Argument checks of the public functions, and a cache of compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge._private.jax import INLINE
from bridge.lang.dtypes import FLOATING

_NUMPY_LIKE = (np.ndarray, np.generic, float, int, complex)


def as_array_like(
    function: str,
    name: str,
    value: Any,
    dtypes: tuple[str, ...] = FLOATING,
    expected: str = f"one of {', '.join(FLOATING)}",
) -> Any:
    """Returns `value` in a form that a jitted function accepts; `expected` describes the dtypes.

    Raises:
      TypeError: if it is no array, NumPy array or number, or if it is NumPy's and has a dtype for
        which JAX's own error would not name the argument.
    """
    if isinstance(value, jax.Array):  # tracers are instances too
        return value
    if hasattr(value, "__jax_array__"):
        return value.__jax_array__()
    if not isinstance(value, _NUMPY_LIKE):
        raise TypeError(f"{function}: {name} has type {type(value).__name__}, expected an array")
    dtype = np.asarray(value).dtype
    if dtype.name not in dtypes:
        raise TypeError(f"{function}: {name} has dtype {dtype.name}, expected {expected}")
    if not dtype.isnative:  # jit's cache does not distinguish byte orders
        raise TypeError(
            f"{function}: {name} has dtype {dtype.str}, expected the byte order of this "
            f"machine: convert it with astype({dtype.name!r})"
        )
    return value


def as_array_likes(function: str, needed: int, /, **values: Any) -> tuple[Any, ...]:
    """Applies `as_array_like` to named values; all after the first `needed` may be None."""
    return tuple(
        [
            None if value is None and place >= needed else as_array_like(function, name, value)
            for place, (name, value) in enumerate(values.items())
        ]
    )


def as_arrays(*values: Any) -> tuple[Any, ...]:
    """Returns arrays for results of `as_array_like`; None stays None."""
    return tuple(
        value if value is None or isinstance(value, jax.Array) else jnp.asarray(value)
        for value in values
    )


def refuse_narrowed(function: str, name: str, value: Any) -> None:
    """Raises ValueError for NumPy integers that JAX would change while jax_enable_x64 is off."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, jax.Array) or dtype not in (np.int64, np.uint64) or value.size == 0:
        return
    kept = jax.dtypes.canonicalize_dtype(dtype)
    if kept == dtype:
        return
    limits = jnp.iinfo(kept)
    least, largest = int(value.min()), int(value.max())
    if least < limits.min or largest > limits.max:
        raise ValueError(
            f"{function}: {name} has {least if least < limits.min else largest}, expected integers "
            f"from {limits.min} to {limits.max}: while jax_enable_x64 is off, JAX keeps 32 bits"
        )


def as_any_array(function: str, name: str, value: Any) -> jax.Array:
    """Returns an array of any dtype that JAX has, including PRNG keys.

    Raises:
      TypeError: if `value` cannot become one.
    """
    cause: Exception | None = None
    if not isinstance(value, str):  # NumPy would read a string as the name of a dtype
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError) as error:
            cause = error
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        found = f"type {type(value).__name__}"
    else:
        found = f"dtype {dtype.name if getattr(dtype, 'isnative', True) else dtype.str}"
    raise TypeError(
        f"{function}: {name} has {found}, expected an array of a dtype that JAX has"
    ) from cause


def refuse_traced(function: str, name: str, value: Any, expected: str = "a number") -> None:
    """Raises TypeError for a traced argument, which must be known at compile time."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{function}: {name} is traced, expected {expected} known when the function is "
            f"compiled: name it in static_argnames of jax.jit, or take it from outside the function"
        )


def as_flag(function: str, name: str, value: Any) -> bool:
    """Returns a bool, given as a bool or as a 0-dimensional bool array.

    Raises:
      TypeError: if it is traced, or anything else.
    """
    if type(value) is bool:
        return value
    refuse_traced(function, name, value, "True or False")
    if getattr(value, "dtype", None) != np.bool_ or value.shape:
        raise TypeError(f"{function}: {name} is {value!r}, expected True or False")
    return bool(value)


def axis_size(function: str, axis_name: Any) -> int:
    """Returns the number of devices on a mesh axis, inside `shard_map`; 1 for None.

    Raises:
      ValueError: there is no such axis here.
    """
    if axis_name is None:
        return 1
    # An axis of jax.vmap has a size too, but no devices that could exchange values.
    mesh_axes = jax.sharding.get_abstract_mesh().manual_axes
    if not isinstance(axis_name, Hashable) or axis_name not in mesh_axes:
        raise ValueError(
            f"{function}: axis_name is {axis_name!r}, expected the name of a mesh axis of the "
            "jax.shard_map around the call"
        )
    return int(jax.lax.axis_size(axis_name))


def compiled_for(make: Callable[..., Callable[..., jax.Array]]) -> Callable[..., Any]:
    """Compiles the array function that `make` returns, once for each set of static arguments.

    Static arguments of one jitted function would cost a microsecond on every call. The name of the
    array function appears in the `op_name` of all its HLO instructions, derivatives included, and
    profilers show it.
    """

    @functools.lru_cache(maxsize=1024)
    def compiled(*static: Any) -> Callable[..., jax.Array]:
        function = make(*static)
        named = jax.named_scope(f"bridge.{function.__name__}")(function)
        return jax.jit(named, inline=INLINE)

    return compiled
