"""Select operations (where, minimum, maximum, max) in reverse mode.

A select sends 0 to the operand that it did not choose. The operation that computed this operand may
have an infinite or NaN partial derivative just there, and 0 times that is NaN. So a cotangent
carries the condition of its select with it, and the select is applied after the last such
operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from bridge.lang import functions as f
from bridge.lang import reductions, roles
from bridge.lang.program import COLUMNS, Node, Program, constant_of, sole_column
from bridge.lang.values import Value


@dataclass(frozen=True)
class Condition:
    """The condition for a select to choose an operand: `truth` is True, or False if not `holds`."""

    truth: Value
    holds: bool = True

    def same(self, other: Condition) -> bool:
        return self.truth.number == other.truth.number and self.holds == other.holds

    def is_among(self, others: Conditions) -> bool:
        return any(map(self.same, others))

    @property
    def is_one_column(self) -> bool:
        """True if the comparison itself shows that it holds in at most one column of a row."""
        column = sole_column(self.truth.builder.nodes, self.truth.number)
        return self.holds and column is not None

    def as_truth(self) -> Value:
        return self.truth if self.holds else ~self.truth

    def selected(self, value: Value | float) -> Value:
        return f.where(self.truth, value, 0.0) if self.holds else f.where(self.truth, 0.0, value)


Conditions = tuple[Condition, ...]  # a conjunction; the empty tuple holds everywhere


def both(a: Conditions, b: Conditions) -> Conditions:
    return a + tuple([one for one in b if not one.is_among(a)])


def joined(conditions: Conditions) -> Condition:
    """Joins one or more conditions into one, conditions of whole rows first: they cost little."""
    first, *others = sorted(conditions, key=lambda one: one.truth.axes & COLUMNS)
    for other in others:
        first = Condition(first.as_truth() & other.as_truth())
    return first


def selected(value: Value | float, conditions: Conditions) -> Value | float:
    return joined(conditions).selected(value) if conditions else value


def either(a: Conditions, b: Conditions) -> Conditions:
    """Returns the conditions for the places where a or b holds."""
    if not a or not b:
        return ()
    one, other = joined(a), joined(b)
    if one.truth.number == other.truth.number:
        return (one,) if one.holds == other.holds else ()
    return (Condition(one.as_truth() | other.as_truth()),)


@dataclass(frozen=True)
class Cotangent:
    """A value where all its conditions hold, and 0 elsewhere, even where the value is NaN."""

    value: Value
    conditions: Conditions = ()

    @property
    def axes(self) -> int:
        axes = self.value.axes
        for condition in self.conditions:
            axes |= condition.truth.axes
        return axes

    def selected(self) -> Value:
        return selected(self.value, self.conditions)  # type: ignore[return-value]

    def plus(self, other: Cotangent, late: bool) -> Cotangent:
        """Adds two cotangents; a condition that both share is applied once, to the sum.

        If `late`, the sum keeps the condition that one of the two counts: a later factor may be
        infinite or NaN, so the select must be applied again.
        """
        shared = tuple([one for one in self.conditions if one.is_among(other.conditions)])
        own, its = (
            tuple([one for one in each.conditions if not one.is_among(shared)])
            for each in (self, other)
        )
        return Cotangent(
            _sum(self.value, own, other.value, its),
            (*shared, *(either(own, its) if late else ())),
        )

    def summed(self, block: int = 0) -> Cotangent:
        """Sums along the row, or in each block of `block` columns.

        The sum counts where a condition holds at some place of the row or block.
        """
        along = tuple([one for one in self.conditions if one.truth.axes & COLUMNS])
        beside = tuple([one for one in self.conditions if not one.truth.axes & COLUMNS])
        x = selected(self.value, along)
        total = f.block_sum(x, block) if block else f.sum(x)
        if along:
            holds = joined(along).selected(1.0)
            most = f.block_max(holds, block) if block else f.max(holds)
            beside += (Condition(most > 0.0),)
        return Cotangent(total, beside)


def conditions(node: Node, x: Sequence[Value]) -> Sequence[Conditions]:
    """Returns for each input of a node the conditions for the node's value to depend on it."""
    if node.operation == "where":
        return [(), (Condition(x[0]),), (Condition(x[0], holds=False),)]
    if node.operation in ("minimum", "maximum"):
        first = is_first(node.operation, x)
        return [(Condition(first),), (Condition(first, holds=False),)]
    if node.operation == "max":
        return [(Condition(f.column() == f.argmax(x[0])),)]
    if node.operation == "block_max":
        return [(Condition(f.column() == reductions.block_argmax(x[0], node.static)),)]
    return [()] * len(x)


def uncut(program: Program, values: Sequence[Value], number: int) -> int:
    """Returns the node whose value a node has in the columns of a segment.

    The other columns count nowhere, so cotangents go to that node itself. They are then added in
    the order in which those of a row without other columns are.
    """
    node = program.nodes[number]
    while node.operation == "where":
        truth = values[node.inputs[0]]
        if not truth.builder.is_within(truth):
            break
        number = node.inputs[1]
        node = program.nodes[number]
    return number


def _sum(value: Value, own: Conditions, other: Value, its: Conditions) -> Value:
    """Adds two values, each where its conditions hold.

    A term that counts in one column of each row is added in that column only.
    """
    for a, met, b, others in ((value, own, other, its), (other, its, value, own)):
        alone = tuple([one for one in met if one.is_one_column])
        if alone:
            rest = tuple([one for one in met if not one.is_one_column])
            everywhere = selected(b, others)
            return f.where(joined(alone).truth, selected(a, rest) + everywhere, everywhere)
    return selected(value, own) + selected(other, its)  # type: ignore[return-value]


# Operations with finite partial derivatives for any operands; other derivatives may be NaN.
_BOUNDED = frozenset(
    (
        *("where", "minimum", "maximum", "max", "rounded", "neg", "add", "sub", "sum", "abs"),
        *("block_max", "block_sum"),
    )
)


def select_late(program: Program, moving: Sequence[bool]) -> list[bool]:
    """True for each node whose cotangent may yet be multiplied by an infinite or NaN derivative."""
    late: list[bool] = []
    for number, node in enumerate(program.nodes):
        late.append(
            moving[number]
            and node.operation != "operand"
            and (not _is_bounded(program, node) or any(late[i] for i in node.inputs))
        )
    return late


def _is_bounded(program: Program, node: Node) -> bool:
    if node.operation in _BOUNDED:
        return True
    if node.operation not in ("mul", "div"):
        return False

    def is_number(place: int) -> bool:
        factor = program.nodes[node.inputs[place]]
        if factor.operation == "constant":
            return isfinite(constant_of(factor)) and (place == 0 or constant_of(factor) != 0.0)
        if factor.operation == "float":  # the columns of a segment
            factor = program.nodes[factor.inputs[0]]
            of_operand = factor.operation == "operand"
            return of_operand and program.operands[factor.static[0]].role is roles.Segments
        return factor.operation == "columns"

    return is_number(1) or (node.operation == "mul" and is_number(0))


def is_first(operation: str, x: Sequence[Value]) -> Value:
    """True where the first of two values is the minimum or maximum, or is NaN."""
    before = x[0] <= x[1] if operation == "minimum" else x[1] <= x[0]
    return before | (x[0] != x[0])
