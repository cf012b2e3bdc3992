"""The functions of `bridge.jax._compositions.functions` with XLA's own matrix products."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bridge.jax._compositions import functions
from bridge.ops.product import ProductParams


def _product(a: jax.Array, b: jax.Array, bias: Any, params: ProductParams) -> jax.Array:
    a = a.mT if params.transposed_a else a
    b = b.mT if params.transposed_b else b
    product = jnp.matmul(a, b, preferred_element_type=jnp.dtype(params.dtype))
    return product if bias is None else product + bias[..., None, :]


def _over_chunks(step: Callable[[Any], Any], dim: int, chunks: Any) -> Any:
    """Runs the chunks one after the other; only one sum exists at a time."""
    arrays, sums = step(chunks.start)
    if chunks.count == 1:
        return arrays, sums

    def added(before: Any, number: jax.Array) -> Any:
        own, more = step(chunks.start + number * chunks.rows)
        return [x + y for x, y in zip(before, more, strict=True)], list(own)

    sums, others = lax.scan(added, list(sums), jnp.arange(1, chunks.count))
    return [_in_rows(x, y, dim) for x, y in zip(arrays, others, strict=True)], sums


def _in_rows(first: jax.Array, others: jax.Array, dim: int) -> jax.Array:
    """Joins the first chunk and `[chunks, ...]` along a dimension of each chunk."""
    moved = jnp.moveaxis(jnp.concatenate([first[None], others]), 0, dim)
    return moved.reshape(*moved.shape[:dim], -1, *moved.shape[dim + 2 :])


framework_functions: Any = SimpleNamespace(
    **{name: getattr(functions, name) for name in functions.__all__}
)
framework_functions.product, framework_functions.over_chunks = _product, _over_chunks
framework_functions.has_trees = False
