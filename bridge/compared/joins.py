"""The search for values of both sides that are one value in two forms, behind a part."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bridge.compared.axes import fits, in_order, likely_orders, order_of, other_orders
from bridge.compared.found import Join
from bridge.compared.held import Held
from bridge.compared.pairs import Pairs
from bridge.compared.parameters import is_beyond
from bridge.compared.recording.values import Value, frontier, unmoved
from bridge.compared.replay import Arrays, Replay

CLOSE = 0.02  # arrays that differ by less are two forms of one value
REACH = 48  # dead values that are looked at for a place to go on
TRIES = 6  # values of torch that are tried for one of JAX
AHEAD = 14  # values behind a replaced one, of which one must be paired
STEPS = 160  # of JAX behind a replaced value, which are run for that
NEAR = 12  # dead values whose operands may lack an operation
# One equation is the whole operation of torch, not one of many steps on the same operands.
WHOLE = {"conv_general_dilated", "dot_general"}


class Joins:
    """Finds joins; arrays of torch are kept until others are asked for."""

    def __init__(self, pairs: Pairs, replay: Replay, held: Held) -> None:
        self.pairs, self.replay, self.held = pairs, replay, held

    def find(self, first: Value) -> Join | None:
        """Finds values of both sides that are the same one, the earliest behind the first part."""
        tape = self.pairs.tape
        jax = tape.values
        frontiers = set(frontier(jax, self.pairs.jax_dead, self.pairs.joined))
        start = self.pairs.jax_dead.index(first.index)
        candidates = [
            k
            for k in self.pairs.jax_dead[start:]
            if jax[k].kind != "move" or k in frontiers or k in tape.outputs
        ][:REACH]
        # A paired value that a wrong one was computed from: an operation may be missing between.
        before: dict[int, int] = {}
        for k in [first.index, *candidates[:NEAR]]:
            for parent in jax[k].parents:
                if parent in self.pairs.jax_pairs and parent in tape.maker and jax[parent].tells:
                    before.setdefault(parent, k)
        row = sorted({*candidates, *before}, key=lambda k: tape.maker[k])
        options = {j: self._options(jax[j]) for j in row}
        row = [j for j in row if options[j]]
        if not row:
            return self._of_outputs(first)
        place = tape.maker[row[0]]
        with tape.wide():
            arrays = self.replay.before(place)
            for j in row:
                while place <= tape.maker[j]:
                    self.replay.execute(place, arrays)
                    place += 1
                if j not in arrays:
                    continue
                got = _numpy(arrays[j])
                sure: list[Join] = []
                for t in options[j]:
                    if j in before and t.kind == "fine":
                        continue
                    array = self._array(t.index, options, j)
                    is_turned = t.index in self.pairs.torch_pairs
                    orders = (other_orders if is_turned else self._likely_orders)(array, got)
                    agreeing: list[tuple[int, Join]] = []
                    for order in orders:
                        expected = in_order(array, order, got.shape)
                        is_missing = j in before and not is_turned
                        user = before.get(j, first.index)
                        join = Join(t, j, expected, got, order, is_missing, is_turned, user)
                        if not (is_turned or is_missing) and _distance(expected, got) <= CLOSE:
                            sure.append(join)
                            break
                        if sure or is_beyond(self.pairs, t, j):
                            break
                        # Height and width may have one size: their order shows further on.
                        most = 1 if is_turned or len(orders) == 1 else AHEAD
                        agreeing.append((self._agreement(place, arrays, join, most), join))
                        if is_turned and agreeing[-1][0]:
                            break
                    if any(count for count, _ in agreeing):
                        return max(agreeing, key=lambda pair: pair[0])[1]
                if not sure and j == first.index and (alike := self._of_same_operands(j, options)):
                    array = self._array(alike.index, options, j)
                    for order in self._likely_orders(array, got):
                        expected = in_order(array, order, got.shape)
                        return Join(alike, j, expected, got, order, False, False, j)
                if sure:
                    join = min(sure, key=lambda join: _distance(join.expected, join.got))
                    return self._closest(place, arrays, join)
        return self._of_outputs(first)

    def _likely_orders(self, array: np.ndarray, like: np.ndarray) -> list[tuple[int, ...]]:
        """Returns the orders of axes with about the smallest difference.

        Those that bring most paired values from one side to the other come first: channels may have
        the size of height and width.
        """
        orders = likely_orders(array, like)
        if len(orders) == 1:
            return orders
        jax, torch = self.pairs.tape.values, self.pairs.recording.values
        both = [(torch[t].shape, jax[j].shape) for j, t in self.pairs.jax_pairs.items() if t >= 0]
        usual = {order: sum(fits(order, *shapes) for shapes in both) for order in orders}
        return sorted(orders, key=lambda order: -usual[order])

    def _of_same_operands(self, j: int, options: dict[int, list[Value]]) -> Value | None:
        """Returns a value of torch that is computed from all operands of one of JAX.

        The operation itself differs, as in a convolution with another padding, and nothing behind
        it agrees before the next part. One common operand is no sign. Torch's operation may have a
        bias beside them. A step of an operation is no candidate: the slope of GELU begins with
        products of its operands, which are far from its result.
        """
        jax, torch = self.pairs.tape.values, self.pairs.recording.values
        if jax[j].op not in WHOLE:
            return None
        theirs = [unmoved(jax, jax[k]) for k in jax[j].parents if jax[k].tells]
        if len(theirs) < 2:
            return None
        for t in options[j]:
            ours = [unmoved(torch, torch[k]) for k in t.parents if torch[k].tells]
            if all(
                any(a.printed and b.printed and a.printed.matches(b.printed) for a in ours)
                for b in theirs
            ):
                return t
        return None

    def _closest(self, place: int, arrays: Arrays, join: Join) -> Join:
        """Returns the join of torch's value with the value of JAX's line that is closest to it.

        An inner step, such as the argument of a function near 0, may be close to it as well.
        """
        values, steps = self.pairs.tape.values, self.pairs.tape.steps
        line, dead = values[join.jax].place, set(self.pairs.jax_dead)
        for k in range(place, len(steps)):
            if values[steps[k].outputs[0]].place != line:
                break
            self.replay.execute(k, arrays)
            for j in steps[k].outputs:
                is_alike = values[j].shape == values[join.jax].shape and values[j].kind == "op"
                if is_alike and j in dead and j in arrays:
                    got = _numpy(arrays[j])
                    if _distance(join.expected, got) < _distance(join.expected, join.got):
                        join = replace(join, jax=j, got=got)
        return join

    def _of_outputs(self, first: Value) -> Join | None:
        """Takes torch's output for one of JAX that nothing right was found before."""
        tape, recording = self.pairs.tape, self.pairs.recording
        pairs = list(zip(tape.outputs, recording.outputs, strict=True))
        pairs += [(j, t) for j in self.pairs.states for t in recording.buffers]
        wrong = self.pairs.wrong_gradients()
        for j, t in [*pairs, *wrong]:
            below = {first.index}
            for value in tape.values[first.index + 1 : j + 1]:
                if not below.isdisjoint(value.parents):
                    below.add(value.index)
            a, b = tape.values[j].printed, recording.values[t].printed
            if j not in below or a is None or b is None or a.shape != b.shape:
                continue
            if a.matches(b) and (j, t) not in wrong:
                continue
            if j in self.pairs.joined or j not in self.pairs.jax_dead:
                continue
            with tape.wide():
                got = _numpy(self.replay.value(j))
            array = self.held.get(t)
            order = wrong.get((j, t)) or order_of(array, got)
            if order is not None:
                expected = in_order(array, order, got.shape)
                value = recording.values[t]
                return Join(value, j, expected, got, order, False, False, first.index)
        return None

    def is_same_call(self, j: int, t: Value) -> bool:
        """True if torch's operation makes the value on the way, such as a product without bias."""
        partner = self.pairs.recording.values[self.pairs.jax_pairs.get(j, 0)]
        while partner.kind == "move" and partner.parents:
            partner = self.pairs.recording.values[partner.parents[0]]
        made = unmoved(self.pairs.recording.values, t)
        return partner.kind == "fine" and partner.op == made.op

    def _options(self, value: Value) -> list[Value]:
        """Returns values of torch that may be this one of JAX, the closest first."""
        assert value.printed is not None
        seen: list[Value] = []
        shape = value.printed.shape
        if value.index in self.pairs.jax_pairs and len(set(shape)) < len(shape):
            # The same numbers, but two axes of one size may be exchanged.
            partner = self.pairs.jax_pairs[value.index]
            return [self.pairs.recording.values[partner]] if partner >= 0 else []
        for k in self.pairs.torch_dead:
            other = self.pairs.recording.values[k]
            assert other.printed is not None
            # Equal ones are no pair where each is the wrong gradient of another parameter.
            if other.printed.shape != value.printed.shape or other.printed.matches(value.printed):
                continue
            if any(
                o.printed
                and o.printed.equals(other.printed)
                and o.printed.has_axes_of(other.printed)
                for o in seen
            ):
                continue
            seen.append(other)
            if len(seen) == 2 * TRIES:
                break
        printed = value.printed

        def rank(other: Value) -> tuple[bool, int]:
            assert other.printed is not None
            return other.printed.distance(printed) > CLOSE, other.index

        return sorted(seen, key=rank)[:TRIES]

    def _array(self, index: int, options: dict[int, list[Value]], j: int) -> np.ndarray:
        """Returns an array of torch; those that may be asked for next come from the same run."""
        maker = self.pairs.tape.maker
        later = (values for k, values in options.items() if maker[k] >= maker[j])
        return self.held.get(index, (value.index for values in later for value in values))

    def _agreement(self, place: int, arrays: dict[int, Any], join: Join, most: int) -> int:
        """Counts dead values of JAX that are paired with dead ones once this one is replaced.

        It stops at `most`, and after `AHEAD` values.
        """
        t = join.torch
        assert t.printed is not None
        left, found = AHEAD, 0
        dead_torch, dead_jax = set(self.pairs.torch_dead), set(self.pairs.jax_dead)
        for index in self.replay.follow(place, arrays, join.jax, join.expected, STEPS):
            printed = self.replay.trial[index]
            if printed is None or printed.is_plain or self.pairs.tape.values[index].kind == "move":
                continue
            if index not in dead_jax or printed.equals(t.printed):
                continue
            if join.is_turned and self.pairs.tape.values[index].op != "dot_general":
                continue  # a sum over the wrong axis of a transposed array is right as well
            partner = self.pairs.torch_table.partner(printed)
            if partner is not None and partner.index in dead_torch and partner.index > t.index:
                found += 1
            left -= 1
            if not left or found == most:
                break
        return found


def _distance(expected: np.ndarray, got: np.ndarray) -> float:
    """Returns the norm of a difference, relative to the norm of the expected array."""
    # The largest number of a dtype overflows in the squares, and two infinities have no difference.
    with np.errstate(invalid="ignore", over="ignore"):
        difference = (expected - got).ravel()
        scale = float(np.linalg.norm(expected.ravel()))
        if not np.isfinite(scale):
            scale = float(np.linalg.norm(expected[np.isfinite(expected)]))
            difference = difference[~np.isnan(difference)]
        norm = float(np.linalg.norm(difference))
        return norm / scale if scale else (math.inf if norm else 0.0)


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)
