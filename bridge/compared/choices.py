"""Whole numbers that are taken from floating-point ones, such as the next token of a text.

They tell nothing about the values behind them: two models may choose one token for two reasons.
They are compared only where the numbers that they are taken from are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bridge.compared.axes import order_of
from bridge.compared.causes import cause_of_choice
from bridge.compared.found import Found
from bridge.compared.held import Substitute
from bridge.compared.layers import again_found
from bridge.compared.recording.values import Value

if TYPE_CHECKING:
    from bridge.compared.state import State


def wrong_choices(search: State) -> list[Found]:
    """Finds the first wrong choice of JAX before its first dead value, and those of its line.

    JAX goes on with the choices of torch. A choice counts only if a wrong output depends on it.
    """
    tape = search.tape
    behind = {tape.outputs[k] for k in search.wrong_outputs()}
    for value in reversed(tape.values):
        if value.index in behind:
            behind.update(value.parents)
    first = search.first_dead()
    ours = list(_choices(search.recording.values))
    for value in _choices(tape.values):
        if first is not None and value.index > first.index:
            return []
        if value.index not in behind or value.index in search.joined:
            continue
        same = [t for t in ours if _is_of_same(search, t, value)]
        if same and not any(_is_equal(t, value) for t in same):
            return _replaced(search, same[0], value)
    return []


def _choices(values: Sequence[Value]) -> Iterator[Value]:
    for value in values:
        is_whole = value.printed is not None and value.printed.is_whole
        if is_whole and any(values[k].tells for k in value.parents):
            yield value


def _is_of_same(search: State, ours: Value, theirs: Value) -> bool:
    """True for as many whole numbers, taken from the same floating-point ones."""
    assert ours.printed is not None
    assert theirs.printed is not None
    return ours.printed.size == theirs.printed.size and any(
        a.tells and b.tells and a.printed is not None and b.printed and a.printed.matches(b.printed)
        for a in (search.recording.values[k] for k in ours.parents)
        for b in (search.tape.values[k] for k in theirs.parents)
    )


def _is_equal(ours: Value, theirs: Value) -> bool:
    assert ours.printed is not None
    return theirs.printed is not None and ours.printed.matches(theirs.printed)


def _replaced(search: State, ours: Value, theirs: Value) -> list[Found]:
    """Puts torch's choices in place of those of JAX, of later runs of the line too."""
    tape, replay = search.tape, search.replay
    pairs = [(ours, theirs), *_again(search, ours, theirs)]
    with tape.wide():
        got = np.asarray(replay.value(theirs.index))
        array = replay.held.get(ours.index)
        order = order_of(array, got)
        if order is None:
            return []
        for t, j in pairs:
            replay.replaced[j.index] = Substitute(t.index, order, j.shape, got.dtype)
            search.joined[j.index] = t.index
        expected = replay.replaced[theirs.index].arranged(array, got)
        numbers = cause_of_choice(expected, got)
        del array, expected, got  # before the run, which needs others
        replay.run(tape.maker[theirs.index])
    error = replay.errors[theirs.index]
    first = Found(ours, theirs, ours, theirs, numbers=numbers, error=error)
    return [first, *again_found(first, [(t, j.index) for t, j in pairs[1:]], search, replay.errors)]


def _again(search: State, ours: Value, theirs: Value) -> list[tuple[Value, Value]]:
    """Returns later choices that the same lines make, if both sides have the same number."""
    values, tape = search.recording.values, search.tape
    step = tape.steps[tape.maker[theirs.index]]
    slot = step.outputs.index(theirs.index)
    jax = [
        tape.values[other.outputs[slot]]
        for other in tape.steps[tape.maker[theirs.index] + 1 :]
        if other.key == step.key
    ]
    torch = [
        t
        for t in _choices(values)
        if t.index > ours.index
        and (t.op, t.shape, t.place.line) == (ours.op, ours.shape, ours.place.line)
    ]
    return list(zip(torch, jax, strict=True)) if len(torch) == len(jax) else []
