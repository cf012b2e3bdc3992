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

from bridge.compared.axes import error_of, in_order, order_of
from bridge.compared.tape import Tape, printed
from bridge.compared.values import EQUAL, Value

if TYPE_CHECKING:
    from bridge.compared.search import Search

LARGE = 100.0  # two decimal digits are lost
ROUNDING = 1e-15  # of each of the two terms, in float64
NEAR = 8  # operands of roundings that are looked at for one wrong value


def cancelled(search: Search) -> list[str]:
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


def rounded_alike(search: Search) -> str:
    """Lets JAX round torch's numbers in place of its own, if its first wrong value is right then.

    The two differ by float64's rounding only, so neither side is wrong.

    Returns:
      A sentence about the line that rounds; an empty one if this is not the reason.
    """
    first = search.first_dead()
    if first is None or first.index not in search.tape.maker:
        return ""
    tape, replay = search.tape, search.replay
    dead, bypassed, lines = set(search.torch_dead), dict(replay.bypassed), []
    with tape.wide():
        for place, operand in _roundings(tape, first):
            partner = search.jax_pairs.get(operand, -1)
            if partner < 0 or (place, operand) in bypassed or operand in search.joined:
                continue
            got = np.asarray(replay.value(operand), np.float64)
            array = search.torch_side.record([partner])[0].arrays[partner]
            order = order_of(array, got)
            if order is None or error_of(in_order(array, order, got.shape), got) > 10 * EQUAL:
                continue
            replay.bypassed[place, operand] = in_order(array, order, got.shape)
            line = tape.values[tape.steps[place].outputs[0]].place
            lines.append(line.source if line else "")
            new = printed(_run_to(search, place, first.index))
            right = None if new is None else search.torch_table.partner(new)
            if right is not None and right.index in dead:
                replay.run(min(place for place, _ in replay.bypassed.keys() - bypassed.keys()))
                return (
                    f"{lines[-1]} rounds or compares numbers that lie on a boundary: in float64 "
                    "the two models leave some on different sides, in float32 either may"
                )
        replay.bypassed.clear()
        replay.bypassed.update(bypassed)
    return ""


def _run_to(search: Search, place: int, index: int) -> np.ndarray:
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


def rounded_behind(search: Search, first: Value) -> tuple[set[int], str]:
    """Returns the values that depend on a value of JAX by other ways than through a rounding.

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
    return smooth, f"{line} rounds or compares it, and some numbers lie on a boundary there"
