"""Ops of segments on tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.ops.segmented import COLUMNS, Segmented
from bridge.ops.segments import (
    Plan,
    plan_of,
    positions_of,
    sizes_of,
    traced_sizes,
)
from bridge.ops.traced import function_of
from bridge.torch._adapter.arrays import parts
from bridge.torch._adapter.autograd import is_watched
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import DeclaredFunction
from bridge.torch._adapter.embeddings import rows_of
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.integers import as_integer
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.moves import moved
from bridge.torch._adapter.overrides import hand_over, is_overridden


class _Integers:
    """The functions of integer tensors that make a plan."""

    def arange(self, like: Tensor, count: Any) -> Tensor:
        return torch.arange(count, device=like.device)

    def where(self, condition: Tensor, x: Any, y: Any) -> Tensor:
        return torch.where(condition, x, y)

    def cumsum(self, x: Tensor) -> Tensor:
        return x.cumsum(0)

    def concatenate(self, arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat([*arrays])

    def order(self, x: Tensor) -> Tensor:
        return torch.argsort(x, stable=True)

    def counts(self, x: Tensor, count: Any) -> Tensor:
        zeros = torch.zeros(count, dtype=torch.int64, device=x.device)
        return zeros.scatter_add(0, x, torch.ones_like(x))

    def clip(self, x: Tensor, low: Any, high: Any) -> Tensor:
        return x.clamp(low, high)


class _Moves:
    """The functions that move tokens."""

    def moved(self, x: Tensor, to: Tensor, back: Tensor, marks: bool) -> Tensor:
        return moved(x, to, back, marks)

    def taken(self, x: Tensor, places: Tensor) -> Tensor:
        if x.shape[-1] == 0:
            return x.new_zeros((*x.shape[:-1], places.shape[0]))
        found = x[..., places.clamp(0)]
        return found.masked_fill(places < 0, 0)

    def joined(self, arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat([*arrays], -1)

    def parts(self, x: Tensor, sizes: Sequence[Any]) -> Sequence[Tensor]:
        return parts(x, sizes) if len(sizes) > 1 else [x]

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.expand(*shape)

    def columns(self, table: Tensor, count: Any) -> Tensor:
        like = table.detach().expand(*table.shape[:-1], count)
        return _columns.run((like, table))  # type: ignore[no-any-return]

    def rows_of_table(self, table: Tensor, positions: Tensor) -> Tensor:
        return rows_of(table[None], positions[None])[0]


_columns = DeclaredFunction(COLUMNS, "columns")


class SegmentedFunction:
    """The function of an op of segments on tensors, `public`."""

    def __init__(self, segmented: Segmented, name: str = "") -> None:
        self.segmented = segmented
        self.name = name or segmented.public.name
        self.rows = DeclaredFunction(segmented.op_of_rows, self.name)
        integer = functools.partial(as_integer, self.name)
        self.public = function_of(segmented.public, "torch", None, self.run, integer)

    def run(self, operands: tuple[Any, ...], _: None, *values: Any) -> Any:
        """Returns the result of the op; absent operands are None."""
        if is_overridden(operands):
            return hand_over(operands, depth=2, function=self.public)
        segmented, parameters = self.segmented, self.segmented.public.parameters
        needed = {p.name: o for p, o in zip(parameters, operands, strict=True) if not p.optional}
        others = {p.name: o for p, o in zip(parameters, operands, strict=True) if p.optional}
        check_tensors(self.name, len(needed), **needed, **others)
        for parameter, operand in zip(parameters, operands, strict=True):
            if type(operand).__name__ == "DTensor":
                raise TypeError(
                    f"{self.name}: {parameter.name} is a DTensor, expected a plain tensor: "
                    "segments may lie on several devices; call full_tensor() before, or the op on "
                    "the local tensors if each device has whole segments"
                )
        specs = [None if operand is None else spec_of(operand) for operand in operands]
        static, longest = segmented.divided([fixed(value) for value in values])
        segmented.check(self.name, specs, longest)
        total = segmented.total(specs)
        ends = operands[segmented.place]
        known = _known(ends)
        if known is not None:
            segmented.check_known(self.name, specs, known, longest)
        if not segmented.is_cut:
            at: Any = positions_of(_Integers(), ends.long(), total)
        else:
            at = _plan(ends, known, total, longest, segmented.other_rows(specs))
        return segmented.run(_Moves(), self.rows, operands, static, at)


def _known(ends: Tensor) -> Any:
    """Returns the ends as a NumPy array, or None if they cannot be read without waiting."""
    if torch.compiler.is_compiling() or is_watched((ends,)) or not ends.is_cpu:
        return None
    return ends.detach().numpy()


def _plan(ends: Tensor, known: Any, total: int, longest: Any, other_rows: int) -> Plan:
    if known is None:
        count = ends.shape[0] - 1
        sizes = traced_sizes(count, total, total if longest is None else min(longest, total))
        return plan_of(_Integers(), ends.long(), total, sizes)
    return _planned(known.astype(np.int64).tobytes(), total, other_rows)


@functools.lru_cache(maxsize=8)
def _planned(ends: bytes, total: int, other_rows: int) -> Plan:
    numbers = np.frombuffer(ends, np.int64)
    sizes = sizes_of(np.diff(numbers), other_rows)
    with torch.inference_mode(mode=False):
        return plan_of(_Integers(), torch.from_numpy(numbers.copy()), total, sizes)
