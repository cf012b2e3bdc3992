"""Functions of arrays for compositions that both frameworks share.

bridge/torch/_adapter/arrays.py has the same for PyTorch; `bridge.ops.arrays` describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.jax._adapter.arguments import as_array_likes, as_arrays, refuse_traced
from bridge.jax._adapter.avals import spec_of
from bridge.jax._adapter.declared import DeclaredFunction

__all__ = ["cast", "checked", "concatenated", "entry", "known", "last_columns", "spec_of", "zeros"]


def entry(op: Any, name: str = "") -> DeclaredFunction:
    return DeclaredFunction(op, name) if name else op.entry("jax")  # type: ignore[no-any-return]


def known(name: str, expected: str, /, **values: Any) -> None:
    for argument, value in values.items():
        refuse_traced(name, argument, value, expected)


def checked(name: str, required: int, /, **arrays: Any) -> tuple[Any, ...]:
    return as_arrays(*as_array_likes(name, required, **arrays))


def cast(x: jax.Array, dtype: str) -> jax.Array:
    return x.astype(dtype)


def concatenated(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.concatenate((first, second.astype(first.dtype)), -1)


def zeros(like: jax.Array, shape: Sequence[int], dtype: str) -> jax.Array:
    return jnp.zeros(shape, dtype)


def last_columns(x: jax.Array) -> jax.Array:
    queries, keys = x.shape[-2:]
    return jnp.broadcast_to(jnp.arange(keys - queries, keys), x.shape[:-1])
