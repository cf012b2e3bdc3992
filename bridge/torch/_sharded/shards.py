"""Runs a call on this process's part of its arrays, with the bits of the call on whole arrays.

`bridge.ops.parts` has everything that depends on the position of a part; this module has torch's
side of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch_distributed import all_to_all_single, wait_tensor
from bridge.ops.definition import Op
from bridge.ops.parts import Part, call_on_part
from bridge.ops.sums import sum_of_rows
from bridge.torch._adapter.autocast import joined
from bridge.torch._adapter.dispatcher import dispatch
from bridge.torch._adapter.kernels import NAMES
from bridge.torch._collectives.groups import Ranks
from bridge.torch._collectives.transport import Exchange, gather
from bridge.torch._sharded.split import Split


def call_on_shard(
    op: Op[Any], operands: Sequence[Any], params: Any, split: Split
) -> tuple[Any, ...]:
    """Runs the call on this process's part of the operands; `split` is the layout of the space."""
    return call_on_part(_Part, dispatch, op, operands, params, split)


@dataclass(frozen=True)
class _Part(Part):
    """The part of a process; it gets the parts of other processes by all-gathers."""

    @staticmethod
    def concatenate(arrays: list[Tensor], dim: int) -> Tensor:
        return joined(arrays, dim)

    @staticmethod
    def dtype(array: Tensor) -> str:
        return NAMES[array.dtype]

    @staticmethod
    def repeated(array: Tensor, at: int, shape: tuple[int, ...]) -> Tensor:
        return array.unsqueeze(at).expand(shape)

    def starts(self, parts: int, width: int, given: Tensor | None, like: Tensor) -> Tensor:
        """Returns the starts: int64 `[*batch, runs·parts]`, `[*batch]` for one part of one run."""
        split, last = self.split, len(self.split.shape) - 1
        stride = [math.prod(split.shape[dim + 1 : last]) * width for dim in range(last)]
        start = split.index(last) * split.local(last)
        offsets = [0]
        for dim in range(self.batch_ndim, min(self.dim + 1, last)):
            local = split.local(dim)
            start += split.index(dim) * local * stride[dim]
            if dim < self.dim:
                offsets = [o + i * stride[dim] for o in offsets for i in range(local)]
        step = self.rows // parts * width
        numbers = [start + offset + part * step for offset in offsets for part in range(parts)]
        own = (len(numbers),) if len(numbers) > 1 else ()
        starts = torch.tensor(numbers, dtype=torch.int64, device=like.device).reshape(own)
        return (starts if given is None else starts + given).expand((*self.batch, *own))

    def exchanged(self, nodes: Tensor, parts: int) -> Tensor:
        columns = nodes.shape[-1]
        nodes = self._gathered(nodes.reshape(*self.batch, *self.outer, 1, parts, columns))
        return nodes.reshape(*self.batch, -1, columns)

    def rows_added(self, rows: Tensor, dtype: str) -> Tensor:
        """Adds up the rows of all processes; every process receives all rows."""
        call = sum_of_rows(self._gathered(rows), self.dtype(rows), dtype, self.batch_ndim)
        return self.run(call.op, call.operands, call.params)[0]  # type: ignore[no-any-return]

    def of_all_columns(self, own: Tensor) -> Tensor:
        return self._gathered_along(own.unsqueeze(-2), len(self.split.shape) - 1, own.ndim - 1)

    def halves_of_columns(self, array: Tensor) -> Tensor:
        parts, rank = self._columns()
        to = [(2 * rank + block) % parts for block in (0, 1)]
        return self._exchanged_halves(array, to, [rank // 2, (parts + rank) // 2])

    def halves_as_they_lie(self, array: Tensor) -> Tensor:
        parts, rank = self._columns()
        of = [(2 * rank + block) % parts for block in (0, 1)]
        return self._exchanged_halves(array, [rank // 2, (parts + rank) // 2], of)

    def _columns(self) -> tuple[int, int]:
        last = len(self.split.shape) - 1
        return self.split.parts(last), self.split.index(last)

    def _exchanged_halves(self, array: Tensor, to: list[int], of: list[int]) -> Tensor:
        """Exchanges halves of the array with other processes.

        Args:
          to: the processes that receive this process's halves.
          of: the processes whose halves this process receives.
        """
        (axis,) = self.split.axes[-1]
        halves = array.unflatten(-1, (2, array.shape[-1] // 2)).movedim(-2, 0)
        if to[0] > to[1]:  # the half for the lower process is sent first
            halves = halves.flip(0)
        found = exchange_along(halves, self.split.mesh, axis, to, of)
        if of[0] > of[1]:
            found = found.flip(0)
        return joined([found[0], found[1]], array.ndim - 1)

    def own(self, table: Any) -> Any:
        return table[self.split.index(len(self.split.shape) - 1)]

    @staticmethod
    def padded(array: Tensor, before: Any, width: int) -> Tensor:
        behind = width - int(before) - array.shape[-1]
        return torch.nn.functional.pad(array, (int(before), behind), value=-0.0)

    @staticmethod
    def taken(array: Tensor, columns: Any) -> Tensor:
        return array.index_select(-1, torch.tensor(columns, device=array.device))

    @staticmethod
    def integers(array: Tensor) -> Tensor:
        return array.to(torch.int64)

    def _gathered(self, own: Tensor) -> Tensor:
        """Concatenates all processes' `own` `[*batch, *rows, ...]`, in the order of the rows."""
        for dim in range(self.batch_ndim, self.dim + 1):
            own = self._gathered_along(own, dim, dim)
        return own

    def _gathered_along(self, own: Tensor, dim: int, at: int) -> Tensor:
        """Concatenates along `at` the parts of all processes along a dimension of the space."""
        for axis in reversed(self.split.axes[dim]):
            own = gather_along(own, self.split.mesh, axis, at)
        return own


def exchange_along(x: Tensor, mesh: Any, axis: int, to: Sequence[int], of: Sequence[int]) -> Tensor:
    """Exchanges the n elements of x `[n, ...]` with processes along a dimension of the mesh.

    Args:
      to: for each element, the process that receives it, in ascending order.
      of: the processes that this one receives elements from, in ascending order.
    """
    sent, received = ([int(i in each) for i in range(mesh.size(axis))] for each in (to, of))
    if x.numel() == 0:
        return x
    # Numbers travel as bytes: not every transport takes every dtype.
    numbers = x.contiguous().view(torch.uint8)
    name = mesh.get_group(axis).group_name
    found = wait_tensor(all_to_all_single(numbers, received, sent, name))
    return found.view(x.dtype)  # type: ignore[no-any-return]


def gather_along(x: Tensor, mesh: Any, axis: int, dim: int) -> Tensor:
    """Concatenates along `dim` the parts of the processes along a dimension of the mesh."""
    name = mesh.get_group(axis).group_name
    ranks = Ranks(name, mesh.size(axis), mesh.get_coordinate()[axis])
    return gather(x, Exchange(ranks, dim, True, "sum"))
