"""All parts of a split call in one process: one thread per part; they meet at each exchange."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bridge.ops.parts import call_on_part
from bridge.ops.splitting import AnySplit, dims_of, supported
from bridge.torch._adapter.dispatcher import dispatch
from bridge.torch._sharded.shards import _Part


class Meeting:
    """The exchange in which the column parts contribute their sums and take the whole.

    Attributes:
      sent: the count of numbers that a part sends in each exchange.
    """

    def __init__(self, parts: int) -> None:
        self._barrier = threading.Barrier(parts)
        self._left: dict[Any, Tensor] = {}
        self.sent: list[int] = []

    def exchanged(self, place: tuple[int, ...], parts: int, own: Tensor) -> Tensor:
        self._left[place] = own
        if self._barrier.wait() == 0:
            self.sent.append(own.numel())
        found = torch.stack([self._left[(*place[:-1], i)] for i in range(parts)], -2)
        self._barrier.wait()
        return found


@dataclass(frozen=True)
class Placed(AnySplit):
    """A split into `sizes` parts along each dimension, seen from the part at `place`."""

    sizes: tuple[int, ...]
    place: tuple[int, ...]
    meeting: Meeting = field(compare=False)

    def size(self, axis: int) -> int:
        return self.sizes[axis]

    def index(self, dim: int) -> int:
        return self.place[dim]


class Together(_Part):
    def of_all_columns(self, own: Tensor) -> Tensor:
        split = self.split
        return split.meeting.exchanged(split.place, split.sizes[-1], own)


def on_parts(
    op: Any, operands: tuple[Any, ...], params: Any, sizes: tuple[int, ...]
) -> tuple[Tensor, list[int]]:
    """Returns a call's only result, FULL, from its parts, and the numbers sent in each exchange."""
    shape = tuple(operands[0].shape)
    roles = op.operand_roles(len(operands), params)
    places = list(itertools.product(*map(range, sizes)))
    meeting = Meeting(len(places))
    axes = tuple((dim,) for dim in range(len(shape)))
    result = torch.full(shape, 7.0, dtype=operands[0].dtype)

    def narrowed(array: Tensor, split: Placed, dims: Any) -> Tensor:
        for own, dim in enumerate(dims):
            if dim is not None:
                local = split.local(dim)
                array = array.narrow(own, split.index(dim) * local, local)
        return array

    def run(place: tuple[int, ...]) -> None:
        split = Placed(shape, axes, sizes, place, meeting)
        present = [role for o, role in zip(operands, roles, strict=True) if o is not None]
        assert supported(op, params, present, split) == split
        local = tuple(
            None
            if o is None
            else narrowed(o, split, dims_of(role, tuple(o.shape), split, 0)).contiguous()
            for o, role in zip(operands, roles, strict=True)
        )
        (own,) = call_on_part(Together, dispatch, op, local, params, split)
        narrowed(result, split, range(len(shape))).copy_(own)

    with ThreadPoolExecutor(len(places)) as threads:
        list(threads.map(run, places))
    return result, meeting.sent
