"""The functions of arrays that compositions need; `bridge.ops.compositions` describes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bridge.jax._adapter.arrays import entry
from bridge.jax._adapter.primitive import call
from bridge.jax._adapter.products import product
from bridge.jax._compositions.gathers import cast, entries, table, taken, taken_apart, where_own
from bridge.jax._compositions.maps import mapped
from bridge.ops import PROGRAM
from bridge.ops.definition import Call
from bridge.ops.sums import sum_of

__all__ = [
    "cast",
    "concatenated",
    "entries",
    "entry",
    "expanded",
    "filled",
    "has_trees",
    "in_parts",
    "is_unrolled",
    "long_rows",
    "mapped",
    "moved",
    "numbers",
    "over_chunks",
    "product",
    "reshaped",
    "results",
    "rows",
    "run",
    "table",
    "taken",
    "taken_apart",
    "where_own",
]


def run(made: Call[Any]) -> Any:
    return results(made)[0]


def results(made: Call[Any]) -> tuple[Any, ...]:
    return call(PROGRAM, made.operands, made.params)


def moved(x: jax.Array, dim: int, place: int) -> jax.Array:
    return jnp.moveaxis(x, dim, place)


def reshaped(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.reshape(x, shape)


def long_rows(arrays: Sequence[jax.Array], dim: int) -> Sequence[jax.Array]:
    return arrays


def expanded(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(x, shape)


def concatenated(arrays: Sequence[jax.Array], dim: int) -> jax.Array:
    return jnp.concatenate(arrays, dim)


def filled(like: jax.Array, shape: tuple[int, ...], value: float) -> jax.Array:
    return jnp.full(shape, value, like.dtype)


def numbers(like: jax.Array, start: Any, count: int) -> jax.Array:
    return start + jnp.arange(count)


def rows(x: jax.Array, dim: int, start: Any, count: int) -> jax.Array:
    if isinstance(start, int):
        return lax.slice_in_dim(x, start, start + count, axis=dim)
    return lax.dynamic_slice_in_dim(x, start, count, dim)


is_unrolled, has_trees = False, True


def over_chunks(step: Callable[[Any], Any], dim: int, chunks: Any) -> Any:
    if chunks.count == 1:
        return step(chunks.start)

    def run_some(count: int, first: jax.Array) -> Any:
        """Runs 2ⁿ chunks: two times half of them, so that the sums add up in a tree."""
        if count == 1:
            return step(chunks.start + first * chunks.rows)
        half = count // 2
        halves = first + half * jnp.arange(2)
        arrays, sums = lax.map(functools.partial(run_some, half), halves)
        return [_joined(x, dim) for x in arrays], [_sum(x[0], x[1]) for x in sums]

    return run_some(chunks.count, jnp.zeros((), int))


def _joined(x: jax.Array, dim: int) -> jax.Array:
    """Joins two arrays `[2, ...]` along a dimension of each."""
    moved = jnp.moveaxis(x, 0, dim)
    return moved.reshape(*moved.shape[:dim], -1, *moved.shape[dim + 2 :])


def _sum(x: jax.Array, y: jax.Array) -> jax.Array:
    return run(sum_of(x, y, x.dtype.name, x.dtype.name))


def in_parts(
    function: Callable[..., tuple[jax.Array, ...]],
    operands: Sequence[Any],
    sizes: Sequence[int],
    steps: Sequence[int],
) -> tuple[jax.Array, ...]:
    if list(sizes) == list(steps):
        return function(*operands)
    counts = [size // step for size, step in zip(sizes, steps, strict=True)]

    def of_part(number: jax.Array) -> tuple[jax.Array, ...]:
        places = jnp.unravel_index(number, counts)
        starts = [place * step for place, step in zip(places, steps, strict=True)]
        return function(*[None if x is None else _part(x, starts, steps) for x in operands])

    stacked = lax.map(of_part, jnp.arange(math.prod(counts)))
    return tuple([_whole(results, counts, steps) for results in stacked])


def _part(x: jax.Array, starts: Sequence[jax.Array], steps: Sequence[int]) -> jax.Array:
    for dim, (start, step) in enumerate(zip(starts, steps, strict=True)):
        if x.shape[dim] != 1:
            x = lax.dynamic_slice_in_dim(x, start, step, dim)
    return x


def _whole(results: jax.Array, counts: Sequence[int], steps: Sequence[int]) -> jax.Array:
    """Joins the results of parts, `[parts, *steps, ...]`."""
    n, rest = len(counts), results.shape[1 + len(counts) :]
    grid = results.reshape(*counts, *steps, *rest)
    order = [d for pair in zip(range(n), range(n, 2 * n), strict=True) for d in pair]
    moved = grid.transpose(*order, *range(2 * n, grid.ndim))
    return moved.reshape(*[i * j for i, j in zip(counts, steps, strict=True)], *rest)
