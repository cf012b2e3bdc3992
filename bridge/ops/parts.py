"""A call on one part of split arrays, with the bits of the call on the whole arrays.

Five things depend on the position of a part: the numbers of its elements, the keys that a query
sees under the causal rule, the order in which rows are added, the reductions along a row
(`columns`; docs/sharding.md), and the pairing of the columns of two halves (`halves`). Each
framework implements its operations in a subclass of `Part`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bridge.ops.columns import call_on_columns
from bridge.ops.definition import Op, Role, shape_in, space_of
from bridge.ops.halves import in_own_columns
from bridge.ops.splitting import adds_rows, counts_elements, row_dims
from bridge.ops.sums import LEAF_ROWS, folded

Run = Callable[[Any, tuple[Any, ...], Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Part(ABC):
    """A part of a split array. Its rows form runs that are consecutive in the whole array.

    Attributes:
      run: run(op, operands, params) returns the results.
      split: the split of the whole array; its method `index(dim)` returns the number of this part.
      batch_ndim: of the call.
      dim: the last split dimension among the rows. A run consists of this dimension and the
        dimensions after it, within the part.
    """

    run: Run
    split: Any
    batch_ndim: int
    dim: int

    @classmethod
    def of(cls, run: Run, split: Any, params: Any) -> Any:
        rows = row_dims(split, params)
        dim = max((dim for dim in rows if split.parts(dim) > 1), default=rows.start)
        return cls(run, split, params.batch_ndim, dim)

    @property
    def batch(self) -> tuple[int, ...]:
        """Sizes of the call's batch dimensions in this part."""
        return tuple(map(self.split.local, range(self.batch_ndim)))

    @property
    def outer(self) -> tuple[int, ...]:
        """Sizes of the row dimensions before `dim`: the part has one run for each index."""
        return tuple(map(self.split.local, range(self.batch_ndim, self.dim)))

    @property
    def count(self) -> int:
        """The number of runs of a batch in this part."""
        return math.prod(self.outer)

    @property
    def rows(self) -> int:
        """The number of rows of a run."""
        return math.prod(map(self.split.local, range(self.dim, len(self.split.shape) - 1)))

    def call(
        self, op: Op[Any], operands: Sequence[Any], params: Any, parts: int = 1
    ) -> tuple[Any, ...]:
        """Calls the op on this part; each of `parts` pieces of each run is a batch of its own."""
        x, count, at = operands[0], self.count * parts, self.batch_ndim
        roles = op.operand_roles(len(operands), params)
        space = space_of(x.shape, roles[0])
        placed = list(operands)
        if count > 1:
            runs = (*self.batch, count, self.rows // parts, space[-1])
            for i, role in enumerate(roles):
                operand = operands[i]
                if operand is None:
                    continue
                if role.broadcasts:
                    placed[i] = self.repeated(operand, 0, (1, *space)).reshape(runs)
                elif role.has_all_rows:
                    placed[i] = operand.reshape(shape_in(role, runs, at + 1))
                else:
                    shape = (*self.batch, count, *operand.shape[at:])
                    placed[i] = self.repeated(operand, at, shape)
            params = params.with_batch()
        start = op.counts_from(params)
        if start is not None:
            placed += [None] * (start + 1 - len(placed))  # its position may be after the last one
            placed[start] = self.starts(parts, params.index_cols, placed[start], x)
        results = self.run(op, tuple(placed), params)
        return tuple(
            result.reshape(shape_in(role, space, at))
            if result is not None and role.has_all_rows
            else result
            for result, role in zip(results, op.result_roles(params), strict=True)
        )

    def arithmetic(self, op: Op[Any], operands: Sequence[Any], params: Any) -> str:
        """Returns the dtype in which rows are added."""
        dtypes = {self.dtype(operand) for operand in operands if operand is not None}
        return "float64" if "float64" in {*op.result_dtypes(params), *dtypes} else "float32"

    def folded(self, nodes: Any, dtype: str) -> Any:
        """Sums the nodes `[*batch, nodes, d]` of all parts to `[*batch, d]`."""
        return folded(nodes, self.dtype(nodes), dtype, self.run, self.concatenate)

    def first_column(self, like: Any) -> Any:
        """Returns the number of this part's first column, an integer operand of the call."""
        return replace(self, dim=self.batch_ndim).starts(1, 0, None, like)

    @staticmethod
    @abstractmethod
    def dtype(array: Any) -> str:
        """Returns the name of an array's dtype."""

    @staticmethod
    @abstractmethod
    def concatenate(arrays: Any, dim: int) -> Any:
        """Concatenates arrays along a dimension."""

    @staticmethod
    @abstractmethod
    def repeated(array: Any, at: int, shape: tuple[int, ...]) -> Any:
        """Adds a new dimension `at` and repeats the array along it to a shape."""

    @abstractmethod
    def starts(self, parts: int, width: int, given: Any | None, like: Any) -> Any:
        """Returns the numbers of the first elements of all pieces of runs, plus `given`.

        Elements are numbered in rows of `width`. The result is an integer operand of the call, on
        the device of `like`. With several pieces it has one more batch dimension after the call's.
        """

    @abstractmethod
    def exchanged(self, nodes: Any, parts: int) -> Any:
        """Gathers the nodes of all parts to `[*batch, nodes, d]`, in the order of the rows.

        `nodes` has `parts` nodes of this part: `[*batch, d]` for one, `[*batch, nodes, d]` for
        several.
        """

    @abstractmethod
    def rows_added(self, rows: Any, dtype: str) -> Any:
        """Sums over the rows of all parts to `[*batch, d]`, for runs that share leaves."""

    @abstractmethod
    def of_all_columns(self, own: Any) -> Any:
        """Gathers `own` `[*rows, n]` of all parts of the columns to `[*rows, parts, n]`."""

    @abstractmethod
    def halves_of_columns(self, array: Any) -> Any:
        """Returns this part's columns of both halves, from its part of a Halves array."""

    @abstractmethod
    def halves_as_they_lie(self, array: Any) -> Any:
        """Inverts `halves_of_columns`."""

    @abstractmethod
    def own(self, table: Any) -> Any:
        """Returns the entry of a table, a NumPy array of integers, for this part of the columns."""

    @staticmethod
    @abstractmethod
    def padded(array: Any, before: Any, width: int) -> Any:
        """Pads the array with −0.0 to `width` columns, `before` of them in front."""

    @staticmethod
    @abstractmethod
    def taken(array: Any, columns: Any) -> Any:
        """Returns the columns of these numbers, given as a NumPy array or a result of `own`."""

    @staticmethod
    @abstractmethod
    def integers(array: Any) -> Any:
        """Converts floating numbers that are whole to integers."""


def call_on_part(
    kind: type[Part], run: Run, op: Op[Any], operands: Sequence[Any], params: Any, split: Any
) -> tuple[Any, ...]:
    """Calls the op on this part of the operands; `split` is the split of the space."""
    operands, ndim = tuple(operands), len(split.shape)
    if 0 in split.shape:  # no element has a position
        return run(op, operands, params)
    call = partial(_call_on_own_columns, kind, run, split=split)
    if ndim == 0 or split.parts(ndim - 1) == 1:
        return call(op, operands, params)
    part = kind.of(run, split, params)
    roles = op.operand_roles(len(operands), params)
    results = call(op, in_own_columns(part.halves_of_columns, roles, operands), params)
    return in_own_columns(part.halves_as_they_lie, op.result_roles(params), results)


def _call_on_own_columns(
    kind: type[Part], run: Run, op: Op[Any], operands: Sequence[Any], params: Any, split: Any
) -> tuple[Any, ...]:
    """Calls the op on this part; Halves operands have this part's columns of both halves."""
    operands, ndim = tuple(operands), len(split.shape)
    are_columns_split = ndim > 0 and split.parts(ndim - 1) > 1
    if are_columns_split and op.reductions(params, split.shape[-1]) is not None:
        part = kind.of(run, split, params)
        again = partial(_call_on_own_columns, kind, run, split=split)
        return call_on_columns(part, again, op, operands, params)
    is_split_in_rows = any(split.parts(dim) > 1 for dim in row_dims(split, params))
    sums_are_spread = adds_rows(op, params) and is_split_in_rows
    is_split = is_split_in_rows or are_columns_split
    if counts_elements(op, params) and is_split:
        # Elements are numbered in rows of the whole array's length.
        params = replace(params, index_cols=params.index_cols or split.shape[-1])
    elif not sums_are_spread:
        return run(op, operands, params)
    part = kind.of(run, split, params)
    if not sums_are_spread:
        return part.call(op, operands, params)
    return _with_sums(part, op, operands, params)


def _with_sums(part: Any, op: Op[Any], operands: tuple[Any, ...], params: Any) -> tuple[Any, ...]:
    """Calls the op; its sums over rows include the rows of all parts."""
    dtypes, dtype = op.result_dtypes(params), part.arithmetic(op, operands, params)
    roles = op.result_roles(params)
    sums = [i for i, role in enumerate(roles) if role is Role.ROW and dtypes[i] is not None]
    results: list[Any] = [None] * len(dtypes)

    def with_sums_in(own: str | None) -> Any:
        return [own if i in sums else given for i, given in enumerate(dtypes)]

    if part.rows % LEAF_ROWS:
        others = with_sums_in(None)
        if any(others):
            results = list(part.call(op, operands, op.with_dtypes(params, others)))
        unrounded = part.call(op, operands, op.summands(params, dtype))
        present = [rows for rows in unrounded if rows is not None]
        for i, rows in zip(sums, present, strict=True):
            results[i] = part.rows_added(rows, dtypes[i])
        return tuple(results)
    leaves = part.rows // LEAF_ROWS
    nodes = leaves // (leaves & -leaves)  # the fewest that are complete subtrees
    summed = op.with_dtypes(params, with_sums_in(dtype))
    results = list(part.call(op, operands, summed, parts=nodes))
    for i in sums:
        results[i] = part.folded(part.exchanged(results[i], nodes), dtypes[i])
    return tuple(results)
