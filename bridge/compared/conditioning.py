"""Differences that depend on the dtype: lost digits, and numbers at a boundary of rounding.

E[x²] − E[x]² equals E[(x − E[x])²], but in float32 it loses as many digits as the two terms have
more than their difference. In float64, in which the models are compared, the loss does not show.

A number rounded to a whole one, such as the bucket of a position, or compared with a threshold,
may lie so close to a boundary that two right formulas leave it on different sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bridge.compared.axes import order_of
from bridge.compared.held import Substitute
from bridge.compared.recording.fingerprints import EQUAL
from bridge.compared.recording.tape import Tape, printed
from bridge.compared.recording.values import Value

if TYPE_CHECKING:
    from bridge.compared.state import State

LARGE = 100.0  # two decimal digits are lost
ROUNDING = 1e-15  # of each of the two terms, in float64
FLOAT32 = 2.0**-22  # of a number: two roundings of float32
NEAR = 8  # operands of roundings that are looked at for one wrong value
DEAD = 48  # dead values that are looked at for such an operand
TRIES = 3  # arrays of torch for one of JAX, and times that one wrong value is tried


def cancelled(search: State) -> list[str]:
    """Returns a sentence for each line of JAX that loses digits which torch keeps."""
    lines: dict[str, float] = {}
    for value in search.tape.values:
        ratio = cancellation(search.tape.values, value)
        if ratio < LARGE or value.place is None or value.printed is None:
            continue
        # Torch has the variance and neither term. With both terms it would subtract them too.
        if any(parent in search.jax_pairs for parent in value.parents):
            continue
        tolerance = max(EQUAL, ROUNDING * ratio)
        if search.torch_table.partner(value.printed, tolerance) is not None:
            source = value.place.source
            lines[source] = max(lines.get(source, 0.0), ratio)
    return [
        f"{source} subtracts numbers {ratio:.0e} times as large as the result, which loses these "
        "digits in float32; torch does not: take the mean of (x − mean)² for a variance"
        for source, ratio in lines.items()
    ]


def cancellation(values: Sequence[Value], value: Value) -> float:
    """Returns how many times the terms of a difference are larger than it, by their means.

    0 for other operations, and where one of the three has numbers below 0: a variance has none.
    """
    if value.op != "sub" or len(value.parents) != 2:
        return 0.0
    found = [values[k].printed for k in (value.index, *value.parents)]
    means = []
    for one in found:
        if one is None or not one.size or one.sums[4] < -ROUNDING * one.sums[3]:
            return 0.0
        means.append(one.sums[2] / one.size)
    return min(means[1:]) / means[0] if means[0] else 0.0


def rounded_alike(search: State) -> str:
    """Lets JAX round torch's numbers in place of its own, if a wrong value is right then.

    The numbers differ by rounding only, so neither side is wrong. Numbers that lie exactly on a
    boundary on both sides stay as they are: there the two must agree.

    Returns:
      A sentence about the line that rounds; an empty one if this is not the reason.
    """
    tape, replay = search.tape, search.replay
    found = ((tape.values[k], _roundings(tape, tape.values[k])) for k in search.jax_dead[:DEAD])
    target, roundings = next((pair for pair in found if pair[1]), (None, []))
    if target is None or search.tried.get(target.index, 0) == TRIES:
        return ""
    search.tried[target.index] = search.tried.get(target.index, 0) + 1
    bypassed, line = dict(replay.bypassed), ""
    with tape.wide():
        for place, operand in roundings:
            if (place, operand) in bypassed:
                continue
            got = np.asarray(replay.value(operand), np.float64)
            partners = _torch_operands(search, operand)
            for partner in partners:
                array = replay.held.get(partner, partners)
                order = order_of(array, got)
                if order is None:
                    continue
                close = Substitute(partner, order, got.shape, within=FLOAT32)
                if np.array_equal(close.arranged(array, got), got, equal_nan=True):
                    continue
                replay.bypassed[place, operand] = close
                made = tape.values[tape.steps[place].outputs[0]].place
                line = made.source if made else ""
                new = printed(_run_to(search, place, target.index))
                right = None if new is None else search.torch_table.partner(new)
                if right is not None and right.index in set(search.torch_dead):
                    replay.run(min(place for place, _ in replay.bypassed.keys() - bypassed.keys()))
                    return (
                        f"{line} rounds or compares numbers that lie on a boundary: in float64 the "
                        "two models leave some on different sides, in float32 either may"
                    )
        replay.bypassed.clear()
        replay.bypassed.update(bypassed)
    return ""


def _torch_operands(search: State, operand: int) -> list[int]:
    """Returns values that torch rounds, of the shape of a value of JAX, its partner first."""
    values, own = search.recording.values, search.tape.values[operand].printed
    assert own is not None
    partner = search.jax_pairs.get(operand, -1)
    rounded = {k: None for value in values if not value.tells for k in value.parents}
    fitting = [
        k
        for k in rounded
        for other in [values[k].printed]
        if values[k].tells and other is not None and other.shape == own.shape
    ]
    fitting.sort(key=lambda k: (k != partner, values[k].printed.distance(own)))  # type: ignore[union-attr]
    return fitting[:TRIES]


def _run_to(search: State, place: int, index: int) -> np.ndarray:
    """Returns the array of a value, run from a step on."""
    arrays = search.replay.before(place)
    for k in range(place, search.tape.maker[index] + 1):
        search.replay.execute(k, arrays)
    return arrays[index]


def _roundings(tape: Tape, value: Value) -> list[tuple[int, int]]:
    """Returns the steps that made whole numbers or masks which a value depends on.

    Each comes with an operand of it that has other numbers. The latest is first.
    """
    found: list[tuple[int, int]] = []
    left, seen = [value], {value.index}
    while left and len(found) < NEAR:
        user = left.pop()
        for index in user.parents:
            parent = tape.values[index]
            if not parent.tells:
                if index not in seen and index in tape.maker:
                    left.append(parent)
                    seen.add(index)
            elif not user.tells and index in tape.maker:
                found.append((tape.maker[user.index], index))
    return sorted(found, reverse=True)


def rounded_behind(search: State, first: Value) -> tuple[set[int], str]:
    """Returns the values between one of JAX and the outputs on ways without a rounding.

    Returns:
      Their indices, and a sentence about the first line that rounds.
    """
    smooth, line = {first.index}, ""
    for value in search.tape.values[first.index + 1 :]:
        if smooth.isdisjoint(value.parents):
            continue
        if value.tells:
            smooth.add(value.index)
        elif not line and value.place is not None:
            line = value.place.source
    before = set(search.tape.outputs)
    for value in reversed(search.tape.values):
        if value.index in before and value.tells:
            before.update(value.parents)
    return (
        smooth & before,
        f"{line} rounds or compares it, and some numbers lie on a boundary there",
    )
