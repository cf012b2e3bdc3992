"""A call on this process's part of its arrays, with the bits of the call on the whole arrays.

Three things depend on where a part lies: which elements dropout drops, which keys a query sees
under the causal rule, and in which order rows are added up (docs/sharding.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bridge.ops import BIAS_DROPOUT_ADD, BiasDropoutAddParams, Role
from bridge.ops.splitting import has_sums, is_indexed, row_dims
from bridge.torch._adapter.dispatcher import dispatch
from bridge.torch._collectives.groups import Ranks
from bridge.torch._collectives.transport import Exchange, gather
from bridge.torch._sharded.split import Split

# Rows that are added one after the other: a leaf of the tree in which rows are added up
# (docs/numerics.md). Whole leaves can be added by different processes.
_LEAF_ROWS = 16

_START = 5


def call_on_shard(op: Any, operands: Sequence[Any], params: Any, split: Split) -> tuple[Any, ...]:
    """The call on this process's part of the operands; `split` is that of the first."""
    operands = tuple(operands)
    if getattr(params, "causal", 0) and split.parts(len(split.shape) - 2) > 1:
        operands, params = _without_causal_rule(operands, params, split)
        return dispatch(op, operands, params)
    is_split_in_rows = any(split.parts(dim) > 1 for dim in row_dims(split, params))
    sums_are_spread = has_sums(params) and is_split_in_rows
    if is_indexed(params) and (is_split_in_rows or (split.shape and split.parts(-1) > 1)):
        # The length of a row of the whole array, in which elements are counted.
        params = replace(params, index_cols=params.index_cols or split.shape[-1])
    elif not sums_are_spread:
        return dispatch(op, operands, params)
    runs = _Runs.of(split, params)
    if not sums_are_spread:
        return runs.call(op, operands, params)
    if runs.rows % _LEAF_ROWS:
        return _with_rows_gathered(op, operands, params, runs)
    leaves = runs.rows // _LEAF_ROWS
    nodes = leaves // (leaves & -leaves)  # the fewest that are complete subtrees
    wide = replace(params, row=_arithmetic(operands, params))
    full, row = runs.call(op, operands, wide, parts=nodes)
    row = runs.gathered(row.reshape(*runs.batch, *runs.own, nodes, row.shape[-1]))
    return full, _folded(row.reshape(*runs.batch, -1, row.shape[-1]), params.row)


def _without_causal_rule(
    operands: tuple[Any, ...], params: Any, split: Split
) -> tuple[tuple[Any, ...], Any]:
    """The same call on some of the queries, without the rule that counts queries.

    A derivative needs it no more: what is hidden is 0 in the value of softmax, and takes no part.
    """
    params = replace(params, causal=0)
    if hasattr(params, "terms"):
        return operands, params
    x, mask = (*operands, None)[:2]
    queries, keys = split.shape[-2:]
    first = split.index(len(split.shape) - 2) * x.shape[-2]
    query = torch.arange(first, first + x.shape[-2], device=x.device)
    key = torch.arange(keys, device=x.device)
    hidden = key > query[:, None] + (keys - queries)
    if mask is not None:
        hidden = hidden | (mask != 0)
    return (x, hidden), params


