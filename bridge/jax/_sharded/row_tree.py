"""Sums over rows that several shards have: the tree of docs/numerics.md across shards.

A leaf of the tree is 16 consecutive rows. What shards know of it they exchange in one all-reduce of
integers: each number comes from one shard, and the others add 0 to its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.ops import BIAS_DROPOUT_ADD, BiasDropoutAddParams

# Rows that are added one after the other. Whole leaves can be added by different shards.
LEAF_ROWS = 16

Call = Callable[[Any, Sequence[Any], Any], tuple[Any, ...]]


def arithmetic_of(operands: Sequence[Any], params: Any) -> str:
    """The dtype in which rows are added up."""
    dtypes = {params.full, params.row, *(o.dtype.name for o in operands if o is not None)}
    return "float64" if "float64" in dtypes else "float32"


def bits_of(array: Any) -> Any:
    """float32 or float64 `[..., d]` as 32-bit words `[..., d]` or `[..., 2·d]`: no x64 needed."""
    bits = lax.bitcast_convert_type(array, np.uint32)
    return bits.reshape(*array.shape[:-1], -1)


def from_bits(bits: Any, dtype: Any) -> Any:
    if np.dtype(dtype).itemsize == 8:
        bits = bits.reshape(*bits.shape[:-1], -1, 2)
    return lax.bitcast_convert_type(bits, dtype)


def placed_and_added(own: Any, whole: tuple[int, ...], at: Any, axes: tuple[str, ...]) -> Any:
    """An array of the shape `whole` of what each shard has of it, from the place `at` on."""
    bits = bits_of(own)
    at = tuple(jnp.asarray(index, np.int32) for index in at)
    placed = jnp.zeros((*whole[:-1], bits.shape[-1]), np.uint32)
    placed = lax.dynamic_update_slice(placed, bits, at)
    return from_bits(lax.psum(placed, axes), own.dtype)


def folded(call: Call, row: Any, dtype: str) -> Any:
    """`[*batch, d]` of the nodes `[*batch, nodes, d]`: the rest of the tree, rounded once.

    The kernel adds, as XLA flushes denormals on the CPU.
    """
    while True:
        nodes = row.shape[-2]
        params = BiasDropoutAddParams(0, 1.0, full=row.dtype.name if nodes > 2 else dtype)
        if nodes == 1:
            only = row[..., 0, :]
            return only if only.dtype.name == dtype else call(BIAS_DROPOUT_ADD, _x(only), params)[0]
        paired = nodes // 2 * 2
        left, right = row[..., 0:paired:2, :], row[..., 1:paired:2, :]
        added = call(BIAS_DROPOUT_ADD, _x(left, right), params)[0]
        if nodes == 2:
            return added[..., 0, :]
        row = jnp.concatenate([added, row[..., paired:, :]], -2) if paired < nodes else added


def added_leaves(call: Call, rows: Any, runs: Any) -> Any:
    """`[*batch, leaves, d]`: the sums of all leaves, where runs share some of them.

    `rows` are those of this shard, unrounded. The shards exchange the sums of the leaves that lie
    within a run, and the rows of those that do not.
    """
    where = _Leaves(runs.rows, runs.total)
    batch, columns, dtype = rows.shape[: runs.batch_ndim], rows.shape[-1], rows.dtype
    numbers = runs.numbers()
    rows = rows.reshape(*batch, runs.count, runs.rows, columns)

    def of_runs(table: np.ndarray) -> Any:
        return jnp.asarray(table)[numbers]

    # Each run as whole leaves: its rows stand where they stand in their leaf.
    touched = where.touched
    edges = [(0, 0, 0)] * (rows.ndim - 2)
    ends = (LEAF_ROWS - 1, touched * LEAF_ROWS - runs.rows, 0)
    lowest = np.array(-0.0, dtype)  # what a missing row counts as
    padded = lax.pad(rows, lowest, [*edges, ends, (0, 0, 0)])
    first_row = of_runs(where.first_row)

    def shifted(run: Any, row: Any) -> Any:
        start = LEAF_ROWS - 1 - row
        return lax.dynamic_slice_in_dim(run, start, touched * LEAF_ROWS, run.ndim - 2)

    axis = len(batch)
    aligned = jax.vmap(shifted, (axis, 0), axis)(padded, first_row)
    leaves = aligned.reshape(*batch, runs.count * touched, LEAF_ROWS, columns)
    sums = _sums(call, leaves)

    # Both kinds in one array: sums of leaves, then the rows of shared leaves.
    place = np.arange(touched * LEAF_ROWS) - first_row[:, None]
    is_own = ((place >= 0) & (place < runs.rows)).reshape(-1, LEAF_ROWS, 1)
    bits = jnp.where(is_own, bits_of(leaves), np.uint32(0))
    shared = len(where.shared)
    width = bits.shape[-1]
    known = jnp.zeros((*batch, where.count, width), np.uint32)
    known = known.at[..., of_runs(where.own).reshape(-1), :].add(bits_of(sums), mode="drop")
    raw = jnp.zeros((*batch, shared, LEAF_ROWS, width), np.uint32)
    raw = raw.at[..., of_runs(where.slot).reshape(-1), :, :].add(bits, mode="drop")
    both = jnp.concatenate([known, raw.reshape(*batch, shared * LEAF_ROWS, width)], -2)
    both = from_bits(lax.psum(both, runs.axes()), dtype)
    raw = both[..., where.count :, :].reshape(*batch, shared, LEAF_ROWS, columns)
    row = where.shared[:, None] * LEAF_ROWS + np.arange(LEAF_ROWS)
    raw = jnp.where((row < runs.rows * runs.total)[..., None], raw, lowest)
    return both[..., : where.count, :].at[..., where.shared, :].set(_sums(call, raw))


class _Leaves:
    """How `total` runs of `rows` rows each lie on leaves; tables have a row for each run.

    Attributes:
      count: of leaves.
      touched: the most leaves that a run has rows of.
      first_row: place of a run's first row in its leaf.
      shared: the leaves that several runs have rows of.
      own, slot: of each leaf that a run touches, its number if it is the run's alone, and its place
        among the shared ones; else a number out of range.
    """

    def __init__(self, rows: int, total: int) -> None:
        start = np.arange(total, dtype=np.int64)[:, None] * rows
        self.count = -(-rows * total // LEAF_ROWS)
        self.touched = (rows + LEAF_ROWS - 2) // LEAF_ROWS + 1
        self.first_row = (start[:, 0] % LEAF_ROWS).astype(np.int32)
        leaf = start // LEAF_ROWS + np.arange(self.touched)
        stop = np.minimum((leaf + 1) * LEAF_ROWS, rows * total)
        is_touched = leaf * LEAF_ROWS < start + rows
        is_own = is_touched & (leaf * LEAF_ROWS >= start) & (stop <= start + rows)
        self.shared = np.unique(leaf[is_touched & ~is_own])
        slot = np.searchsorted(self.shared, leaf)
        none = np.int64(2**31 - 1)
        self.own = np.where(is_own, leaf, none).astype(np.int32)
        self.slot = np.where(is_touched & ~is_own, slot, none).astype(np.int32)


def _sums(call: Call, leaves: Any) -> Any:
    """`[..., d]` of `[..., 16, d]`."""
    params = BiasDropoutAddParams(0, 1.0, row=leaves.dtype.name, batch_ndim=leaves.ndim - 2)
    return call(BIAS_DROPOUT_ADD, _x(leaves), params)[1]


def _x(x: Any, residual: Any = None) -> tuple[Any, ...]:
    return (x, None, residual, None, None, None)
