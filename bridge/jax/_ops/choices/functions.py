"""Functions of arrays for mixtures of experts; `bridge.catalogue.choices.experts` describes them.

bridge/torch/_ops/choices/functions.py has the same for PyTorch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridge.jax._adapter.avals import unsplit, vary_alike
from bridge.jax._adapter.embeddings import rows_of
from bridge.jax._adapter.selections import columns_of, taken
from bridge.jax._ops.labels import as_signed
from bridge.jax._ops.log_probs import logsumexp
from bridge.jax._ops.products import matmul
from bridge.jax._ops.softmax import scaled_softmax
from bridge.ops.selection import Selection

__all__ = [
    "chosen",
    "column_sums",
    "constant",
    "counts",
    "logsumexp",
    "moved",
    "repeated",
    "softmax",
    "sorted_by_expert",
    "taken",
    "weighted_sums",
]


def softmax(x: jax.Array) -> jax.Array:
    return scaled_softmax(x)


def constant(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)


def chosen(x: jax.Array, k: int) -> jax.Array:
    return columns_of(x, None, Selection(k))  # type: ignore[no-any-return]


def column_sums(x: jax.Array) -> jax.Array:
    return matmul(jnp.ones(x.shape[0], x.dtype), x, bits="portable")


def _numbers(columns: jax.Array, experts: int) -> jax.Array:
    """Returns the experts' numbers, `experts` where a number is none."""
    signed = as_signed(columns, -1)[0]
    return jnp.where((signed >= 0) & (signed < experts), signed, experts).astype(jnp.int32)


def counts(columns: jax.Array, experts: int) -> jax.Array:
    numbers = _numbers(columns.reshape(-1), experts)
    zeros, numbers, ones = vary_alike(
        [jnp.zeros(experts + 1, jnp.int32), numbers, jnp.ones_like(numbers)]
    )
    return zeros.at[numbers].add(ones)[:experts]


def sorted_by_expert(columns: jax.Array, experts: int) -> tuple[jax.Array, jax.Array]:
    numbers = _numbers(columns, experts)
    order = jnp.argsort(numbers, stable=True)
    return order, jnp.argsort(order)


def repeated(x: jax.Array, k: int) -> jax.Array:
    token = jnp.repeat(jnp.arange(x.shape[0], dtype=jnp.int32), k)
    return rows_of(unsplit(x, slice(None))[None], token[None])[0]  # type: ignore[no-any-return]


def moved(x: jax.Array, order: jax.Array) -> jax.Array:
    number = unsplit(as_signed(order, -1)[0], slice(None))
    return rows_of(unsplit(x, slice(None))[None], number[None])[0]  # type: ignore[no-any-return]


def weighted_sums(weights: Any, y: jax.Array) -> jax.Array:
    if weights is None:
        weights = jnp.ones(y.shape[:2], y.dtype)
    return matmul(weights[:, None, :], y, bits="portable")[:, 0]
