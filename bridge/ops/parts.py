"""A call on one part of split arrays, with the bits of the call on the whole arrays.

Five things depend on where a part lies: the numbers by which elements are counted, which keys a
query sees under the causal rule, in which order rows are added up, what is reduced along a row
(`columns`; docs/sharding.md), and which columns of two halves belong together (`halves`). What a
framework must do for them is in its subclass of `Part`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bridge.ops.columns import call_on_columns
from bridge.ops.definition import Role, shape_in, space_of
from bridge.ops.halves import in_own_columns
from bridge.ops.splitting import adds_rows, counts_elements, row_dims
from bridge.ops.sums import LEAF_ROWS, folded

Run = Callable[[Any, tuple[Any, ...], Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Part(ABC):
    """The rows of a part as runs that are consecutive in the whole array.

    Attributes:
      run: takes an op, operands and parameters to the results.
      split: of the whole array; it has a method `index(dim)`, the number of this part.
      batch_ndim: of the call.
      dim: the last split dimension of rows: a run is what the part has of it and of all behind.
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
        """Sizes of the call's own batch in this part."""
        return tuple(map(self.split.local, range(self.batch_ndim)))

    @property
    def outer(self) -> tuple[int, ...]:
        """Sizes of the dimensions of rows in front of `dim`: the part's runs."""
        return tuple(map(self.split.local, range(self.batch_ndim, self.dim)))

    @property
    def count(self) -> int:
        """How many runs a batch has in this part."""
        return math.prod(self.outer)

    @property
    def rows(self) -> int:
        """Rows of a run."""
        return math.prod(map(self.split.local, range(self.dim, len(self.split.shape) - 1)))

    def call(
        self, op: Any, operands: Sequence[Any], params: Any, parts: int = 1
    ) -> tuple[Any, ...]:
        """The call with each part of each run as a batch of its own, if there are several."""
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
            placed += [None] * (start + 1 - len(placed))  # it may be behind those that were given
            placed[start] = self.starts(parts, params.index_cols, placed[start], x)
        results = self.run(op, tuple(placed), params)
        return tuple(
            result.reshape(shape_in(role, space, at))
            if result is not None and role.has_all_rows
            else result
            for result, role in zip(results, op.result_roles(params), strict=True)
        )

    def arithmetic(self, op: Any, operands: Sequence[Any], params: Any) -> str:
        """The dtype in which rows are added up."""
        dtypes = {self.dtype(operand) for operand in operands if operand is not None}
        return "float64" if "float64" in {*op.result_dtypes(params), *dtypes} else "float32"

    def folded(self, nodes: Any, dtype: str) -> Any:
        """`[*batch, d]` of the nodes `[*batch, nodes, d]` of all parts."""
        return folded(nodes, self.dtype(nodes), dtype, self.run, self.concatenate)

    def first_column(self, like: Any) -> Any:
        """The number of this part's first column, an integer operand of the call."""
        return replace(self, dim=self.batch_ndim).starts(1, 0, None, like)

    @staticmethod
    @abstractmethod
    def dtype(array: Any) -> str:
        """The name of its dtype."""

    @staticmethod
    @abstractmethod
    def concatenate(arrays: Any, dim: int) -> Any:
        """The arrays side by side along a dimension."""

    @staticmethod
    @abstractmethod
    def repeated(array: Any, at: int, shape: tuple[int, ...]) -> Any:
        """The array with a new dimension `at`, repeated along it to a shape."""

    @staticmethod
    @abstractmethod
    def hidden(last: Any, queries: int, keys: int, like: Any) -> Any:
        """Booleans `[queries, keys]`: which keys are hidden.

        The first query sees those up to the number `last`, each other one more than that before it.
        """

    @abstractmethod
    def starts(self, parts: int, width: int, given: Any | None, like: Any) -> Any:
        """The numbers of the first elements of all parts of runs, in rows of `width`, plus `given`.

        An integer operand of the call with, or without, another dimension of batches behind its
        own, on the device of `like`.
        """

    @abstractmethod
    def exchanged(self, nodes: Any, parts: int) -> Any:
        """`[*batch, nodes, d]` of all parts in the order of the rows, from those of this part.

        These are `[*batch, d]` where there is one, `[*batch, nodes, d]` where there are several.
        """

    @abstractmethod
    def rows_added(self, rows: Any, dtype: str) -> Any:
        """`[*batch, d]`: sums over the rows of all parts, whose runs share leaves of the tree."""

    @abstractmethod
    def of_all_columns(self, own: Any) -> Any:
        """`[*rows, parts, n]`: what all parts of the columns have for `own` `[*rows, n]`."""

    @abstractmethod
    def halves_of_columns(self, array: Any) -> Any:
        """This part's columns of both halves, from its part of the array in halves."""

    @abstractmethod
    def halves_as_they_lie(self, array: Any) -> Any:
        """The inverse of `halves_of_columns`."""

    @abstractmethod
    def own(self, table: Any) -> Any:
        """What a table, a NumPy array of integers, has for this part of the columns."""

    @staticmethod
    @abstractmethod
    def padded(array: Any, before: Any, width: int) -> Any:
        """The array with so many columns, −0.0 in front of its own and behind them."""

    @staticmethod
    @abstractmethod
    def taken(array: Any, columns: Any) -> Any:
        """The array's columns of these numbers, a NumPy array or what `own` gave."""

    @staticmethod
    @abstractmethod
    def integers(array: Any) -> Any:
        """Floating numbers that are integers as such."""


