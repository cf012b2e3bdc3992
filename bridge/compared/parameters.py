"""The parameters that a value was made with: they tell the layers of a model apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.compared.pairs import Pairs
from bridge.compared.recording.values import Value


def is_beyond(pairs: Pairs, t: Value, j: int) -> bool:
    """True if torch's value was made with a parameter that JAX only uses behind its own value.

    Such a value is one of a later layer, although values behind it may be the same.
    """
    torch, jax = pairs.recording.values, pairs.tape.values
    ours = _parameters(torch, t.index, pairs.torch_pairs)
    theirs = {pairs.jax_pairs[k] for k in _edge(jax, j, pairs.jax_pairs) if k in pairs.jax_pairs}
    left = ours - {_source(torch, k) for k in theirs if k >= 0}
    if not left:
        return False
    behind = {j}
    for value in jax[j + 1 :]:
        if behind.isdisjoint(value.parents):
            continue
        behind.add(value.index)
        if any(_source(torch, pairs.jax_pairs.get(k, -1)) in left for k in value.parents):
            return True
    return False


def _parameters(values: Sequence[Value], last: int, pairs: Mapping[int, int]) -> set[int]:
    """Returns the parameters and inputs that a value was made with behind all paired values."""
    found = {_source(values, k) for k in _edge(values, last, pairs)}
    return {k for k in found if k >= 0 and values[k].kind == "leaf"}


def _edge(values: Sequence[Value], last: int, pairs: Mapping[int, int]) -> set[int]:
    """Returns the paired values and the leaves that a value was computed from directly."""
    edge: set[int] = set()
    left, seen = list(values[last].parents), {last}
    while left:
        k = left.pop()
        if k in seen:
            continue
        seen.add(k)
        if k in pairs or values[k].kind == "leaf":
            edge.add(k)
        else:
            left += values[k].parents
    return edge


def _source(values: Sequence[Value], index: int) -> int:
    """Returns the value that one has its numbers from, by moves alone; -1 for none."""
    while index >= 0 and values[index].kind == "move" and len(values[index].parents) == 1:
        index = values[index].parents[0]
    return index
