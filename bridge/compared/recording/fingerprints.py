"""The fingerprint of an array: numbers that a transposition or a reshape does not change."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

EQUAL = 1e-10  # of the scale: two orders of summation in float64 stay below it
BLOCK = 1 << 16  # elements that are summed while they lie in a cache
Axis = tuple[int, float, float, int]
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
