"""A call on a part of the columns: only reductions along the row are exchanged, never the row.

Sums keep the tree of docs/numerics.md.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bridge.lang import codes, functions, roles
from bridge.lang.tracing import declared, trace
from bridge.lang.trees import CHUNK_COLUMNS, QUARTER_COLUMNS
from bridge.ops.definition import Op
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.sums import sum_along_rows, sum_of

# Places in a chunk of two numbers that are added first.
_FIRST = (np.arange(2)[:, None] * 2 * QUARTER_COLUMNS + np.arange(QUARTER_COLUMNS)).ravel()
_PAIRS = (_FIRST, _FIRST + QUARTER_COLUMNS)


def call_on_columns(
    part: Any,
    again: Callable[..., tuple[Any, ...]],
    op: Op[Any],
    operands: Any,
    params: Any,
) -> tuple[Any, ...]:
    """Calls the op on this part, one stage after the other.

    Args:
      again: again(op, operands, params) returns the results of a call on this part.
    """
    columns = int(part.split.shape[-1])
    nodes = _Nodes.of(int(part.split.local(len(part.split.shape) - 1)), columns)
    first = functools.cache(lambda: part.first_column(operands[0]))
    known: list[Any] = []
    stages = op.reductions(params, columns)
    assert stages is not None
    for number, kinds in enumerate((*stages, ())):
        call = op.stage(operands, params, number, tuple(known), first, columns, nodes.is_subtree)
        results = again(call.op, call.operands, call.params)
        known += _reduced(part, nodes, kinds, results)
    remaining = iter(results)
    return tuple(None if dtype is None else next(remaining) for dtype in op.result_dtypes(params))


def _reduced(part: Any, nodes: _Nodes, kinds: Sequence[str], results: Any) -> list[Any]:
    """Returns the reductions over whole rows, from those over this part, in one exchange."""
    if not kinds:
        return []
    own, given = [], iter(results)
    for kind in kinds:
        if kind == "sum":
            own.append(nodes.sent(part, next(given)))
        else:
            own += [next(given)[..., None] for _ in range(2 if kind == "argmax" else 1)]
    everyones = part.of_all_columns(part.concatenate(own, -1))
    ends = itertools.accumulate((each.shape[-1] for each in own), initial=0)
    received = iter([everyones[..., a:b] for a, b in itertools.pairwise(ends)])
    return [_whole(part, nodes, kind, received) for kind in kinds]


def _whole(part: Any, nodes: _Nodes, kind: str, received: Iterator[Any]) -> Any:
    if kind == "sum":
        return nodes.added(part, next(received))
    largest = next(received)[..., 0]
    if kind == "max":
        return _run(part, _largest, largest)[0]
    number, place = _run(part, _first_of_the_largest, largest, next(received)[..., 0])
    return part.integers(number) * nodes.local + part.integers(place)


class _Nodes:
    """The numbers that each part of `local` columns sends for a sum, and their order on arrival.

    A part sends the sums of its complete subtrees, and the terms of chunks it shares with other
    parts. Two terms that the tree adds first are sent as their sum, if the part has both.

    Attributes:
      is_subtree: True if a part is one complete subtree.
      touched: the number of subtree sums that a part sends, including incomplete subtrees.
      before: for each part, the number of columns of its first subtree that lie in earlier parts.
      first, second: for each part, the columns of the terms to send; `local` stands for none.
      terms: for each column of each shared chunk, the position of its term among all received.
      order: for each subtree, the position of its sum; shared chunks come after all others.
    """

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(local: int, columns: int) -> _Nodes:
        return _Nodes(local, columns)

    def __init__(self, local: int, columns: int) -> None:
        chunks, rest = divmod(local, CHUNK_COLUMNS)
        # A part of whole chunks is cut into the fewest complete subtrees.
        size = CHUNK_COLUMNS if rest else CHUNK_COLUMNS * (chunks & -chunks)
        self.local, self.size, self.is_subtree = local, size, size == local
        start = np.arange(0, columns, local)[:, None]
        self.before = start[:, 0] % size
        number = start // size + np.arange((int(self.before.max()) + local + size - 1) // size)
        end = np.minimum((number + 1) * size, columns)
        is_touched = number * size < start + local
        is_whole = is_touched & (number * size >= start) & (end <= start + local)
        shared = np.unique(number[is_touched & ~is_whole])
        self.touched = number.shape[1] if is_whole.any() else 0

        sent: list[list[Any]] = [[] for _ in start]
        for part, i in np.argwhere(is_touched & ~is_whole):
            columns_of_pairs = [number[part, i] * size - start[part] + place for place in _PAIRS]
            present = [(column >= 0) & (column < local) for column in columns_of_pairs]
            first, second = map(np.where, present, columns_of_pairs, [local, local])
            place = np.where(present[0], *_PAIRS)
            chunk = np.full_like(place, np.searchsorted(shared, number[part, i]))
            sent[part].append(np.stack([first, second, chunk, place])[:, present[0] | present[1]])
        found = [np.concatenate([np.empty((4, 0), int), *each], axis=1) for each in sent]
        most = max(each.shape[1] for each in found)
        width, none = self.touched + most, len(start) * (self.touched + most)
        self.first, self.second = np.full((2, len(start), most), local)
        self.terms = np.full((len(shared), min(size, columns)), none)
        for part, (first, second, chunk, place) in enumerate(found):
            count = len(first)
            self.first[part, :count], self.second[part, :count] = first, second
            self.terms[chunk, place] = part * width + self.touched + np.arange(count)
        whole = np.argwhere(is_whole)
        self.order = np.empty(-(-columns // size), int)
        self.order[number[is_whole]] = whole[:, 0] * width + whole[:, 1]
        self.order[shared] = none + 1 + np.arange(len(shared))

    def sent(self, part: Any, given: Any) -> Any:
        """Returns `[*rows, sums and terms]` of this part, from its terms, or a subtree's sum."""
        if self.is_subtree:
            return given[..., None]
        own = []
        if self.touched:
            chunks = part.padded(given, part.own(self.before), self.touched * self.size)
            chunks = chunks.reshape(*given.shape[:-1], self.touched, self.size)
            own.append(_along(part, chunks))
        if self.first.size:
            given = part.padded(given, 0, self.local + 1)
            first, second = (
                part.taken(given, part.own(each)) for each in (self.first, self.second)
            )
            call = sum_of(first, second, part.dtype(given), part.dtype(given))
            own.append(part.run(call.op, call.operands, call.params)[0])
        return part.concatenate(own, -1)

    def added(self, part: Any, everyones: Any) -> Any:
        """Sums whole rows to `[*rows]`, from `[*rows, parts, sums and terms]`."""
        rows = everyones.shape[:-2]
        flat = everyones.reshape(*rows, math.prod(everyones.shape[-2:]))
        if len(self.terms):
            flat = part.padded(flat, 0, flat.shape[-1] + 1)  # −0.0 where there is no term
            shared = part.taken(flat, self.terms.ravel()).reshape(*rows, *self.terms.shape)
            flat = part.concatenate([flat, _along(part, shared)], -1)
            flat = part.taken(flat, self.order)
        while (count := flat.shape[-1]) > 1:
            index = _neighbours_first(count)
            flat = part.padded(flat, 0, count + 1)
            flat = part.taken(flat, index.ravel()).reshape(*rows, *index.shape)
            flat = _along(part, flat)
        return flat[..., 0]


