"""The function of an op of segments, written once over the functions of arrays of a framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.lang import roles
from bridge.lang.segments import of_rows, place_of_segments, with_longest
from bridge.lang.tracing import Declaration, declared
from bridge.ops.definition import Spec
from bridge.ops.form import dtypes_of_role
from bridge.ops.segments import (
    Plan,
    check_ends,
    check_lengths,
    check_longest,
    check_spec,
)


class Moves(Protocol):
    """Functions of arrays that move tokens, the same in NumPy, PyTorch and JAX."""

    def moved(self, x: Any, to: Any, back: Any, marks: bool) -> Any:
        """Returns x `[..., m]` at the places `to` `[k]`, differentiable.

        Args:
          back: the place in the result of each number of x, `[m]`; -1 is nowhere.
          marks: NaN at a place of -1, else 0.
        """

    def taken(self, x: Any, places: Any) -> Any:
        """Does the same for integers and truth values, 0 at a place of -1."""

    def joined(self, arrays: Sequence[Any]) -> Any:
        """Joins arrays along the last dimension."""

    def parts(self, x: Any, sizes: Sequence[Any]) -> Sequence[Any]:
        """Cuts an array along the last dimension; the gradient joins, and adds nothing."""

    def spread(self, x: Any, shape: Sequence[int]) -> Any:
        """Broadcasts an array."""

    def columns(self, table: Any, count: Any) -> Any:
        """Returns `[..., count]`, the numbers of a table `[]` or `[..., 1]` in all columns.

        The gradient is that of a `Table`.
        """

    def rows_of_table(self, table: Any, positions: Any) -> Any:
        """Returns the rows `[k, d]` of a table at `positions` `[k]`, NaN at -1."""


@dataclass
class OpOfRows:
    """The op that computes the rows, for the entries of a framework."""

    declaration: Declaration


def _columns(like: roles.Full, table: roles.Table) -> Any:
    return table


# Writes a table `[..., 1]` into all columns of `like`. The gradient adds up the columns of tokens,
# in the order of tokens: rows of segments have hidden columns, and other rows in each framework.
COLUMNS = OpOfRows(declared(_columns))


@dataclass(frozen=True)
class Segmented:
    """The declarations of an op of segments.

    Attributes:
      public: with the signature of its functions; rows: as the kernels see it.
      place: the place of the operand with the ends.
    """

    public: Declaration
    rows: Declaration
    place: int

    @classmethod
    def of(cls, declaration: Declaration) -> Segmented | None:
        """Returns the declarations; None for an op without segments."""
        place = place_of_segments(declaration)
        if place < 0:
            return None
        is_cut = declaration.parameters[place].role is roles.Segments
        public = with_longest(declaration) if is_cut else declaration
        return cls(public, of_rows(declaration, place), place)

    @property
    def op_of_rows(self) -> OpOfRows:
        return OpOfRows(self.rows)

    @property
    def is_cut(self) -> bool:
        """True if rows are segments; else rows are tokens that have a position."""
        return self.public.parameters[self.place].role is roles.Segments

    @property
    def ends(self) -> str:
        return self.public.parameters[self.place].name

    def divided(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Returns the static arguments of the rows, and the longest segment or None."""
        return (tuple(values[:-1]), values[-1]) if self.is_cut else (tuple(values), None)

    def total(self, specs: Sequence[Spec | None]) -> int:
        """Returns the number of tokens, of operands that fit."""
        first = specs[0]
        assert first is not None
        return first.shape[-1 if self.is_cut else 0]

    def other_rows(self, specs: Sequence[Spec | None]) -> int:
        first = specs[0]
        assert first is not None
        return math.prod(first.shape[:-1])

    def check(self, function: str, specs: Sequence[Spec | None], longest: Any) -> None:
        """Raises TypeError or ValueError for operands that do not fit; None is absent."""
        check_longest(function, longest)
        for parameter, spec in zip(self.public.parameters, specs, strict=True):
            if spec is None or parameter.role in (*roles.OF_SEGMENTS, roles.Integer):
                continue
            of_table = parameter.role is roles.PerPosition
            dtypes = dtypes_of_role(roles.Table if of_table else parameter.role)
            if spec.dtype not in dtypes:
                raise TypeError(
                    f"{function}: {parameter.name} has dtype {spec.dtype}, expected one of "
                    f"{', '.join(dtypes)}"
                )
        first, ends = specs[0], specs[self.place]
        assert first is not None
        assert ends is not None
        check_spec(function, self.ends, ends)
        least = 1 if self.is_cut else 2
        if len(first.shape) < least:
            raise ValueError(
                f"{function}: {self.public.parameters[0].name} has shape {list(first.shape)}, "
                f"expected at least {'one dimension' if least == 1 else 'two dimensions'}"
            )
        for parameter, spec in zip(self.public.parameters, specs, strict=True):
            if spec is not None:
                self._check_shape(function, parameter, spec, first, ends.shape[0] - 1)

    def check_known(
        self, function: str, specs: Sequence[Spec | None], ends: Any, longest: Any
    ) -> None:
        """Raises ValueError for ends whose values do not fit; they are a NumPy array."""
        first = specs[0]
        assert first is not None
        name = self.public.parameters[0].name
        which = "columns" if self.is_cut else "first dimension"
        dimension = f"the {which} of {name}: {name} has shape {list(first.shape)}"
        check_ends(function, self.ends, ends, self.total(specs), dimension)
        if longest is not None:
            check_lengths(function, self.ends, ends, longest, "max_seqlen")
        for parameter, spec in zip(self.public.parameters, specs, strict=True):
            if parameter.role is roles.PerPosition and spec is not None:
                check_lengths(
                    function, self.ends, ends, spec.shape[0], f"the rows of {parameter.name}"
                )

    def _check_shape(
        self, function: str, parameter: Any, spec: Spec, first: Spec, count: int
    ) -> None:
        role, expected, rule = parameter.role, "", ""
        if role is roles.PerPosition:
            if len(spec.shape) != 2:
                expected = "two dimensions, [positions, d]"
        elif not self.is_cut:
            return  # the op of rows checks the others
        elif role is roles.Full and not spec.has_shape(first.shape):
            expected = f"{list(first.shape)}"
        elif role is roles.Row and not spec.has_shape(first.shape[-1:]):
            expected = f"{list(first.shape[-1:])}"
        elif issubclass(role, roles.PerRow) and not spec.has_shape((*first.shape[:-1], count)):
            expected = f"{[*first.shape[:-1], count]}"
            rule = f", one number for each of {count} segments"
        elif role in (roles.Table, roles.Mask) and not spec.broadcasts_to(first.shape):
            expected = f"one that broadcasts to {list(first.shape)}"
        if expected:
            raise ValueError(
                f"{function}: {parameter.name} has shape {list(spec.shape)}, expected "
                f"{expected}{rule}: {self.public.parameters[0].name} has shape {list(first.shape)}"
            )

    def run(self, moves: Moves, entry: Any, operands: Sequence[Any], values: Any, at: Any) -> Any:
        """Returns the results of the op.

        Args:
          entry: run(operands, None, *static) computes the op of rows.
          operands: checked; None is absent.
          at: the plan, or the position of each token.
        """
        if self.is_cut:
            return self._of_segments(moves, entry, operands, values, at)
        return self._of_tokens(moves, entry, operands, values, at)

    def _of_tokens(
        self, moves: Moves, entry: Any, operands: Sequence[Any], values: Any, positions: Any
    ) -> Any:
        first = operands[0]
        total, *others = first.shape[:-1]
        given = []
        for parameter, operand in zip(self.public.parameters, operands, strict=True):
            if parameter.role is roles.Positions:
                column = positions.reshape(total, *(1 for _ in others))
                operand = moves.spread(column, (total, *others))
            elif parameter.role is roles.PerPosition and operand is not None:
                rows = moves.rows_of_table(operand, positions)
                operand = rows.reshape(total, *(1 for _ in others), operand.shape[-1])
            given.append(operand)
        return entry.run(tuple(given), None, *values)

    def _of_segments(
        self, moves: Moves, entry: Any, operands: Sequence[Any], values: Any, plan: Plan
    ) -> Any:
        *other, total = operands[0].shape
        operands = [
            moves.columns(operand, total)
            if parameter.role is roles.Table and operand is not None and _is_constant(operand)
            else operand
            for parameter, operand in zip(self.public.parameters, operands, strict=True)
        ]
        columns = [
            self._pieces(moves, parameter.role, operand, plan, other)
            for parameter, operand in zip(self.public.parameters, operands, strict=True)
        ]
        found: list[Any] = []
        for which, _ in enumerate(plan.sizes):
            rows = tuple([pieces[which] for pieces in columns])
            found.append(entry.run(rows, None, *values))
        is_tuple = isinstance(found[0], tuple)
        each = [result if is_tuple else (result,) for result in found]
        results = tuple(
            self._scattered(moves, parts, plan, other) for parts in zip(*each, strict=True)
        )
        return results if is_tuple else results[0]

    def _pieces(self, moves: Moves, role: Any, operand: Any, plan: Plan, other: Any) -> Any:
        """Returns the part of an operand in each array of rows."""
        if operand is None or role is roles.Integer:
            return [operand for _ in plan.sizes]
        if role is roles.Mask and _is_constant(operand):
            part = operand.reshape(*operand.shape, 1) if operand.shape else operand
            return [part for _ in plan.sizes]
        if role is roles.Segments:
            lengths = moves.parts(plan.lengths, [count for count, _ in plan.sizes])
            return [moves.spread(part, (*other, *part.shape)) for part in lengths]
        is_one = issubclass(role, roles.PerRow)
        to, back = (plan.segments, plan.rows) if is_one else (plan.tokens, plan.places)
        if role.integer or role is roles.Mask:
            gathered = moves.taken(operand, to)
        else:
            gathered = moves.moved(operand, to, back, False)
        lead = gathered.shape[:-1]
        if is_one:
            return moves.parts(gathered, [count for count, _ in plan.sizes])
        parts = moves.parts(gathered, [count * columns for count, columns in plan.sizes])
        return [part.reshape(*lead, *size) for part, size in zip(parts, plan.sizes, strict=True)]

    def _scattered(
        self, moves: Moves, parts: Sequence[Any], plan: Plan, other: Sequence[int]
    ) -> Any:
        """Returns a result at the tokens, or at the segments if it has one number a row."""
        is_full = len(parts[0].shape) == len(other) + 2
        flat = [_flat(part, len(other)) for part in parts]
        whole = flat[0] if len(flat) == 1 else moves.joined(flat)
        to, back = (plan.places, plan.tokens) if is_full else (plan.rows, plan.segments)
        return moves.moved(whole, to, back, True)


def _is_constant(operand: Any) -> bool:
    """True for a table or mask with the same numbers for all tokens."""
    return not operand.shape or operand.shape[-1] == 1


def _flat(part: Any, ndim: int) -> Any:
    """Returns `[*others, rows * columns]` of `[*others, rows, columns]`."""
    sizes = part.shape[ndim:]
    return part.reshape(*part.shape[:ndim], math.prod(sizes)) if len(sizes) == 2 else part
