"""Chunks of the query rows of attention: the keys that a chunk reads, and sums over chunks.

The rows of a key head are the queries of all query heads that share it, one head after the other:
row r is query r mod queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Terms in a leaf of a product's sum. A chunk has 256·2ⁿ rows, a subtree of a sum over rows.
LEAF = 256
# Columns in the largest unit of a sum along a row: trees of slices from its multiples are subtrees.
_UNIT = 1024
# Bytes of scores that exist at a time, unless one head and one leaf of rows take more.
_BUDGET = 2**23
# A causal chunk computes scores that nothing sees, of up to its own number of keys.
_CAUSAL_CHUNKS = 8
# A causal loop over equal chunks computes scores of up to the keys of its last chunk.
_CAUSAL_GROUPS = 4


@dataclass(frozen=True)
class Chunks:
    """Equal chunks of rows of a key head, one after the other, and the keys that they read.

    Attributes:
      start: the first row of the first chunk.
      rows: the number of rows in a chunk.
      count: the number of chunks, 2ⁿ; they are a subtree of a sum over chunks.
      first, end: the keys.
      has_last: a row does not see the last of these keys.
      has_first: a row does not see the first of these keys.
    """

    start: int
    rows: int
    count: int
    first: int
    end: int
    has_last: bool = False
    has_first: bool = False


def chunk_rows(rows: int, keys: int, size: int, causal: bool) -> int:
    """Returns the number of rows of a chunk; `size` is that of a score in bytes."""
    wanted = min(_BUDGET // max(keys * size, 1), rows // _CAUSAL_CHUNKS if causal else rows)
    return max(1 << max(wanted, 1).bit_length() - 1, LEAF)


def heads_at_once(lead: Sequence[int], per: int, keys: int, size: int) -> list[int]:
    """Divides the dimensions [*batch, key heads] into equal parts, and returns the part's sizes."""
    fits = max(_BUDGET // max(per * keys * size, 1), 1)
    sizes: list[int] = []
    for full in reversed(lead):
        own = next(n for n in range(min(full, fits), -1, -1) if n == 0 or full % n == 0)
        fits = fits // max(own, 1) if own == full else 1
        sizes.insert(0, own)
    return sizes


def chunks_of(
    rows: int,
    queries: int,
    keys: int,
    per: int,
    causal: bool,
    window: int | None,
    is_unrolled: bool,
) -> list[Chunks]:
    """Cuts rows into chunks of `per` rows; there is at least one chunk.

    Args:
      is_unrolled: each chunk stands alone.
    """
    found: list[Chunks] = []
    start = 0
    # Under the causal rule, groups of chunks read fewer keys than all chunks together.
    most = rows // per // _CAUSAL_GROUPS if causal else rows
    longest = 1 if is_unrolled else 1 << max(most, 1).bit_length() - 1
    while start < rows or not found:
        count = min(1 << max((rows - start) // per, 1).bit_length() - 1, longest)
        each = min(per, rows - start)
        found.append(_chunks(start, each, count, queries, keys, causal, window))
        start += each * count
    return found


def _chunks(
    start: int, rows: int, count: int, queries: int, keys: int, causal: bool, window: int | None
) -> Chunks:
    stop = start + rows * count
    if not causal:
        return Chunks(start, rows, count, 0, keys)
    is_one_head = stop > start and start // queries == (stop - 1) // queries
    least, most = (start % queries, (stop - 1) % queries) if is_one_head else (0, queries - 1)
    shift = keys - queries  # the last key that query 0 sees
    end = max(most + shift + 1, 0)
    seen_from = 0 if window is None else max(least + shift + 1 - window, 0)
    first = _subtree_start(min(seen_from, end), end)
    has_first = window is not None and most + shift + 1 - window > first
    return Chunks(start, rows, count, first, end, least + shift + 1 < end, has_first)


def _subtree_start(first: int, end: int) -> int:
    """Returns the start of the smallest aligned block of 1024·2ⁿ keys that holds first to end.

    A sum over these keys is then a subtree of the sum over all keys.
    """
    unit = _UNIT
    while end - first // unit * unit > unit:
        unit *= 2
    return first // unit * unit


Part = tuple[int, int, Any]  # the first key, the end of the keys, and their sums


class SumOfChunks:
    """The sum over chunks of rows, in the tree of one product over all rows.

    The sum of some chunks waits for that of as many more, as in a binary counter, so that few
    sums exist at a time.

    Args:
      add: add(one, other) returns the sum of two parts.
    """

    def __init__(self, add: Callable[[Part, Part], Part]) -> None:
        self._add = add
        self._waiting: tuple[tuple[int, Part], ...] = ()

    def push(self, part: Part, count: int) -> None:
        """Adds the sum of the next `count` chunks."""
        while self._waiting and self._waiting[-1][0] == count:
            *before, (_, left) = self._waiting
            self._waiting = tuple(before)
            part = self._add(left, part)
            count *= 2
        self._waiting = (*self._waiting, (count, part))

    def total(self) -> Part:
        """Returns the sum of all chunks."""
        *before, (_, part) = self._waiting
        for _, left in reversed(before):
            part = self._add(left, part)
        return part
