"""The places of tokens in padded rows: segments of like lengths share an array of rows.

A plan says which token each place of the rows reads, and where each token and each segment lies
afterwards. It is made of integer arrays by NumPy, or by a framework where the ends are traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bridge.lang.dtypes import INTEGERS
from bridge.ops.definition import Spec

# The columns of the shortest rows, and by how much the next rows are longer if the ends are traced.
_SHORTEST, _GROWTH = 16, 4
# A few short segments take less time in one array of rows than in several.
_FEW = 1 << 14

Sizes = tuple[tuple[int, int], ...]  # (segments, columns) of each array of rows


class Integers(Protocol):
    """Functions of integer arrays, the same in NumPy, PyTorch and JAX."""

    def arange(self, like: Any, count: Any) -> Any:
        """Returns the numbers from 0, on the device of `like`."""

    def where(self, condition: Any, x: Any, y: Any) -> Any: ...

    def cumsum(self, x: Any) -> Any: ...

    def concatenate(self, arrays: Sequence[Any]) -> Any: ...

    def order(self, x: Any) -> Any:
        """Returns the places of the numbers in increasing order, equal ones as they come."""

    def counts(self, x: Any, count: Any) -> Any:
        """Returns for each number from 0 to count - 1 how many elements of x it is."""

    def clip(self, x: Any, low: Any, high: Any) -> Any: ...


@dataclass(frozen=True)
class Plan:
    """Integer arrays that say where tokens go.

    Attributes:
      sizes: the shapes of the arrays of rows.
      tokens: the token at each place of all rows, `[places]`; -1 at a hidden place.
      segments: the segment of each row, -1 for a row without one.
      lengths: the length of each row.
      places: the place of each token in all rows; -1 if it has none.
      rows: the row of each segment; -1 if it has none.
    """

    sizes: Sizes
    tokens: Any
    segments: Any
    lengths: Any
    places: Any
    rows: Any


def sizes_of(lengths: Any, other_rows: int) -> Sizes:
    """Returns sizes for known lengths, with rows of at most twice the columns that count.

    Args:
      other_rows: the number of rows that have these segments.
    """
    if len(lengths) == 0:
        return ((0, 0),)
    longest = int(lengths.max())
    if len(lengths) * longest <= max(2 * int(lengths.sum()), _FEW // max(other_rows, 1)):
        return ((len(lengths), longest),)
    sizes, above, columns = [], -1, _SHORTEST
    while above < longest:
        inside = lengths[(lengths > above) & (lengths <= columns)]
        if len(inside):
            sizes.append((len(inside), int(inside.max())))
        above, columns = columns, 2 * columns
    return tuple(sizes)


def traced_sizes(count: Any, total: Any, longest: Any) -> Sizes:
    """Returns sizes for any `count` segments of `total` tokens, at most `longest` in one.

    Few segments can be long: more than total / (c + 1) cannot have more than c tokens. So the rows
    together have about 4 · total places for each factor of 4 between the shortest and the longest.
    """
    sizes: list[tuple[int, int]] = []
    above, columns = -1, _SHORTEST
    while columns < longest:
        sizes.append((count if above < 0 else min(count, total // (above + 1)), columns))
        above, columns = columns, _GROWTH * columns
    sizes.append((count if above < 0 else min(count, total // (above + 1)), longest))
    if sum(rows * columns for rows, columns in sizes) >= count * longest:
        return ((count, longest),)
    return tuple(sizes)


def plan_of(xp: Integers, ends: Any, total: Any, sizes: Sizes) -> Plan:
    """Returns the plan for segments that end at `ends`.

    Ends that do not fit, which cannot be refused if they are traced, place no token and no segment.
    A segment with more columns than the longest rows is not placed, nor are its tokens.
    """
    count = ends.shape[0] - 1
    if count == 0:
        none = xp.arange(ends, 0)
        return Plan(sizes, none, none, none, xp.arange(ends, total) * 0 - 1, none)
    starts, stops = ends[:-1], ends[1:]
    lengths = stops - starts
    fits = (ends[0] == 0) & (ends[count] == total) & (lengths >= 0).all()
    group = lengths * 0
    for _, columns in sizes:
        group = group + (lengths > columns)
    is_sorted = len(sizes) == 1
    order = xp.arange(ends, count) if is_sorted else xp.order(group)
    rank = order if is_sorted else xp.order(order)  # the inverse permutation
    tokens, segments, row_lengths = [], [], []
    row = place = lengths * 0 - 1
    before_rows = before_places = 0
    for which, (rows, columns) in enumerate(sizes):
        is_here = (group == which) & fits
        before = (group < which).sum()
        slot = rank - before
        row = xp.where(is_here, slot + before_rows, row)
        place = xp.where(is_here, slot * columns + before_places, place)
        slots = xp.arange(ends, rows)
        segment = order[xp.clip(slots + before, 0, count - 1)]
        is_used = (slots + before < count) & (group[segment] == which) & fits
        length = xp.where(is_used, lengths[segment], 0)
        column = xp.arange(ends, columns)
        token = starts[segment][:, None] + column[None, :]
        tokens.append(xp.where(column[None, :] < length[:, None], token, -1).reshape(-1))
        segments.append(xp.where(is_used, segment, -1))
        row_lengths.append(length)
        before_rows, before_places = before_rows + rows, before_places + rows * columns
    own = segment_of_tokens(xp, ends, total)
    start = place[own]
    places = xp.where(start >= 0, start + xp.arange(ends, total) - starts[own], -1)
    return Plan(
        sizes,
        xp.concatenate(tokens),
        xp.concatenate(segments),
        xp.concatenate(row_lengths),
        places,
        row,
    )


def segment_of_tokens(xp: Integers, ends: Any, total: Any) -> Any:
    """Returns the segment of each of `total` tokens."""
    inner = xp.clip(ends[1:-1], 0, total)
    return xp.cumsum(xp.counts(inner, total + 1)[:total])


def positions_of(xp: Integers, ends: Any, total: Any) -> Any:
    """Returns the position of each of `total` tokens in its segment; -1 if the ends do not fit."""
    count = ends.shape[0] - 1
    if count == 0:
        return xp.arange(ends, total) * 0 - 1
    fits = (ends[0] == 0) & (ends[count] == total) & (ends[1:] >= ends[:-1]).all()
    start = ends[:-1][segment_of_tokens(xp, ends, total)]
    return xp.where(fits, xp.arange(ends, total) - start, -1)


def check_spec(function: str, name: str, spec: Spec) -> None:
    """Raises TypeError or ValueError for ends of another dtype or shape."""
    if spec.dtype not in INTEGERS:
        raise TypeError(
            f"{function}: {name} has dtype {spec.dtype}, expected one of {', '.join(INTEGERS)}"
        )
    if len(spec.shape) != 1 or spec.shape[0] < 1:
        raise ValueError(
            f"{function}: {name} has shape {list(spec.shape)}, expected [n + 1]: the ends of n "
            "segments, from 0 on"
        )


def check_ends(function: str, name: str, ends: Any, total: int, dimension: str) -> None:
    """Raises ValueError unless the ends go from 0 to `total` and do not decrease.

    Args:
      ends: a NumPy array.
      dimension: words for the dimension that has `total` elements.
    """
    ends = ends.astype(np.int64)
    if ends[0] != 0:
        raise ValueError(f"{function}: {name} begins with {ends[0]}, expected 0")
    falls = np.flatnonzero(ends[1:] < ends[:-1])
    if len(falls):
        place = int(falls[0])
        raise ValueError(
            f"{function}: {name} has {ends[place + 1]} after {ends[place]}, expected numbers that "
            "do not decrease"
        )
    if ends[-1] != total:
        raise ValueError(f"{function}: {name} ends with {ends[-1]}, expected {total}, {dimension}")


def check_longest(function: str, longest: Any) -> None:
    """Raises TypeError or ValueError unless max_seqlen is None or a number of columns."""
    if longest is None:
        return
    if isinstance(longest, bool) or not hasattr(longest, "__index__"):
        raise TypeError(
            f"{function}: max_seqlen has type {type(longest).__name__}, expected an integer or None"
        )
    if longest < 0:
        raise ValueError(f"{function}: max_seqlen is {longest}, expected 0 or more")


def check_lengths(function: str, name: str, ends: Any, most: int, limit: str) -> None:
    """Raises ValueError for a segment of more than `most` tokens; `limit` is the limit's name."""
    lengths = np.diff(ends.astype(np.int64))
    if len(lengths) and lengths.max() > most:
        which = int(lengths.argmax())
        raise ValueError(
            f"{function}: {name} has segment {which} with {lengths[which]} tokens, expected at "
            f"most {most}, {limit}"
        )