@functools.lru_cache(maxsize=256)
def _neighbours_first(count: int) -> Any:
    """Returns the order of nodes in chunks for which a chunk's tree equals the tree above chunks.

    The tree above chunks adds neighbours, then neighbouring pairs: it goes through the bits of a
    node's number from the lowest on. A chunk goes through the bits of a place from the highest on,
    with the highest two swapped. `count` stands for a missing node.
    """
    levels = min(count - 1, CHUNK_COLUMNS - 1).bit_length()
    bits = [*reversed(range(levels))]
    if levels == 10:
        bits[:2] = 8, 9
    node = np.arange(1 << levels)
    chunk = np.empty_like(node)
    chunk[sum((node >> i & 1) << bit for i, bit in enumerate(bits))] = node
    index = np.arange(0, count, CHUNK_COLUMNS)[:, None] + chunk
    return np.where(index < count, index, count)


def _along(part: Any, x: Any) -> Any:
    call = sum_along_rows(x, part.dtype(x), part.dtype(x))
    return part.run(call.op, call.operands, call.params)[0]


def _largest(x: roles.Full) -> Any:
    return functions.max(x)


def _first_of_the_largest(x: roles.Full, place: roles.Full) -> Any:
    """The number of the first part with the largest number, and the column within that part."""
    number = functions.argmax(x)
    own = functions.where(functions.column() == number, place, -0.0)
    return number * 1.0, functions.sum(own)


@functools.cache
def _code(function: Callable[..., Any], count: int) -> str:
    return codes.code_of(trace(declared(function), [True] * count, {}))


def _run(part: Any, function: Callable[..., Any], *operands: Any) -> tuple[Any, ...]:
    """Runs a declaration whose results are per row, in the dtype of the operands."""
    code, dtype = _code(function, len(operands)), part.dtype(operands[0])
    count = len(codes.parse(code).program.results)
    params = ProgramParams(code, dtype, ",".join([dtype] * count))
    return part.run(PROGRAM, operands, params)  # type: ignore[no-any-return]
