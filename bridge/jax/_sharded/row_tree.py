"""Sums over rows that are split over shards: the tree of docs/numerics.md across shards.

A leaf of the tree is 16 consecutive rows. The shards exchange their parts in one all-reduce of
integers: each number comes from one shard, and the others add 0 to its bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.ops.sums import LEAF_ROWS, sum_of_rows

# Compute these now: jax 0.9 asks for them in XLA's threads, which flush subnormal numbers to 0.
# NumPy 2.0 computes them at the first use, and warns there.
for _dtype in (np.float16, np.float32, np.float64):
    jnp.finfo(_dtype)


def bits_of(array: Any) -> Any:
    """Returns float32 or float64 `[..., d]` as 32-bit words `[..., d]` or `[..., 2·d]`."""
    bits = lax.bitcast_convert_type(array, np.uint32)
    return bits.reshape(*array.shape[:-1], -1)


def from_bits(bits: Any, dtype: Any) -> Any:
    if np.dtype(dtype).itemsize == 8:
        bits = bits.reshape(*bits.shape[:-1], -1, 2)
    return lax.bitcast_convert_type(bits, dtype)


def placed_and_added(own: Any, whole: tuple[int, ...], at: Any, axes: tuple[str, ...]) -> Any:
    """Builds the array of shape `whole` from each shard's part, which starts at index `at`."""
    bits = bits_of(own)
    at = tuple(jnp.asarray(index, np.int32) for index in at)
    placed = jnp.zeros((*whole[:-1], bits.shape[-1]), np.uint32)
    placed = lax.dynamic_update_slice(placed, bits, at)
    return from_bits(lax.psum(placed, axes), own.dtype)


def added_leaves(part: Any, rows: Any) -> Any:
    """Returns `[*batch, leaves, d]`, the sums of all leaves, where runs may share a leaf.

    `rows` are the unrounded rows of this shard. The shards exchange the sums of leaves that lie
    within one run, and the rows of all other leaves.
    """
    where = _Leaves(part.rows, part.total)
    batch, columns, dtype = rows.shape[: part.batch_ndim], rows.shape[-1], rows.dtype
    numbers = part.numbers()
    rows = rows.reshape(*batch, part.count, part.rows, columns)

    def of_runs(table: np.ndarray) -> Any:
        return jnp.asarray(table)[numbers]

    # Pad runs to whole leaves, so that each row has its position within its leaf.
    touched = where.touched
    edges = [(0, 0, 0)] * (rows.ndim - 2)
    ends = (LEAF_ROWS - 1, touched * LEAF_ROWS - part.rows, 0)
    lowest = np.array(-0.0, dtype)  # the value of a missing row
    padded = lax.pad(rows, lowest, [*edges, ends, (0, 0, 0)])
    first_row = of_runs(where.first_row)

    def shifted(run: Any, row: Any) -> Any:
        start = LEAF_ROWS - 1 - row
        return lax.dynamic_slice_in_dim(run, start, touched * LEAF_ROWS, run.ndim - 2)

    axis = len(batch)
    aligned = jax.vmap(shifted, (axis, 0), axis)(padded, first_row)
    leaves = aligned.reshape(*batch, part.count * touched, LEAF_ROWS, columns)
    sums = _sums(part, leaves)

    # One array has both parts: sums of leaves, then the rows of shared leaves.
    place = np.arange(touched * LEAF_ROWS) - first_row[:, None]
    is_own = ((place >= 0) & (place < part.rows)).reshape(-1, LEAF_ROWS, 1)
    bits = jnp.where(is_own, bits_of(leaves), np.uint32(0))
    shared = len(where.shared)
    width = bits.shape[-1]
    known = jnp.zeros((*batch, where.count, width), np.uint32)
    known = known.at[..., of_runs(where.own).reshape(-1), :].add(bits_of(sums), mode="drop")
    raw = jnp.zeros((*batch, shared, LEAF_ROWS, width), np.uint32)
    raw = raw.at[..., of_runs(where.slot).reshape(-1), :, :].add(bits, mode="drop")
    both = jnp.concatenate([known, raw.reshape(*batch, shared * LEAF_ROWS, width)], -2)
    both = from_bits(lax.psum(both, part.axes()), dtype)
    raw = both[..., where.count :, :].reshape(*batch, shared, LEAF_ROWS, columns)
    row = where.shared[:, None] * LEAF_ROWS + np.arange(LEAF_ROWS)
    raw = jnp.where((row < part.rows * part.total)[..., None], raw, lowest)
    return both[..., : where.count, :].at[..., where.shared, :].set(_sums(part, raw))


class _Leaves:
    """The position of `total` runs of `rows` rows on the leaves; tables have a row per run.

    Attributes:
      count: the number of leaves.
      touched: the largest number of leaves with rows of one run.
      first_row: the position of a run's first row in its leaf.
      shared: the leaves with rows of several runs.
      own: for each leaf that a run touches, its number if no other run does, else out of range.
      slot: for each leaf that a run touches, its index in `shared`, else out of range.
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


def _sums(part: Any, leaves: Any) -> Any:
    """Sums leaves: `[..., 16, d]` to `[..., d]`."""
    own = leaves.dtype.name
    call = sum_of_rows(leaves, own, own, leaves.ndim - 2)
    return part.run(call.op, call.operands, call.params)[0]
