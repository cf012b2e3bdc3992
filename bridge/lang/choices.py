"""Choices (where, minimum, maximum, max) in reverse mode: where a cotangent counts.

A choice sends 0 to what it did not choose. Below it may stand an operation whose partial derivative
is infinite or NaN just there, and 0 times that is NaN: so the cotangent goes on with the condition
of its choice, and is chosen behind the last such operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from bridge.lang import functions as f
from bridge.lang.program import COLUMNS, Node, Program, constant_of
from bridge.lang.values import Value


@dataclass(frozen=True)
class Condition:
    """Where a choice fell on something: where a truth value holds, or where it does not."""

    truth: Value
    holds: bool = True

    def same(self, other: Condition) -> bool:
        return self.truth.number == other.truth.number and self.holds == other.holds

    def as_truth(self) -> Value:
        return self.truth if self.holds else ~self.truth

    def selected(self, value: Value | float) -> Value:
        return f.where(self.truth, value, 0.0) if self.holds else f.where(self.truth, 0.0, value)

    def of_row(self) -> Condition:
        """Where it holds at any place of the row."""
        if not self.truth.axes & COLUMNS:
            return self
        return Condition(f.max(self.selected(1.0)) > 0.0)


def both(a: Condition | None, b: Condition | None) -> Condition | None:
    """None is everywhere."""
    if a is None or b is None:
        return b if a is None else a
    return a if a.same(b) else Condition(a.as_truth() & b.as_truth())


def either(a: Condition | None, b: Condition | None) -> Condition | None:
    if a is None or b is None:
        return None
    if a.truth.number == b.truth.number:
        return a if a.holds == b.holds else None
    return Condition(a.as_truth() | b.as_truth())


@dataclass(frozen=True)
class Cotangent:
    """A value where its condition is met, and 0 elsewhere, whatever the value is there."""

    value: Value
    condition: Condition | None = None

    @property
    def axes(self) -> int:
        return self.value.axes | (0 if self.condition is None else self.condition.truth.axes)

    def selected(self) -> Value:
        return self.value if self.condition is None else self.condition.selected(self.value)

    def plus(self, other: Cotangent) -> Cotangent:
        one, two = self.condition, other.condition
        if one is not None and two is not None and one.same(two):
            return Cotangent(self.value + other.value, one)
        return Cotangent(self.selected() + other.selected(), either(one, two))


def conditions(node: Node, x: Sequence[Value]) -> Sequence[Condition | None]:
    """Where a node's value depends on each of its inputs."""
    if node.operation == "where":
        return [None, Condition(x[0]), Condition(x[0], holds=False)]
    if node.operation in ("minimum", "maximum"):
        first = is_first(node.operation, x)
        return [Condition(first), Condition(first, holds=False)]
    if node.operation == "max":
        return [Condition(f.column() == f.argmax(x[0]))]
    return [None] * len(x)


# Their partial derivatives are bounded, for all numbers but NaN.
_BOUNDED = frozenset({
    *("where", "minimum", "maximum", "max", "rounded", "neg", "add", "sub", "sum", "abs"),
    *("tanh", "sigmoid", "silu", "softplus", "erf", "logsumexp", "logsumexp_rest"),
})  # fmt: skip


def select_late(program: Program, moving: Sequence[bool]) -> list[bool]:
    """Whether a cotangent may yet be multiplied by what is infinite or NaN, for each node."""
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
        return factor.operation == "columns"

    return is_number(1) or (node.operation == "mul" and is_number(0))


def is_first(operation: str, x: Sequence[Value]) -> Value:
    """Whether the first of two is the minimum or maximum; where one is NaN, it is that one."""
    before = x[0] <= x[1] if operation == "minimum" else x[1] <= x[0]
    return before | (x[0] != x[0])
