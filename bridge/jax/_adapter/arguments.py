"""What public functions make of their arguments: checks, and what is compiled for which of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge._private.jax import INLINE
from bridge.ops.dtypes import FLOATING

_NUMPY_LIKE = (np.ndarray, np.generic, float, int, complex)


def as_array_like(
    function: str,
    name: str,
    value: Any,
    dtypes: tuple[str, ...] = FLOATING,
    expected: str = f"one of {', '.join(FLOATING)}",
) -> Any:
    """Returns `value` as something that a jitted function takes; `expected` describes the dtypes.

    Raises:
      TypeError: if it is no array, NumPy array or number, or NumPy's and of a dtype that JAX would
        refuse in words of its own.
    """
    if isinstance(value, jax.Array):  # as tracers are
        return value
    if hasattr(value, "__jax_array__"):
        return value.__jax_array__()
    if not isinstance(value, _NUMPY_LIKE):
        raise TypeError(f"{function}: {name} has type {type(value).__name__}, expected an array")
    dtype = np.asarray(value).dtype
    if dtype.name not in dtypes:
        raise TypeError(f"{function}: {name} has dtype {dtype.name}, expected {expected}")
    if not dtype.isnative:  # which JAX does not tell from one that is, once that has been compiled
        raise TypeError(
            f"{function}: {name} has dtype {dtype.str}, bytes in the order of other machines, "
            f"expected this one's: convert it with astype({dtype.name!r})"
        )
    return value


def as_array_likes(function: str, needed: int, /, **values: Any) -> tuple[Any, ...]:
    """The same of several by name, of which all behind the first `needed` may be None."""
    return tuple(
        [
            None if value is None and place >= needed else as_array_like(function, name, value)
            for place, (name, value) in enumerate(values.items())
        ]
    )


def as_arrays(*values: Any) -> tuple[Any, ...]:
    """Arrays of what `as_array_like` returned; None stays None."""
    return tuple(
        value if value is None or isinstance(value, jax.Array) else jnp.asarray(value)
        for value in values
    )


def as_any_array(function: str, name: str, value: Any) -> jax.Array:
    """An array of any dtype that JAX has, of keys too.

    Raises:
      TypeError: if there is none.
    """
    cause: Exception | None = None
    if not isinstance(value, str):  # which NumPy would take for the name of a dtype
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
    """Raises TypeError for an argument that is known only when the compiled function runs."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{function}: {name} is traced, expected {expected} known when the function is "
            f"compiled: name it in static_argnames of jax.jit, or take it from outside the function"
        )


def as_flag(function: str, name: str, value: Any) -> bool:
    """Returns a bool that came as one, or as a 0-dimensional array of one.

    Raises:
      TypeError: if it is traced, or something else.
    """
    if type(value) is bool:
        return value
    refuse_traced(function, name, value, "True or False")
    if getattr(value, "dtype", None) != np.bool_ or value.shape:
        raise TypeError(f"{function}: {name} is {value!r}, expected True or False")
    return bool(value)


def compiled_for(make: Callable[..., Callable[..., jax.Array]]) -> Callable[..., Any]:
    """From a function of static arguments that makes a function of arrays: the same, compiled.

    A jitted function for each set of static arguments, as static arguments of one jitted function
    would cost a microsecond on every call. The name of the function is in the `op_name` of all that
    it compiles to, derivatives included, which profilers show.
    """

    @functools.lru_cache(maxsize=1024)
    def compiled(*static: Any) -> Callable[..., jax.Array]:
        function = make(*static)
        named = jax.named_scope(f"bridge.{function.__name__}")(function)
        return jax.jit(named, inline=INLINE)

    return compiled
