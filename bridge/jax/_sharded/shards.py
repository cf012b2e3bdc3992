"""A call on one shard of its arrays, so that the bits are those of the call on the whole arrays.

Three things depend on where a shard lies: which elements dropout drops, which keys a query sees
under the causal rule, and in which order rows are added up (docs/sharding.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.jax._sharded import word_pairs
from bridge.jax._sharded.row_tree import (
    LEAF_ROWS,
    Call,
    added_leaves,
    arithmetic_of,
    folded,
    placed_and_added,
)
from bridge.jax._sharded.split import Split
from bridge.ops import Role
from bridge.ops.splitting import has_sums, is_indexed, row_dims


def call_on_shard(
    call: Call, op: Any, operands: Sequence[Any], params: Any, split: Split
) -> tuple[Any, ...]:
    """The call on this shard's part of the operands; `split` is that of the first operand."""
    if getattr(params, "causal", 0) and split.parts(len(split.shape) - 2) > 1:
        operands, params = _without_causal_rule(operands, params, split)
        return call(op, operands, params)
    is_split_in_rows = any(split.parts(dim) > 1 for dim in row_dims(split, params))
    is_split = is_split_in_rows or split.parts(len(split.shape) - 1) > 1
    if is_indexed(params) and is_split:
        # The length of a row of the whole array, in which elements are counted.
        params = replace(params, index_cols=params.index_cols or split.shape[-1])
    elif not (has_sums(params) and is_split_in_rows):
        return call(op, operands, params)
    runs = _Runs.of(split, params)
    if not has_sums(params) or not is_split_in_rows:
        return runs.call(call, op, operands, params)
    if runs.rows % LEAF_ROWS:
        full = None
        if params.full is not None:
            full = runs.call(call, op, operands, replace(params, row=None))[0]
        wide = replace(params, full=arithmetic_of(operands, params), row=None)
        leaves = added_leaves(call, runs.call(call, op, operands, wide)[0], runs)
        return full, folded(call, leaves, params.row)
    leaves = runs.rows // LEAF_ROWS
    nodes = leaves // (leaves & -leaves)  # the fewest that are complete subtrees
    wide = replace(params, row=arithmetic_of(operands, params))
    full, row = runs.call(call, op, operands, wide, parts=nodes)
    row = runs.exchanged(row, split.local(-1), parts=nodes)
    return full, folded(call, row, params.row)


def _without_causal_rule(
    operands: Sequence[Any], params: Any, split: Split
) -> tuple[Sequence[Any], Any]:
    """The same call on some of the queries, without the rule that counts queries.

    A derivative needs it no more: what is hidden is 0 in the value of softmax, and takes no part.
    """
    params = replace(params, causal=0)
    if hasattr(params, "terms"):
        return operands, params
    x, mask = (*operands, None)[:2]
    queries, keys = split.shape[-2:]
    first = split.index(len(split.shape) - 2) * x.shape[-2]
    query = lax.broadcasted_iota(np.int32, (x.shape[-2], keys), 0) + first
    key = lax.broadcasted_iota(np.int32, (x.shape[-2], keys), 1)
    hidden = key > query + (keys - queries)
    if mask is not None:
        hidden = hidden | (mask != 0)
    return (x, hidden), params


