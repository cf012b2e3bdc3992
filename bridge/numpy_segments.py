"""Ops of segments on NumPy arrays."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.numpy_calls import NUMPY_TYPES, DeclaredFunction
from bridge.ops.definition import Spec
from bridge.ops.segmented import Segmented
from bridge.ops.segments import plan_of, positions_of, sizes_of
from bridge.ops.traced import function_of, traced


class _Integers:
    """The functions of integer arrays that make a plan."""

    def arange(self, like: Any, count: int) -> Any:
        return np.arange(count)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return np.where(condition, x, y)

    def cumsum(self, x: Any) -> Any:
        return np.cumsum(x)

    def concatenate(self, arrays: Sequence[Any]) -> Any:
        return np.concatenate([*arrays])

    def order(self, x: Any) -> Any:
        return np.argsort(x, kind="stable")

    def counts(self, x: Any, count: int) -> Any:
        return np.bincount(x, minlength=count)

    def clip(self, x: Any, low: int, high: int) -> Any:
        return np.clip(x, low, high)


class _Moves:
    """The functions that move tokens."""

    def moved(self, x: Any, to: Any, back: Any, marks: bool) -> Any:
        return _taken(x, to, np.nan if marks else 0)

    def taken(self, x: Any, places: Any) -> Any:
        return _taken(x, places, 0)

    def joined(self, arrays: Sequence[Any]) -> Any:
        return np.concatenate([*arrays], -1)

    def parts(self, x: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return np.split(x, np.cumsum(sizes)[:-1], -1)

    def spread(self, x: Any, shape: Sequence[int]) -> Any:
        return np.broadcast_to(x, tuple(shape))

    def columns(self, table: Any, count: int) -> Any:
        return np.broadcast_to(table, (*table.shape[:-1], count))

    def rows_of_table(self, table: Any, positions: Any) -> Any:
        return _taken(table.T, positions, np.nan).T


def _taken(x: Any, places: Any, missing: Any) -> Any:
    is_place = (places >= 0) & (places < x.shape[-1])
    if not is_place.any():
        return np.full((*x.shape[:-1], len(places)), missing, x.dtype)
    found = x[..., np.where(is_place, places, 0)]
    if not is_place.all():
        found[..., ~is_place] = missing
    return found


class SegmentedFunction:
    """The function of an op of segments on NumPy arrays, `public`."""

    def __init__(self, segmented: Segmented) -> None:
        self.segmented, self.name = segmented, segmented.public.name
        self._rows = DeclaredFunction(segmented.op_of_rows)
        self.public = function_of(segmented.public, "numpy", None, self.run)

    def run(self, operands: tuple[Any, ...], _: None, *values: Any) -> Any:
        """Returns the result of the op; absent operands are None."""
        segmented, name = self.segmented, self.name
        given: list[Any] = []
        for parameter, operand in zip(segmented.public.parameters, operands, strict=True):
            if operand is None and parameter.optional:
                given.append(None)
                continue
            if parameter.role.__name__ != "Integer" and not isinstance(operand, NUMPY_TYPES):
                raise TypeError(
                    f"{name}: {parameter.name} has type {type(operand).__name__}, expected a "
                    "NumPy array"
                )
            given.append(operand)
        specs = [
            Spec(operand.shape, operand.dtype.name) if isinstance(operand, NUMPY_TYPES) else None
            for operand in given
        ]
        static, longest = segmented.divided(values)
        segmented.check(name, specs, longest)
        total, ends = segmented.total(specs), given[segmented.place]
        segmented.check_known(name, specs, ends, longest)
        ends = ends.astype(np.int64)
        if segmented.is_cut:
            sizes = sizes_of(np.diff(ends), segmented.other_rows(specs))
            at: Any = plan_of(_Integers(), ends, total, sizes)
        else:
            at = positions_of(_Integers(), ends, total)
        entry = types.SimpleNamespace(run=self._run)
        return segmented.run(_Moves(), entry, given, static, at)

    def _run(self, operands: tuple[Any, ...], _: None, *values: Any) -> Any:
        present = tuple(operand is not None for operand in operands)
        found = traced(self.segmented.rows, present, *values)
        return self._rows.run(found, tuple(o for o in operands if o is not None))