def call_on_part(
    kind: type[Part], run: Run, op: Any, operands: Sequence[Any], params: Any, split: Any
) -> tuple[Any, ...]:
    """The call on this part of the operands; `split` is that of the space."""
    operands, ndim = tuple(operands), len(split.shape)
    call = partial(_call_on_own_columns, kind, run, split=split)
    if ndim == 0 or split.parts(ndim - 1) == 1:
        return call(op, operands, params)
    part = kind.of(run, split, params)
    roles = op.operand_roles(len(operands), params)
    results = call(op, in_own_columns(part.halves_of_columns, roles, operands), params)
    return in_own_columns(part.halves_as_they_lie, op.result_roles(params), results)


def _call_on_own_columns(
    kind: type[Part], run: Run, op: Any, operands: Sequence[Any], params: Any, split: Any
) -> tuple[Any, ...]:
    """The call on this part; of arrays in halves it has its own columns of both."""
    operands, ndim = tuple(operands), len(split.shape)
    free = op.without_causal_rule(params)
    are_columns_split = ndim > 0 and split.parts(ndim - 1) > 1
    if are_columns_split and op.reductions(params, split.shape[-1]) is not None:
        part = kind.of(run, split, params)
        again = partial(_call_on_own_columns, kind, run, split=split)
        hidden = None if free is None else _hidden_keys(kind, operands[0], split)
        return call_on_columns(part, again, op, operands, params, hidden)
    if free is not None and split.parts(ndim - 2) > 1:
        return run(op, _with_hidden_keys(kind, op, operands, free, split), free)
    is_split_in_rows = any(split.parts(dim) > 1 for dim in row_dims(split, params))
    sums_are_spread = adds_rows(op, params) and is_split_in_rows
    is_split = is_split_in_rows or are_columns_split
    if counts_elements(op, params) and is_split:
        # Elements are counted in rows of this length, that of the whole array.
        params = replace(params, index_cols=params.index_cols or split.shape[-1])
    elif not sums_are_spread:
        return run(op, operands, params)
    part = kind.of(run, split, params)
    if not sums_are_spread:
        return part.call(op, operands, params)
    return _with_sums(part, op, operands, params)


def _with_sums(part: Any, op: Any, operands: tuple[Any, ...], params: Any) -> tuple[Any, ...]:
    """The call, whose sums over rows are those of the rows of all parts."""
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


def _with_hidden_keys(
    kind: type[Part], op: Any, operands: tuple[Any, ...], params: Any, split: Any
) -> tuple[Any, ...]:
    """The operands of the same call on some of the queries, without the rule that counts these."""
    roles = op.operand_roles(op.operand_count(len(operands)), params)
    if Role.MASK not in roles:
        return operands
    at = roles.index(Role.MASK)
    mask = (*operands, *[None] * len(roles))[at]
    hidden = _hidden_keys(kind, operands[0], split)
    if mask is not None:
        hidden = hidden | (mask != 0)
    return (*operands[:at], hidden, *operands[at + 1 :])


def _hidden_keys(kind: type[Part], x: Any, split: Any) -> Any:
    """Booleans `[queries, keys]` of this part: the keys that the causal rule hides."""
    ndim = len(split.shape)
    queries, keys = split.shape[-2:]
    own_queries, own_keys = x.shape[-2:]
    last = split.index(ndim - 2) * own_queries + (keys - queries) - split.index(ndim - 1) * own_keys
    return kind.hidden(last, own_queries, own_keys, x)
