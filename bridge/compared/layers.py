"""Values that the same lines made in other layers, and that are wrong in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.compared.found import Found, Join
from bridge.compared.pairs import Pairs
from bridge.compared.recording.fingerprints import EQUAL
from bridge.compared.recording.values import Value, unmoved


def alike(pairs: Pairs, join: Join) -> list[tuple[Value, int]]:
    """Returns later values that the same lines made, such as those of other layers.

    None if both sides do not have the same number of them.
    """
    tape = pairs.tape
    step = tape.steps[tape.maker[join.jax]] if join.jax in tape.maker else None
    if step is None or join.is_turned:
        return []
    slot = step.outputs.index(join.jax)
    theirs = []
    dead_jax, dead_torch = set(pairs.jax_dead), set(pairs.torch_dead)
    for other in tape.steps[tape.maker[join.jax] + 1 :]:
        if other.key == step.key and other.outputs[slot] in dead_jax:
            theirs.append(other.outputs[slot])
    t = join.torch
    ranks = _ranks(pairs.recording.values, t)
    ours = [
        value
        for value in pairs.recording.values[t.index + 1 :]
        if value.index in dead_torch and value.index in ranks
    ]
    if len(ours) != len(theirs):
        ours = [value for value in ours if value.place.line == t.place.line]
    if len(ours) != len(theirs):
        return []
    # One line may make several values of a shape: those of another layer have the same rank.
    both = zip(ours, theirs, strict=True)
    return [(value, j) for value, j in both if ranks[value.index] == ranks[t.index]]


def _ranks(values: Sequence[Value], t: Value) -> dict[int, int]:
    """Returns the values that were made as one was, each with its rank among those of its module.

    All have rank 0 if there is one module only.
    """
    counts: dict[str, int] = {}
    ranks = {}
    for value in values:
        is_made_alike = (value.op, value.name, value.shape, value.kind) == (
            t.op, t.name, t.shape, t.kind,
        )  # fmt: skip
        if is_made_alike and value.place.kind == t.place.kind:
            ranks[value.index] = counts.get(value.place.module, 0)
            counts[value.place.module] = ranks[value.index] + 1
    return ranks if len(counts) > 1 else dict.fromkeys(ranks, 0)


def again_found(
    found: Found, others: list[tuple[Value, int]], pairs: Pairs, errors: Mapping[int, float]
) -> list[Found]:
    """Returns a part for each other layer that was wrong in the same way."""
    return [
        Found(
            unmoved(pairs.recording.values, t),
            found.jax,
            t,
            pairs.tape.values[j],
            is_missing=found.is_missing,
            error=errors[j],
        )
        for t, j in others
        if errors.get(j, 0.0) > EQUAL
    ]
