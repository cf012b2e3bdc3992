"""Values of a run: what is kept of them, and the search for equal ones."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

EQUAL = 1e-10  # of the scale: two orders of summation in float64 stay below it
BLOCK = 1 << 16  # elements that are summed while they lie in a cache
Axis = tuple[int, float, float, int]
# Operations that take numbers out of an operand.
SELECTIONS = {"slice", "split", "dynamic_slice", "gather", "split_with_sizes", "select", "unbind",
              "narrow", "index_select", "index"}  # fmt: skip
Fingerprint = tuple[float, float, float, float, float]  # Σx, Σx², Σ|x|, maximum, minimum


@dataclass(slots=True)
class Print:
    """The numbers that a transposition or a reshape does not change, and a few that it may.

    Attributes:
      size: the number of elements.
      sums: Σx, Σx², Σ|x|, maximum and minimum.
      shape: the sizes of the axes in increasing order, without those of one element.
      axes: for each of them its size, Σ(marginal sum)², Σ(weight × marginal sum), and its place,
        sorted: they tell two ways to split an axis apart, and two orders of the rows along it.
      is_plain: the value says nothing: a constant, whole numbers such as positions, or a mask.
      is_whole: the array is of integers.
    """

    size: int
    sums: Fingerprint
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    is_plain: bool
    is_whole: bool = False

    def equals(self, other: Print, tolerance: float = EQUAL) -> bool:
        """True for the same numbers in any order."""
        if self.size != other.size:
            return False
        a, b = self.sums, other.sums
        total = max(a[2], b[2])
        top = max(abs(a[3]), abs(a[4]), abs(b[3]), abs(b[4]))
        return bool(
            abs(a[2] - b[2]) <= tolerance * total
            and abs(a[0] - b[0]) <= tolerance * total
            and abs(a[1] - b[1]) <= 2 * tolerance * max(a[1], b[1])
            and abs(a[3] - b[3]) <= tolerance * top
            and abs(a[4] - b[4]) <= tolerance * top
        )

    def matches(self, other: Print, tolerance: float = EQUAL) -> bool:
        """True for the same numbers in the same places, but for transpositions and reshapes."""
        if not self.equals(other, tolerance):
            return False
        if not (self.axes and other.axes):
            return True
        if self.shape == other.shape:
            return self.has_axes_of(other, tolerance)
        return self.may_be_reshaped(other, tolerance)

    def has_axes_of(self, other: Print, tolerance: float = EQUAL) -> bool:
        """True if the axes of two arrays of the same numbers and sizes have the same marginals."""
        # Rounding may sort two axes of one size in another order.
        return any(
            all(self.has_axis(a, b, tolerance) for a, b in zip(self.axes, order, strict=True))
            for order in itertools.permutations(other.axes)
        )

    def may_be_reshaped(self, other: Print, tolerance: float = EQUAL) -> bool:
        """True unless an axis that the other shape has as well has other marginals there.

        An axis that may be several ones of the other array, or a part of one, says nothing.
        """
        few, many = sorted((self.axes, other.axes), key=len)
        for axis in few:
            whole = [
                axes
                for count in range(1, len(many) + 1)
                for axes in itertools.combinations(many, count)
                if math.prod(n for n, *_ in axes) == axis[0]
            ]
            if whole and all(
                len(axes) == 1 and not self.has_axis(axis, axes[0], tolerance) for axes in whole
            ):
                return False
        return True

    def has_axis(self, a: Axis, b: Axis, tolerance: float = EQUAL) -> bool:
        """True if an axis has the marginals of another one."""
        bound = 4 * tolerance * self.size / a[0] * self.sums[1]
        return (
            a[0] == b[0]
            and abs(a[1] - b[1]) <= bound
            and abs(a[2] - b[2]) <= 4 * tolerance * self.sums[2]
        )

    def distance(self, other: Print) -> float:
        """The difference of two fingerprints of one size, relative to the larger numbers."""
        a, b = self.sums, other.sums
        total = max(a[2], b[2]) or 1.0
        top = max(abs(a[3]), abs(a[4]), abs(b[3]), abs(b[4])) or 1.0
        moved = 0.0
        if self.shape == other.shape and not self.matches(other):
            pairs = zip(self.axes, other.axes, strict=False)
            moved = max((abs(p[2] - q[2]) / total for p, q in pairs), default=0.0)
        return max(
            moved,
            abs(a[0] - b[0]) / total,
            abs(a[2] - b[2]) / total,
            abs(a[1] - b[1]) / (max(a[1], b[1]) or 1.0),
            abs(a[3] - b[3]) / top,
            abs(a[4] - b[4]) / top,
        )


def fingerprint(array: np.ndarray) -> Print:
    """Returns what is kept of an array of numbers. Infinities count as ±1e300."""
    is_whole = array.dtype.kind in "iu"
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag], axis=-1)
    x = np.asarray(array, np.float64)
    shape = tuple(sorted(n for n in x.shape if n != 1))
    if x.size == 0:
        return Print(0, (0.0, 0.0, 0.0, 0.0, 0.0), shape, (), True)
    high, low = float(x.max()), float(x.min())
    if not (math.isfinite(high) and math.isfinite(low)):
        # Masks hold −inf or the least finite number; both become 0, with their count in the sums.
        x = np.where(np.isfinite(x), x, 0.0)
        high, low = float(x.max()), float(x.min())
    if low <= -9e3 and -low > 1e3 * max(abs(high), 1e-3):
        # So do masks of a large finite number, which would hide the scores beside it.
        x = np.where(x < low / 10, 0.0, x)
        high, low = float(x.max()), float(x.min())
    x, places = _in_memory_order(x)
    total, squares, absolute = _sums(x.reshape(-1))
    plain = (high == low and x.size > 1) or (
        total % 1 == 0 and absolute % 1 == 0 and squares % 1 == 0
    )
    axes = []
    if is_whole or not plain:
        axes = [
            (*_axis(sums), place)
            for sums, place in zip(_marginals(x), reversed(places), strict=True)
        ]
    sums_ = (total, squares, absolute, high, low)
    return Print(x.size, sums_, shape, tuple(sorted(axes)), plain or is_whole, is_whole)


def _in_memory_order(x: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Returns an array with the axes that lie closest in memory last, and their old places.

    Axes of one element are left out.
    """
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    places = [k for k in order if x.shape[k] != 1]
    moved = np.ascontiguousarray(x.transpose(order))
    return moved.reshape([x.shape[k] for k in places]), places