@dataclass(frozen=True)
class _Runs:
    """The rows of a part as runs that are consecutive in the whole array.

    Attributes:
      split: of the array.
      batch: sizes of the call's own batch in this part.
      dim: the last split dimension of rows: a run is what the part has of it and of all behind.
      own: sizes of the dimensions of rows in front of it, and 1: the part's runs.
      rows: rows of a run.
    """

    split: Split
    batch: tuple[int, ...]
    dim: int
    own: tuple[int, ...]
    rows: int

    @classmethod
    def of(cls, split: Split, params: Any) -> _Runs:
        rows = row_dims(split, params)
        local = [split.local(dim) for dim in range(len(split.shape))]
        dim = max((dim for dim in rows if split.parts(dim) > 1), default=rows.start)
        own = (*local[rows.start : dim], 1)
        return cls(split, tuple(local[: rows.start]), dim, own, math.prod(local[dim : rows.stop]))

    def starts(self, parts: int, width: int, device: Any) -> Tensor:
        """int64 `[runs·parts]`: the number of the first element of each part of a run."""
        split, last = self.split, len(self.split.shape) - 1
        stride = [math.prod(split.shape[dim + 1 : last]) * width for dim in range(last)]
        start = split.index(last) * split.local(last)
        offsets = [0]
        for dim in range(len(self.batch), min(self.dim + 1, last)):
            local = split.local(dim)
            start += split.index(dim) * local * stride[dim]
            if dim < self.dim:
                offsets = [o + i * stride[dim] for o in offsets for i in range(local)]
        step = self.rows // parts * width
        numbers = [start + offset + part * step for offset in offsets for part in range(parts)]
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    def call(
        self, op: Any, operands: tuple[Any, ...], params: Any, parts: int = 1
    ) -> tuple[Any, ...]:
        """The call with each part of each run as a batch of its own, if there are several."""
        x = operands[0]
        placed = list(operands)
        count = math.prod(self.own) * parts
        if count > 1:
            for i, role in enumerate(op.operand_roles(len(operands))):
                operand = operands[i]
                if operand is None:
                    continue
                if role is Role.FULL:
                    shape = (*self.batch, count, self.rows // parts, x.shape[-1])
                    placed[i] = operand.reshape(shape)
                else:
                    at = len(self.batch)
                    shape = (*self.batch, count, *operand.shape[at:])
                    placed[i] = operand.unsqueeze(at).expand(shape)
            params = params.with_batch()
        if is_indexed(params):
            start = self.starts(parts, params.index_cols, x.device)
            start = start.reshape(()) if count == 1 else start
            if placed[_START] is not None:
                start = start + placed[_START]
            placed[_START] = start.expand((*self.batch, *start.shape[-1:][: count > 1]))
        full, row = dispatch(op, tuple(placed), params)
        return None if full is None else full.reshape(x.shape), row

    def gathered(self, own: Tensor) -> Tensor:
        """Runs of all processes for `own` `[*batch, *self.own, ...]`, in the order of the rows."""
        for dim in range(len(self.batch), self.dim + 1):
            for axis in reversed(self.split.axes[dim]):
                own = gather_along(own, self.split.mesh, axis, dim)
        return own


def gather_along(x: Tensor, mesh: Any, axis: int, dim: int) -> Tensor:
    """The parts of the processes along a dimension of the mesh, side by side along `dim`."""
    name = mesh.get_group(axis).group_name
    ranks = Ranks(name, mesh.size(axis), mesh.get_coordinate()[axis])
    return gather(x, Exchange(ranks, dim, True, "sum"))


def _arithmetic(operands: Sequence[Any], params: Any) -> str:
    """The dtype in which rows are added up."""
    dtypes = {o.dtype for o in operands if o is not None}
    wide = torch.float64 in dtypes or "float64" in (params.full, params.row)
    return "float64" if wide else "float32"


def _folded(nodes: Tensor, dtype: str) -> Tensor:
    """`[*batch, d]` of the nodes `[*batch, nodes, d]`: the rest of the tree, rounded once.

    The kernel adds, as torch may have been told to flush denormals.
    """
    own = "float64" if nodes.dtype == torch.float64 else "float32"
    while (count := nodes.shape[-2]) > 1:
        paired = count // 2 * 2
        left, right = nodes[..., 0:paired:2, :], nodes[..., 1:paired:2, :]
        params = BiasDropoutAddParams(0, 1.0, full=own if count > 2 else dtype)
        added = _added(left, right, params)
        if count == 2:
            return added[..., 0, :]
        nodes = torch.cat([added, nodes[..., paired:, :]], -2) if paired < count else added
    only = nodes[..., 0, :]
    return only if own == dtype else _added(only, None, BiasDropoutAddParams(0, 1.0, full=dtype))


def _added(x: Tensor, residual: Tensor | None, params: BiasDropoutAddParams) -> Tensor:
    result = dispatch(BIAS_DROPOUT_ADD, (x, None, residual, None, None, None), params)[0]
    assert result is not None
    return result


def _with_rows_gathered(
    op: Any, operands: tuple[Any, ...], params: Any, runs: _Runs
) -> tuple[Any, ...]:
    """Where processes share leaves of the tree: every one is sent all rows, unrounded."""
    full = None
    if params.full is not None:
        full = runs.call(op, operands, replace(params, row=None))[0]
    dtype = _arithmetic(operands, params)
    wide = runs.call(op, operands, replace(params, full=dtype, row=None))[0]
    rows = runs.gathered(wide)
    sums = BiasDropoutAddParams(0, 1.0, row=params.row, batch_ndim=len(runs.batch))
    return full, dispatch(BIAS_DROPOUT_ADD, (rows, *[None] * 5), sums)[1]
