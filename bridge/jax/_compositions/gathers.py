"""Gathers along a dimension of arrays, for compositions (`bridge.catalogue.vision.taps`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def cast(x: jax.Array, dtype: str) -> jax.Array:
    return x.astype(dtype)


def taken(x: jax.Array, index: jax.Array, dim: int) -> jax.Array:
    return jnp.take(x, index, axis=dim, mode="clip")


def taken_apart(x: jax.Array, chosen: jax.Array, dim: int) -> jax.Array:
    shape = list(x.shape)
    shape[dim] = chosen.shape[dim]
    index = jnp.maximum(jnp.broadcast_to(chosen, shape), 0)
    return jnp.take_along_axis(x, index, axis=dim, mode="clip")


def entries(rows: jax.Array, row: jax.Array, inner: bool) -> jax.Array:
    column = jnp.arange(rows.shape[1])
    return rows[row.astype(int), column[:, None] if inner else column]


def where_own(x: jax.Array, which: jax.Array, outputs: jax.Array, dim: int) -> jax.Array:
    ones = [1] * (x.ndim - dim - 1)
    place = jnp.arange(x.shape[dim]).reshape(-1, *ones)
    is_own = (which == place) & (outputs >= 0).reshape(-1, *ones)
    return jnp.where(is_own, x, jnp.array(-0.0, x.dtype))


def table(numbers: Any, like: jax.Array) -> jax.Array:
    return jnp.asarray(numbers)
