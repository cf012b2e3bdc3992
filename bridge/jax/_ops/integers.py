"""Seeds and offsets: 64-bit integers, as two 32-bit words, so that they need no x64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.jax._adapter.avals import spec_of
from bridge.ops import Spec
from bridge.ops.integers import check_integer, check_integer_array


def refuse_no_seed(function: str, seed: Any) -> None:
    """Raises TypeError where a seed is needed and is None."""
    if seed is None:
        raise TypeError(
            f"{function}: seed is None, expected an integer or a jax.random key where "
            "training and p > 0"
        )


def as_integer(function: str, argument: str, value: Any) -> Any:
    """A seed or an offset as what a jitted function takes, and `words` then.

    A number becomes a tuple of its words, an argument like any: another number compiles nothing.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it has dimensions, or no place in 64 bits.
    """
    if type(value) is not int:
        if isinstance(value, jax.Array):  # as tracers are
            return value
        if hasattr(value, "__jax_array__"):
            return value.__jax_array__()
        if isinstance(value, np.ndarray):
            spec = Spec(value.shape, value.dtype.name)
            if argument == "seed" and _is_raw_key(spec):
                return value.astype(np.uint32, copy=False)  # whose bytes can be in another order
            check_integer_array(function, argument, spec)
    value = check_integer(function, argument, value)
    return (np.array([value & 0xFFFFFFFF, value >> 32], np.uint32),)


def words(function: str, argument: str, value: Any) -> Any:
    """uint32 `[2]`, the low word first, from what `as_integer` returned; inside a jitted function.

    The key of `jax.random.key(n)`, or of `jax.random.PRNGKey(n)`, is n as two words, the high one
    first. A key of another generator than threefry is asked for two random words.
    """
    if value is None or isinstance(value, tuple):
        return None if value is None else value[0]
    value = jnp.asarray(value)
    spec = spec_of(value)
    if argument == "seed" and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        if value.shape:
            raise ValueError(
                f"{function}: seed has shape {list(value.shape)}, expected one key, not an "
                f"array of keys; jax.vmap takes one for each batch"
            )
        if str(jax.random.key_impl(value)) != "threefry2x32":
            return jax.random.bits(value, (2,), np.uint32)
        return jax.random.key_data(value)[::-1]
    if argument == "seed" and _is_raw_key(spec):
        return value[::-1]
    check_integer_array(function, argument, spec)
    if value.dtype.itemsize == 8:
        low, high = value, value >> 32
    else:
        # The sign fills the high word.
        signed = jnp.issubdtype(value.dtype, jnp.signedinteger)
        low = value.astype(np.int32 if signed else np.uint32)
        high = low >> 31 if signed else jnp.zeros_like(low)
    return jnp.stack([low.astype(np.uint32), high.astype(np.uint32)])


def _is_raw_key(spec: Spec) -> bool:
    return spec == Spec((2,), "uint32")
