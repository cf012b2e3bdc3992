"""The values of a run, and the search for equal ones."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.compared.recording.fingerprints import EQUAL, Print

# Operations that take numbers out of an operand.
SELECTIONS = {"slice", "split", "dynamic_slice", "gather", "split_with_sizes", "select", "unbind",
              "narrow", "index_select", "index"}  # fmt: skip


@dataclass(slots=True)
class Value:
    """A value of a run.

    Attributes:
      index: its place in the order of execution.
      op: the name of the operation that made it.
      parents: indices of the values that it was computed from.
      place: the key of its source, for the side's own use.
      shape: the shape of the array.
      printed: its fingerprint; None for masks, which pass on what is behind them.
      kind: "leaf" (a parameter, an input, a constant), "move" (the numbers of its parent in
        another arrangement), "fine" (a step inside of an operation) or "op".
      name: the path of a parameter, or a recorded name.
    """

    index: int
    op: str
    parents: tuple[int, ...]
    place: Any
    shape: tuple[int, ...]
    printed: Print | None
    kind: str = "op"
    name: str = ""

    @property
    def tells(self) -> bool:
        """True if the value can be paired at all."""
        return self.printed is not None and not self.printed.is_plain


@dataclass
class Table:
    """Values by size and Σ|x|, to find those that are equal to a given one."""

    values: Iterable[Value]
    _sizes: dict[int, list[tuple[float, int, Value]]] = field(init=False)

    def __post_init__(self) -> None:
        sizes: dict[int, list[tuple[float, int, Value]]] = defaultdict(list)
        for value in self.values:
            if value.tells:
                assert value.printed is not None
                sizes[value.printed.size].append((value.printed.sums[2], value.index, value))
        self._sizes = {size: sorted(found, key=lambda v: v[:2]) for size, found in sizes.items()}

    def equal_to(self, printed: Print, tolerance: float = EQUAL) -> Iterator[Value]:
        """Yields the values with the same numbers."""
        found = self._sizes.get(printed.size, [])
        total = printed.sums[2]
        first = bisect.bisect_left(found, (total * (1 - 2 * tolerance), -1))
        for sum_, _, value in itertools.islice(found, first, None):
            if sum_ > total * (1 + 2 * tolerance):
                return
            assert value.printed is not None
            if value.printed.equals(printed, tolerance):
                yield value

    def partner(self, printed: Print, tolerance: float = EQUAL) -> Value | None:
        """Returns a value that this one is paired with.

        Two arrays of the same sizes must agree in the marginals of their axes too. So a value that
        was split into heads in another order is not paired with the right one.
        """
        other = None
        has_shape = False
        for value in self.equal_to(printed, tolerance):
            assert value.printed is not None
            if value.printed.shape == printed.shape:
                has_shape = True
                if value.printed.has_axes_of(printed, tolerance):
                    return value
            elif value.printed.may_be_reshaped(printed, tolerance):
                other = other or value
        return None if has_shape else other


def paired(values: Sequence[Value], table: Table) -> dict[int, int]:
    """Returns the partner of each value that has one.

    A value with the right numbers in a wrong order stays unpaired in another shape as well, in
    which the order of its numbers is not compared.
    """
    found = {}
    misplaced: set[int] = set()
    for value in values:
        if not value.tells:
            continue
        assert value.printed is not None
        partner = table.partner(value.printed)
        if partner is None:
            if next(table.equal_to(value.printed), None) is not None:
                misplaced.add(value.index)
            continue
        assert partner.printed is not None
        is_reshaped = partner.printed.shape != value.printed.shape
        if is_reshaped and value.kind == "move" and not misplaced.isdisjoint(value.parents):
            misplaced.add(value.index)
        else:
            found[value.index] = partner.index
    return found


def dead(
    values: Sequence[Value],
    pairs: Iterable[int],
    wrong: Iterable[int],
    settled: set[int],
    replaced: Container[int] = (),
) -> list[int]:
    """Returns the values that are not paired, nor is anything computed from them, in order.

    Args:
      values: all values of a side.
      pairs: those that are paired.
      wrong: wrong outputs. Only values count from which one of them was computed.
      settled: values of earlier parts, and those that took the place of others. A settled value
        says nothing about the values that it was computed from.
      replaced: values that others took the place of. They depend on nothing any more.
    """
    alive, ends = set(pairs), set(wrong)
    behind = set(ends)
    pieces: dict[int, bool] = {}  # True for values of which all pieces are alive
    for value in reversed(values):
        if pieces.get(value.index) and value.index not in ends:
            alive.add(value.index)
        is_alive = value.index in alive and value.index not in settled
        for parent in value.parents:
            if is_piece(value, values[parent]):
                if is_alive or value.index in behind:  # others tell nothing
                    pieces[parent] = pieces.get(parent, True) and is_alive
            elif is_alive:
                alive.add(parent)
        if value.index in behind and value.index not in replaced:
            behind.update(value.parents)
    return [
        value.index
        for value in values
        if value.index in behind
        and value.index not in alive
        and value.index not in settled
        and value.tells
        and value.kind != "leaf"
    ]


def is_piece(value: Value, whole: Value) -> bool:
    """True for a value that holds some of the numbers of another one and no others."""
    a, b = value.printed, whole.printed
    is_selected = value.op in SELECTIONS or value.op.startswith("scan[")  # an iteration's row
    return is_selected and a is not None and b is not None and a.size < b.size


def frontier(values: Sequence[Value], deads: Sequence[int], joined: Container[int]) -> list[int]:
    """Returns the dead values that were computed from no dead one."""
    below: set[int] = set()
    first = []
    marked = set(deads)
    for value in values:
        if value.index in joined:
            continue
        if any(parent in below for parent in value.parents):
            below.add(value.index)
        elif value.index in marked:
            below.add(value.index)
            first.append(value.index)
    return first


def between(values: Sequence[Value], last: int, span: int) -> set[int]:
    """Returns a value and those that it was computed from, at most `span` places before it."""
    behind = {last}
    for k in range(last, max(last - span, 0) - 1, -1):
        if k in behind:
            behind.update(p for p in values[k].parents if p >= last - span)
    return behind


def unmoved(values: Sequence[Value], value: Value) -> Value:
    """Returns the value that one has its numbers from, by moves alone."""
    while value.kind == "move" and len(value.parents) == 1:
        parent = values[value.parents[0]]
        if parent.kind == "leaf" or parent.printed is None or value.printed is None:
            break
        if not parent.printed.equals(value.printed):
            break
        value = parent
    return value