@dataclass(frozen=True)
class _Runs:
    """The rows of a shard as runs that are consecutive in the whole array.

    Attributes:
      split: of the array.
      batch_ndim: of the call.
      dim: the last split dimension of rows: a run is what the shard has of it and of all behind.
      count, rows: how many runs a batch has in this shard, and the rows of one.
    """

    split: Split
    batch_ndim: int
    dim: int
    count: int
    rows: int

    @classmethod
    def of(cls, split: Split, params: Any) -> _Runs:
        rows = row_dims(split, params)
        local = [split.local(dim) for dim in range(len(split.shape))]
        dim = max((dim for dim in rows if split.parts(dim) > 1), default=rows.start)
        return cls(
            split,
            rows.start,
            dim,
            math.prod(local[rows.start : dim]),
            math.prod(local[dim : rows.stop]),
        )

    def starts(self, parts: int, width: int) -> Any:
        """Word pairs `[count·parts, 2]`: the number of the first element of each part of a run."""
        shape, last = self.split.shape, len(self.split.shape) - 1
        stride = {dim: math.prod(shape[dim + 1 : last]) * width for dim in range(last)}
        offsets = np.zeros((1,), np.uint64)
        start: Any = word_pairs.constants([0])
        if last >= 0:
            own = word_pairs.times(self.split.index(last), self.split.local(last))
            start = word_pairs.add(start, own)
        for dim in range(self.batch_ndim, min(self.dim + 1, last)):
            local = self.split.local(dim)
            own = word_pairs.times(self.split.index(dim), local * stride[dim])
            start = word_pairs.add(start, own)
            if dim < self.dim:
                inner = np.arange(local, dtype=np.uint64) * np.uint64(stride[dim])
                offsets = (offsets[:, None] + inner).ravel()
        step = np.arange(parts, dtype=np.uint64) * np.uint64(self.rows // parts * width)
        return word_pairs.add(start, word_pairs.constants((offsets[:, None] + step).ravel()))

    def call(
        self, call: Call, op: Any, operands: Sequence[Any], params: Any, parts: int = 1
    ) -> tuple[Any, ...]:
        """The call with each part of each run as a batch of its own, if there are several."""
        x = operands[0]
        batch, count = x.shape[: self.batch_ndim], self.count * parts
        several = count > 1
        placed = list(operands)
        roles = op.operand_roles(len(operands))
        if is_indexed(params):
            start = self.starts(parts, params.index_cols)
            if not several:
                start = start[0]
            start = jnp.broadcast_to(start, (*batch, *start.shape))
            if placed[5] is not None:
                given = jnp.expand_dims(placed[5], -2) if several else placed[5]
                start = word_pairs.add(jnp.broadcast_to(given, start.shape), start)
        if not several:
            if is_indexed(params):
                placed[5] = start
            return call(op, placed, params)
        for i, (operand, role) in enumerate(zip(operands, roles, strict=True)):
            if operand is None:
                continue
            if role is Role.FULL:
                shape = (*batch, count, self.rows // parts, x.shape[-1])
                placed[i] = operand.reshape(shape)
            else:
                shape = (*batch, count, operand.shape[-1])
                placed[i] = jnp.broadcast_to(jnp.expand_dims(operand, -2), shape)
        if is_indexed(params):
            placed[5] = start
        full, row = call(op, placed, params.with_batch())
        return None if full is None else full.reshape(x.shape), row

    def exchanged(self, row: Any, columns: int, parts: int) -> Any:
        """`[*batch, nodes, d]` of all shards, in the order of the rows: one all-reduce.

        Each number comes from one shard, all others add the integer 0 to its bits.
        """
        split, batch = self.split, row.shape[: self.batch_ndim]
        outer = range(self.batch_ndim, self.dim)
        own = (*batch, *map(split.local, outer), 1, parts, columns)
        inner = (split.parts(self.dim), parts, columns)
        whole = (*batch, *(split.shape[dim] for dim in outer), *inner)
        starts = (split.index(dim) * split.local(dim) for dim in outer)
        at = (*(0 for _ in batch), *starts, split.index(self.dim), 0, 0)
        gathered = placed_and_added(row.reshape(own), whole, at, self.axes())
        return gathered.reshape(*batch, -1, columns)

    @property
    def total(self) -> int:
        """How many runs the rows of a batch of the whole array are made of."""
        split = self.split
        outer = range(self.batch_ndim, self.dim)
        return math.prod(split.shape[dim] for dim in outer) * split.parts(self.dim)

    def numbers(self) -> Any:
        """Which of them those of this shard are."""
        split = self.split
        number: Any = np.zeros((1,), np.int32)
        for dim in range(self.batch_ndim, self.dim):
            local = split.local(dim)
            own = split.index(dim) * local + np.arange(local, dtype=np.int32)
            number = (number[:, None] * split.shape[dim] + own).reshape(-1)
        return number * split.parts(self.dim) + split.index(self.dim)

    def axes(self) -> tuple[str, ...]:
        dims = range(self.batch_ndim, len(self.split.shape) - 1)
        return tuple(name for dim in dims for name in self.split.axes[dim])
