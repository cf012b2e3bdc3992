"""Functions of arrays for compositions that both frameworks share.

bridge/torch/_adapter/arrays.py has the same for PyTorch; `bridge.ops.arrays` describes them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.jax._adapter.arguments import (
    as_array_like,
    as_arrays,
    refuse_narrowed,
    refuse_traced,
)
from bridge.jax._adapter.avals import spec_of, unsplit
from bridge.jax._adapter.declared import DeclaredFunction
from bridge.lang.dtypes import FLOATING
from bridge.ops.form import INTEGERS

__all__ = [
    "autocast",
    "cast",
    "checked",
    "concatenated",
    "constant",
    "dtype_of",
    "entry",
    "known",
    "last_columns",
    "packed",
    "parts",
    "spec_of",
    "unpacked",
    "with_whole_rows",
    "zeros",
]


_EXPECTED = {dtypes: f"one of {', '.join(dtypes)}" for dtypes in (FLOATING, INTEGERS)}


def entry(op: Any, name: str = "") -> DeclaredFunction:
    return DeclaredFunction(op, name) if name else op.entry("jax")  # type: ignore[no-any-return]


def known(function: str, name: str, value: Any, expected: str = "a number") -> Any:
    refuse_traced(function, name, value, expected)
    return value


def checked(
    name: str, required: int, integers: Sequence[str] = (), /, **arrays: Any
) -> tuple[Any, ...]:
    found = []
    for place, (key, value) in enumerate(arrays.items()):
        if value is not None or place < required:
            dtypes = INTEGERS if key in integers else FLOATING
            value = as_array_like(name, key, value, dtypes, _EXPECTED[dtypes])
            refuse_narrowed(name, key, value)
        found.append(value)
    return as_arrays(*found)


def autocast(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return arrays


def dtype_of(x: jax.Array) -> str:
    return sys.intern(x.dtype.name)


def cast(x: jax.Array, dtype: str) -> jax.Array:
    return x.astype(dtype)


def constant(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)


def concatenated(first: jax.Array, *others: jax.Array) -> jax.Array:
    return jnp.concatenate((first, *(other.astype(first.dtype) for other in others)), -1)


def parts(x: jax.Array, sizes: Sequence[int]) -> Sequence[jax.Array]:
    return jnp.split(x, [*itertools.accumulate(sizes)][:-1], -1)


def packed(codes: jax.Array) -> jax.Array:
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(jnp.uint8)


def unpacked(values: jax.Array) -> jax.Array | None:
    if values.dtype != jnp.uint8:
        return None
    pairs = jnp.stack((values & 15, values >> 4), -1)
    return pairs.reshape(*values.shape[:-1], 2 * values.shape[-1]).astype(jnp.int8)


def with_whole_rows(x: Any) -> Any:
    return unsplit(x, slice(-1, None)) if isinstance(x, jax.Array) else x


def zeros(like: jax.Array, shape: Sequence[int], dtype: str) -> jax.Array:
    return jnp.zeros(shape, dtype)


def last_columns(x: jax.Array) -> jax.Array:
    queries, keys = x.shape[-2:]
    return jnp.broadcast_to(jnp.arange(keys - queries, keys), x.shape[:-1])
