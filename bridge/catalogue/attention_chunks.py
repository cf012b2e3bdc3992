"""Chunks of the query rows of attention, and the keys that a chunk reads.

The rows of a key head are the queries of all query heads that share it, one head after the other:
row r is query r mod queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.ops.compositions import LEAF, RowChunks, row_chunks

# Columns in the largest unit of a sum along a row: trees of slices from its multiples are subtrees.
_UNIT = 1024
# Bytes of scores that exist at a time, unless one head and one leaf of rows take more.
_BUDGET = 2**23
# A causal chunk computes scores that nothing sees, of up to its own number of keys.
_CAUSAL_CHUNKS = 8
# A causal loop over equal chunks computes scores of up to the keys of its last chunk.
_CAUSAL_GROUPS = 4


@dataclass(frozen=True)
class Chunks(RowChunks):
    """Equal chunks of rows of a key head, one after the other, and the keys that they read.

    Attributes:
      first, end: the keys.
      has_last: a row does not see the last of these keys.
      has_first: a row does not see the first of these keys.
    """

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
    # Under the causal rule, groups of chunks read fewer keys than all chunks together.
    most = rows // per // _CAUSAL_GROUPS if causal else rows
    return [
        _chunks(each, queries, keys, causal, window)
        for each in row_chunks(rows, per, 1 if is_unrolled else most)
    ]


def _chunks(own: RowChunks, queries: int, keys: int, causal: bool, window: int | None) -> Chunks:
    start, rows, count = own.start, own.rows, own.count
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
