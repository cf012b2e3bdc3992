"""Tables of windows: the places of an input that each place of an output reads.

A table `[outputs, taps]` of integers has the places of each output in increasing order, and −1 for
absent taps behind them. Tables come from the sizes of a call, in NumPy, and are cached.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Sizes = tuple[int, ...]
# The weight of an absent tap.
ABSENT = math.inf


@dataclass(frozen=True)
class Window:
    """Equal windows along some dimensions.

    Attributes:
      kernel, stride, padding, dilation: one number for each dimension.
      ceil: a last window that begins inside of the input counts even if it ends outside.
    """

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    ceil: bool

    def listed(self) -> tuple[Sizes, Sizes, Sizes, Sizes, bool]:
        """Returns the fields in order."""
        return self.kernel, self.stride, self.padding, self.dilation, self.ceil

    def outputs(self, sizes: Sizes) -> Sizes:
        """Returns the number of windows along each dimension; it may be less than 1."""
        found = []
        for size, kernel, stride, padding, dilation in zip(
            sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            free = size + 2 * padding - dilation * (kernel - 1) - 1
            count = (-(-free // stride) if self.ceil else free // stride) + 1
            # A window that begins in the padding behind the input does not count.
            if self.ceil and (count - 1) * stride >= size + padding:
                count -= 1
            found.append(count)
        return tuple(found)

    def places(self, sizes: Sizes) -> list[list[list[int]]]:
        """Returns the places of each window along each dimension."""
        found = []
        for dim, (size, count) in enumerate(zip(sizes, self.outputs(sizes), strict=True)):
            start, step = -self.padding[dim], self.dilation[dim]
            firsts = [start + number * self.stride[dim] for number in range(count)]
            reach = self.kernel[dim] * step
            found.append([[p for p in range(f, f + reach, step) if 0 <= p < size] for f in firsts])
        return found

    def divisors(self, sizes: Sizes, counts_padding: bool) -> list[int]:
        """Returns the number of places of each window, which may count places of the padding."""
        each = []
        for dim, (size, count) in enumerate(zip(sizes, self.outputs(sizes), strict=True)):
            own = []
            for number in range(count):
                first = number * self.stride[dim] - self.padding[dim]
                end = min(first + self.kernel[dim], size + self.padding[dim])
                inside = min(end, size) - max(first, 0)
                own.append(end - first if counts_padding else max(inside, 0))
            each.append(own)
        return [math.prod(numbers) for numbers in itertools.product(*each)]


def even_parts(sizes: Sizes, outputs: Sizes) -> list[list[list[int]]]:
    """Returns the places along each dimension of windows that cut it into parts, as torch does."""
    return [
        [[*range(i * size // count, -(-(i + 1) * size // count))] for i in range(count)]
        for size, count in zip(sizes, outputs, strict=True)
    ]


def table_of(places: Sequence[Sequence[Sequence[int]]], sizes: Sizes) -> Any:
    """Returns the table of all windows in row-major order, from the places in each dimension."""
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    tables = []
    for own, stride in zip(places, strides, strict=True):
        table = padded(own)
        tables.append(np.where(table < 0, -1, table * stride))
    whole = np.zeros((1, 1), np.int64)
    for table in tables:
        outputs, taps = (len(whole) * len(table), whole.shape[1] * table.shape[1])
        both = whole[:, None, :, None] + table[None, :, None, :]
        absent = (whole[:, None, :, None] < 0) | (table[None, :, None, :] < 0)
        whole = np.where(absent, -1, both).reshape(outputs, taps)
    return compact(whole)


def padded(rows: Sequence[Sequence[int]]) -> Any:
    """Returns lists of different lengths as a table with −1 behind them."""
    taps = max(map(len, rows), default=0)
    table = np.full((len(rows), taps), -1, np.int64)
    for row, places in zip(table, rows, strict=True):
        row[: len(places)] = places
    return table


def compact(table: Any) -> Any:
    """Moves absent taps behind the others, which keep their order."""
    order = np.argsort(table < 0, axis=1, kind="stable")
    table = np.take_along_axis(table, order, 1)
    used = (table >= 0).any(0)
    return table[:, : int(used.sum())]


def transposed(table: Any, places: int) -> tuple[Any, Any]:
    """Returns, for each place, the outputs that read it in increasing order, and their taps."""
    output, tap = np.nonzero(table >= 0)
    place = table[output, tap]
    order = np.lexsort((output, place))
    counts = np.bincount(place, minlength=places)
    taps = int(counts.max(initial=0))
    number = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    outputs, of_taps = np.full((2, places, taps), -1, np.int64)
    outputs[place[order], number] = output[order]
    of_taps[place[order], number] = tap[order]
    return outputs, of_taps


@dataclass(frozen=True)
class Direction:
    """One direction of a linear map between places.

    Attributes:
      form: "weighted" for a chain of fma, "average" for a chain of additions that is divided once,
        "shares" for a chain of additions of x / weight, "row_mean" for the mean over all places in
        the tree of sums along a row.
      places: `[taps, outputs]`, int32.
      weights: `[taps, outputs]`, or `[1, outputs]` for an average; float64.
    """

    form: str
    places: Any
    weights: Any


@dataclass(frozen=True)
class Plan:
    """A linear map between places, and its transpose."""

    forth: Direction
    back: Direction


def averages(table: Any, divisors: Any, places: int) -> Plan:
    """Returns the plan of means over windows."""
    divisor = np.asarray(divisors, np.float64)
    outputs, _ = transposed(table, places)
    shares = np.where(outputs < 0, ABSENT, divisor[outputs] if divisor.size else 1.0)
    return Plan(
        Direction("average", rows_of(table), divisor[None]),
        Direction("shares", rows_of(outputs), np.ascontiguousarray(shares.T)),
    )


def mean_of_row(places: int) -> Plan:
    """Returns the plan of the mean over all places."""
    count = np.full((1, places), float(places))
    return Plan(
        Direction("row_mean", np.zeros((1, 1), np.int32), count[:, :1]),
        Direction("shares", np.zeros((1, places), np.int32), count),
    )


def weighted(table: Any, weights: Any, places: int) -> Plan:
    """Returns the plan of a chain of fma."""
    outputs, taps = transposed(table, places)
    own = np.where(table < 0, ABSENT, weights)
    found = own[outputs, taps] if own.size else np.zeros(outputs.shape)
    of_outputs = np.where(outputs < 0, ABSENT, found)
    return Plan(
        Direction("weighted", rows_of(table), np.ascontiguousarray(own.T)),
        Direction("weighted", rows_of(outputs), np.ascontiguousarray(of_outputs.T)),
    )


def rows_of(table: Any) -> Any:
    """Returns a table `[outputs, taps]` as `[taps, outputs]`."""
    return np.ascontiguousarray(table.T.astype(np.int32))
