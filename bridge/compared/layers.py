"""Values that the same lines made in other layers, and that are wrong in the same way."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.compared.found import Found, Join
from bridge.compared.pairs import Pairs
from bridge.compared.values import EQUAL, Value, unmoved


def alike(pairs: Pairs, join: Join) -> list[tuple[Value, int]]:
    """Returns later values that the same lines made, such as those of other layers.

    None if both sides do not have the same number of them.
    """
    tape, jax = pairs.tape, pairs.tape.values
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
    ours = [
        value
        for value in pairs.recording.values[t.index + 1 :]
        if value.index in dead_torch
        and (value.op, value.name, value.shape, value.kind) == (t.op, t.name, t.shape, t.kind)
        and value.place.kind == t.place.kind
    ]
    if len(ours) != len(theirs):
        ours = [value for value in ours if value.place.line == t.place.line]
    sizes = {jax[j].shape for j in theirs}
    return list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) and sizes else []


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
