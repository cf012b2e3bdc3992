"""Seeds and offsets: 64-bit integers as two 32-bit words, so that they do not need x64."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.jax._adapter.avals import spec_of
from bridge.ops import Spec
from bridge.ops.integers import check_integer, check_integer_array


def refuse_no_seed(function: str, seed: Any) -> None:
    """Raises TypeError if a required seed is None."""
    if seed is None:
        raise TypeError(
            f"{function}: seed is None, expected an integer or a jax.random key where "
            "training and p > 0"
        )


def as_integer(function: str, argument: str, value: Any) -> Any:
    """Converts a seed or an offset to a form for jitted functions, and later for `words`.

    A number becomes a tuple with the array of its words, an ordinary argument: another number
    compiles nothing. A raw key of another generator than threefry becomes a typed key here, because
    a compiled function would keep the default generator of its first call.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it has dimensions, or does not fit into 64 bits.
    """
    if type(value) is not int:
        if not isinstance(value, jax.Array) and hasattr(value, "__jax_array__"):
            value = value.__jax_array__()
        if isinstance(value, jax.Array):  # tracers are instances too
            return _with_generator(value) if argument == "seed" else value
        if isinstance(value, np.ndarray):
            spec = Spec(value.shape, value.dtype.name)
            if argument == "seed" and _is_raw_key(spec):
                # Its bytes may be in non-native order.
                return _with_generator(value.astype(np.uint32, copy=False))
            _check_array(function, argument, spec)
    value = check_integer(function, argument, value)
    return (np.array([value & 0xFFFFFFFF, value >> 32], np.uint32),)


def words(function: str, argument: str, value: Any, *, is_alone: bool = True) -> Any:
    """Returns uint32 `[2]`, low word first, from a result of `as_integer`, in a jitted function.

    The key of `jax.random.key(n)`, or of `jax.random.PRNGKey(n)`, is n as two words, the high word
    first. A key of another generator than threefry yields two random words. Under
    jax_debug_key_reuse a key counts as used only if it `is_alone`: with an offset, one key has many
    uses.
    """
    if value is None or isinstance(value, tuple):
        return None if value is None else value[0]
    value = jnp.asarray(value)
    spec = spec_of(value)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        if argument != "seed":
            raise TypeError(
                f"{function}: {argument} is a key of jax.random, expected an integer; only an "
                "operand with the name seed takes keys"
            )
        if value.shape:
            raise ValueError(
                f"{function}: seed has shape {list(value.shape)}, expected one key, not an "
                f"array of keys; jax.vmap takes one for each batch"
            )
        if str(jax.random.key_impl(value)) != "threefry2x32":
            key = value if is_alone else jax.random.clone(value)
            return jax.random.bits(key, (2,), np.uint32)
        data = jax.random.key_data(value)[::-1]
        if is_alone and jax.config.jax_debug_key_reuse:  # type: ignore[attr-defined]
            # Reading the data of a key does not count as a use; a split whose result is read does.
            none = jax.random.key_data(jax.random.split(value, 0))
            data = jnp.concatenate([data, none.reshape(0)])
        return data
    if argument == "seed" and _is_raw_key(spec) and spec.shape == (2,):
        return value[::-1]
    _check_array(function, argument, spec)
    if value.dtype.itemsize == 8:
        low, high = value, value >> 32
    else:
        # Extend the sign into the high word.
        signed = jnp.issubdtype(value.dtype, jnp.signedinteger)
        low = value.astype(np.int32 if signed else np.uint32)
        high = low >> 31 if signed else jnp.zeros_like(low)
    return jnp.stack([low.astype(np.uint32), high.astype(np.uint32)])


def _check_array(function: str, argument: str, spec: Spec) -> None:
    if argument == "seed" and spec.shape and spec.dtype == "uint32":
        raise ValueError(
            f"{function}: seed has shape {list(spec.shape)}, expected a 0-dimensional array, or a "
            f"key of jax.random (a raw one of the generator that jax_default_prng_impl names)"
        )
    check_integer_array(function, argument, spec)


def _with_generator(seed: Any) -> Any:
    """Returns the seed; a raw key of the default generator becomes typed unless it is threefry."""
    if _is_raw_key(seed) and seed.shape != (2,):
        with contextlib.suppress(TypeError):  # keys of the default generator have another shape
            return jax.random.wrap_key_data(seed)
    return seed


def _is_raw_key(seed: Any) -> bool:
    return len(seed.shape) == 1 and bool(seed.dtype == "uint32")