def _sums(flat: np.ndarray) -> tuple[float, float, float]:
    """Returns Σx, Σx² and Σ|x| in one pass over memory.

    BLAS is left out: its threads wait for each other longer than these sums take.
    """
    total = squares = absolute = 0.0
    scratch = np.empty(min(flat.size, BLOCK))
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        total += float(block.sum())
        squares += float(np.einsum("i,i->", block, block))
        absolute += float(np.abs(block, out=scratch[: block.size]).sum())
    return total, squares, absolute


def _marginals(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the sums over all axes but one, for each axis."""
    while x.ndim > 1:
        rows = x.reshape(-1, x.shape[-1])
        yield np.einsum("ij->j", rows)
        x = np.einsum("ij->i", rows).reshape(x.shape[:-1])
    if x.ndim:
        yield x


def _axis(sums: np.ndarray) -> tuple[int, float, float]:
    squares, weighted = (
        np.einsum("i,i->", sums, sums),
        np.einsum("i,i->", sums, _weights(sums.size)),
    )
    return sums.size, float(squares), float(weighted)


@functools.lru_cache(256)
def _weights(n: int) -> np.ndarray:
    """Returns the weights of the rows along an axis: no two orders of them have the same sum."""
    return np.cos(1.3 * np.arange(1, n + 1))


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
    return value.op in SELECTIONS and a is not None and b is not None and a.size < b.size


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


def made_of(whole: Print | None, pieces: Mapping[str, Print | None]) -> tuple[str, ...]:
    """Returns the names of two to four pieces that hold the numbers of a whole, or none."""
    if whole is None:
        return ()
    fitting = {k: p for k, p in pieces.items() if p is not None and p.size < whole.size}
    for count in (2, 3, 4):
        if math.comb(len(fitting), count) > 50_000:
            return ()
        for names in itertools.combinations(fitting, count):
            found = [fitting[name] for name in names]
            if sum(p.size for p in found) != whole.size:
                continue
            both = total(found)
            if both is not None and whole.equals(both):
                return names
    return ()


def total(prints: Sequence[Print]) -> Print | None:
    """Returns the fingerprint of the numbers of several arrays in one, None without an array."""
    if not prints:
        return None
    sums = [math.fsum(p.sums[k] for p in prints) for k in range(3)]
    high, low = max(p.sums[3] for p in prints), min(p.sums[4] for p in prints)
    size = sum(p.size for p in prints)
    return Print(size, (sums[0], sums[1], sums[2], high, low), (), (), False)
