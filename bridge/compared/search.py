"""The search for the parts: the first values that differ, and where the two agree again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bridge.compared.axes import error_of, in_order, order_of, other_orders
from bridge.compared.jax_run import COTANGENT, JaxSide
from bridge.compared.recorder import Recording
from bridge.compared.replay import Replay
from bridge.compared.tape import Tape
from bridge.compared.torch_run import TorchSide
from bridge.compared.values import EQUAL, Table, Value, between, dead, frontier, made_of, paired

CLOSE = 0.02  # arrays that differ by less are two forms of one value
REACH = 48  # dead values that are looked at for a place to go on
TRIES = 6  # values of torch that are tried for one of JAX
AHEAD = 14  # values behind a replaced one, of which one must be paired
STEPS = 160  # of JAX behind a replaced value, which are run for that
MOST = 400  # parts
NEAR = 12  # dead values whose operands may lack an operation
HELD = 64  # arrays of torch that are kept at a time


@dataclass
class Found:
    """A place where the two part, and the values that they go on with.

    Attributes:
      torch, jax: the first dead values; None where a side has none.
      torch_join, jax_join: the values that were made equal; None at the end.
      expected, got: their arrays, in one arrangement.
      is_missing: JAX lacks an operation, which torch has.
      error: the difference relative to the value's scale.
    """

    torch: Value | None
    jax: Value | None
    torch_join: Value | None = None
    jax_join: Value | None = None
    expected: np.ndarray | None = None
    got: np.ndarray | None = None
    is_missing: bool = False
    error: float = float("nan")


@dataclass
class Join:
    """Values of both sides that are the same one in two forms.

    Attributes:
      torch, jax: torch's value, and the index of JAX's.
      expected, got: their arrays, in JAX's arrangement.
      order: the order of the axes of torch's array in it.
      is_missing: JAX goes on with a value of which torch first makes another one.
      is_turned: the same numbers, with axes of one size exchanged.
      user: the wrong value that JAX computes from it.
    """

    torch: Value
    jax: int
    expected: np.ndarray
    got: np.ndarray
    order: tuple[int, ...]
    is_missing: bool
    is_turned: bool
    user: int


@dataclass
class Search:
    """Both recorded runs, and what was found in them."""

    torch_side: TorchSide
    jax_side: JaxSide
    recording: Recording
    tape: Tape
    states: list[int]
    found: list[Found] = field(default_factory=list)
    is_joined: bool = True

    def __post_init__(self) -> None:
        self.replay = Replay(self.tape)
        self._joined: dict[int, int] = {}  # of JAX's values, those that torch's took the place of
        self._arrays: dict[int, np.ndarray] = {}
        self._settled_jax: set[int] = set()
        self._settled_torch: set[int] = set()
        self._backward: set[int] = set()
        for value in self.tape.values:
            if value.name == COTANGENT or not self._backward.isdisjoint(value.parents):
                self._backward.add(value.index)
        self.pair()

    def pair(self) -> None:
        """Pairs the values of both sides."""
        torch, jax = self.recording.values, self.tape.values
        self.torch_table = Table(torch)
        self.jax_pairs = paired(jax, self.torch_table)
        self.torch_pairs = paired(torch, Table(jax))
        wrong = self.wrong_outputs()
        wrong_torch = [self.recording.outputs[k] for k in wrong]
        wrong_jax = [self.tape.outputs[k] for k in wrong]
        wrong_torch += [k for k in self.recording.buffers if k not in self.torch_pairs]
        # A cache that JAX writes has no buffer in torch: states of a wrong buffer's shape count.
        shapes = {torch[k].shape for k in wrong_torch if k in self.recording.buffers}
        wrong_jax += [k for k in self.states if k not in self.jax_pairs and jax[k].shape in shapes]
        # Parts of the forward pass come first: they make all gradients wrong.
        is_forward = bool(wrong_torch or wrong_jax)
        if not is_forward:
            ours, theirs = unpaired_gradients(self)
            wrong_torch += [self.recording.gradients[name] for name in ours]
            wrong_jax += [self.tape.gradients[name] for name in theirs]
        for wrong_ones, pairs, values in (
            (wrong_torch, self.torch_pairs, torch),
            (wrong_jax, self.jax_pairs, jax),
        ):
            for k in wrong_ones:
                if pairs.pop(k, None) is not None:
                    # Right, but not the output: the other side goes on from here.
                    pairs.update({p: pairs.get(p, -1) for p in values[k].parents})
        jax_pairs, torch_pairs = set(self.jax_pairs), set(self.torch_pairs)
        if is_forward:
            # A gradient that is right says nothing about the value that it belongs to.
            jax_pairs -= self._backward
            torch_pairs = {k for k in torch_pairs if k < self.recording.forward}
        self.jax_dead = dead(jax, jax_pairs, wrong_jax, self._settled_jax)
        self.torch_dead = dead(torch, torch_pairs, wrong_torch, self._settled_torch)
        if not is_forward:
            # What the forward pass keeps for the backward pass is no part: torch has none of it.
            self.jax_dead = [k for k in self.jax_dead if k in self._backward]

    def wrong_outputs(self) -> list[int]:
        """Returns the numbers of the outputs that differ."""
        wrong = []
        for k, (t, j) in enumerate(zip(self.recording.outputs, self.tape.outputs, strict=True)):
            a, b = self.recording.values[t].printed, self.tape.values[j].printed
            if a is not None and b is not None and not a.equals(b) and j not in self._joined:
                wrong.append(k)
        return wrong

    def run(self) -> None:
        """Finds all parts."""
        while self.jax_dead or self.torch_dead:
            found, *repeated = self.next()
            again = any(
                old.jax_join is found.jax_join and old.torch_join is found.torch_join
                for old in self.found
            )
            self.found += [found, *repeated]
            if found.jax_join is None or again or len(self.found) >= MOST:
                self.is_joined = False
                return
            self.pair()

    def next(self) -> list[Found]:
        """Finds the first part that is left and goes on with torch's value behind it."""
        jax, torch = self.tape.values, self.recording.values
        if not self.jax_dead:
            return [Found(torch[self.torch_dead[0]], None)]
        first = jax[frontier(jax, self.jax_dead, self._joined)[0]]
        join = self._join(first)
        if join is None:
            return [Found(torch[self.torch_dead[0]] if self.torch_dead else None, first)]
        t, j = join.torch, jax[join.jax]
        if join.is_turned:
            found = Found(_made(torch, t), _made(jax, j), t, j, join.expected, join.got)
        else:
            first = jax[join.user] if join.is_missing else first
            start = j if join.is_missing and self._is_same_call(j.index, t) else first
            origin = _made(torch, self._origin(t))
            found = Found(origin, start, t, j, join.expected, join.got, join.is_missing)
        before = {k: jax[k].printed for k in self.jax_dead}
        again = self._replace(join, first)
        for ours, theirs in [(t, j.index), *again]:
            span = max(t.index - found.torch.index, 0) if found.torch else 0
            self._settled_torch |= between(torch, ours.index, span)
            self._settled_jax |= between(jax, theirs, max(j.index - first.index, 0))
        found.error = max(error_of(join.expected, join.got), self._effect(before))
        return [found, *again_found(found, again, self)]

    def _effect(self, before: dict[int, Any]) -> float:
        """Returns how far the next values were off that are right now, by their fingerprints."""
        most, left = 0.0, AHEAD
        for k, old in before.items():
            new = self.tape.values[k].printed
            if not left or old is None or new is None or new.equals(old):
                continue
            if self.torch_table.partner(new) is not None:
                most = max(most, new.distance(old))
                left -= 1
        return most

    def _origin(self, value: Value) -> Value:
        """Returns the first dead value of torch that a value was computed from."""
        values = self.recording.values
        behind = {value.index}
        for k in range(value.index, -1, -1):
            if k in behind:
                behind.update(values[k].parents)
        return next((values[k] for k in self.torch_dead if k in behind), value)

    def _replace(self, join: Join, first: Value) -> list[tuple[Value, int]]:
        """Puts torch's value in place of JAX's, and of those made alike in other layers.

        Returns:
          The others: what torch and JAX have there.
        """
        tape, replay = self.tape, self.replay
        start = tape.maker.get(join.jax, 0)
        others: list[tuple[Value, int]] = []
        if join.is_missing and self._is_used_beside(join.jax, join.torch):
            start = tape.maker[first.index]
            replay.bypassed[start, join.jax] = join.expected
        else:
            others = alike(self, join)[: HELD - 1]
            if others:
                recording, _ = self.torch_side.record([t.index for t, _ in others])
                for t, j in others:
                    array = in_order(recording.arrays[t.index], join.order, tape.values[j].shape)
                    replay.replaced[j] = array
                    self._joined[j] = t.index
            replay.replaced[join.jax] = join.expected
            self._joined[join.jax] = join.torch.index
        with _wide(tape):
            replay.run(start)
        return others

    def _is_used_beside(self, j: int, t: Value) -> bool:
        """True if torch uses the value that JAX goes on with in another place too."""
        partner = self.jax_pairs.get(j, -1)
        behind = {t.index}
        values = self.recording.values
        for k in range(t.index, partner, -1):
            if k in behind:
                behind.update(values[k].parents)
        return any(
            partner in value.parents and value.index not in behind and value.kind != "fine"
            for value in values[partner + 1 :]
        )

    def _join(self, first: Value) -> Join | None:
        """Finds values of both sides that are the same one, the earliest behind the first part."""
        tape = self.tape
        jax = tape.values
        frontiers = set(frontier(jax, self.jax_dead, self._joined))
        start = self.jax_dead.index(first.index)
        candidates = [
            k
            for k in self.jax_dead[start:]
            if jax[k].kind != "move" or k in frontiers or k in tape.outputs
        ][:REACH]
        # A paired value that a wrong one was computed from: an operation may be missing between.
        before: dict[int, int] = {}
        for k in [first.index, *candidates[:NEAR]]:
            for parent in jax[k].parents:
                if parent in self.jax_pairs and parent in tape.maker:
                    before.setdefault(parent, k)
        row = sorted({*candidates, *before}, key=lambda k: tape.maker[k])
        options = {j: self._options(jax[j]) for j in row}
        row = [j for j in row if options[j]]
        if not row:
            return None
        place = tape.maker[row[0]]
        with _wide(tape):
            arrays = self.replay.before(place)
            for j in row:
                while place <= tape.maker[j]:
                    self.replay.execute(place, arrays)
                    place += 1
                if j not in arrays:
                    continue
                got = _numpy(arrays[j])
                for t in options[j]:
                    if j in before and t.kind == "fine":
                        continue
                    array = self._array(t.index, options, j)
                    is_turned = t.index in self.torch_pairs
                    if is_turned:
                        orders = other_orders(array, got)
                    else:
                        order = order_of(array, got)
                        orders = [] if order is None else [order]
                    for order in orders:
                        expected = in_order(array, order, got.shape)
                        is_missing = j in before and not is_turned
                        user = before.get(j, first.index)
                        join = Join(t, j, expected, got, order, is_missing, is_turned, user)
                        is_sure = not (is_turned or is_missing) and _is_close(expected, got)
                        if is_sure or self._agrees(place, arrays, join):
                            return join
        return self._join_outputs(first)

    def _join_outputs(self, first: Value) -> Join | None:
        """Takes torch's output for one of JAX that nothing right was found before."""
        tape, recording = self.tape, self.recording
        pairs = list(zip(tape.outputs, recording.outputs, strict=True))
        pairs += [(j, t) for j in self.states for t in recording.buffers]
        pairs += [
            (j, recording.gradients[name])
            for name, j in tape.gradients.items()
            if name in recording.gradients
        ]
        for j, t in pairs:
            below = {first.index}
            for value in tape.values[first.index + 1 : j + 1]:
                if not below.isdisjoint(value.parents):
                    below.add(value.index)
            a, b = tape.values[j].printed, recording.values[t].printed
            if j not in below or a is None or b is None or a.shape != b.shape or a.equals(b):
                continue
            if j in self._joined or j not in self.jax_dead:
                continue
            with _wide(tape):
                got = _numpy(self.replay.value(j))
            array = self.torch_side.record([t])[0].arrays[t]
            order = order_of(array, got)
            if order is not None:
                expected = in_order(array, order, got.shape)
                value = recording.values[t]
                return Join(value, j, expected, got, order, False, False, first.index)
        return None

    def _is_same_call(self, j: int, t: Value) -> bool:
        """True if torch's operation makes the value on the way, such as a product without bias."""
        partner = self.recording.values[self.jax_pairs.get(j, 0)]
        while partner.kind == "move" and partner.parents:
            partner = self.recording.values[partner.parents[0]]
        made = _made(self.recording.values, t)
        return partner.kind == "fine" and partner.op == made.op

    def _options(self, value: Value) -> list[Value]:
        """Returns values of torch that may be this one of JAX, the closest first."""
        assert value.printed is not None
        seen: list[Value] = []
        shape = value.printed.shape
        if value.index in self.jax_pairs and len(set(shape)) < len(shape):
            # The same numbers, but two axes of one size may be exchanged.
            partner = self.jax_pairs[value.index]
            return [self.recording.values[partner]] if partner >= 0 else []
        for k in self.torch_dead:
            other = self.recording.values[k]
            assert other.printed is not None
            if other.printed.shape != value.printed.shape:
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
        if index not in self._arrays:
            wanted = [index]
            for k, values in options.items():
                if self.tape.maker[k] >= self.tape.maker[j]:
                    wanted += [value.index for value in values]
            recording, _ = self.torch_side.record(list(dict.fromkeys(wanted))[:HELD])
            self._arrays = recording.arrays
        return self._arrays[index]

    def _agrees(self, place: int, arrays: dict[int, Any], join: Join) -> bool:
        """True if dead values of JAX are paired with dead ones once this one is replaced."""
        t = join.torch
        assert t.printed is not None
        left = AHEAD
        dead_torch, dead_jax = set(self.torch_dead), set(self.jax_dead)
        for index in self.replay.follow(place, arrays, join.jax, join.expected, STEPS):
            printed = self.replay.trial[index]
            if printed is None or printed.is_plain or self.tape.values[index].kind == "move":
                continue
            if index not in dead_jax or printed.equals(t.printed):
                continue
            if join.is_turned and self.tape.values[index].op != "dot_general":
                continue  # a sum over the wrong axis of a transposed array is right as well
            partner = self.torch_table.partner(printed)
            if partner is not None and partner.index in dead_torch and partner.index > t.index:
                return True
            left -= 1
            if not left:
                return False
        return False


def alike(search: Search, join: Join) -> list[tuple[Value, int]]:
    """Returns later values that the same lines made, such as those of other layers.

    None if both sides do not have the same number of them.
    """
    tape, jax = search.tape, search.tape.values
    step = tape.steps[tape.maker[join.jax]] if join.jax in tape.maker else None
    if step is None or join.is_turned:
        return []
    slot = step.outputs.index(join.jax)
    theirs = []
    dead_jax, dead_torch = set(search.jax_dead), set(search.torch_dead)
    for other in tape.steps[tape.maker[join.jax] + 1 :]:
        if other.key == step.key and other.outputs[slot] in dead_jax:
            theirs.append(other.outputs[slot])
    t = join.torch
    ours = [
        value
        for value in search.recording.values[t.index + 1 :]
        if value.index in dead_torch
        and (value.op, value.name, value.shape, value.kind) == (t.op, t.name, t.shape, t.kind)
        and value.place.kind == t.place.kind
    ]
    if len(ours) != len(theirs):
        ours = [value for value in ours if value.place.line == t.place.line]
    sizes = {jax[j].shape for j in theirs}
    return list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) and sizes else []


def again_found(found: Found, others: list[tuple[Value, int]], search: Search) -> list[Found]:
    """Returns a part for each other layer that was wrong in the same way."""
    return [
        Found(
            _made(search.recording.values, t),
            found.jax,
            t,
            search.tape.values[j],
            is_missing=found.is_missing,
            error=search.replay.errors[j],
        )
        for t, j in others
        if search.replay.errors.get(j, 0.0) > EQUAL
    ]


def _made(values: Sequence[Value], value: Value) -> Value:
    """Returns the value that one has its numbers from, by moves alone."""
    while value.kind == "move" and len(value.parents) == 1:
        parent = values[value.parents[0]]
        if parent.kind == "leaf" or parent.printed is None or value.printed is None:
            break
        if not parent.printed.equals(value.printed):
            break
        value = parent
    return value


def _is_close(expected: np.ndarray, got: np.ndarray) -> bool:
    scale = float(np.linalg.norm(expected.ravel()))
    return float(np.linalg.norm((expected - got).ravel())) <= CLOSE * scale


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _wide(tape: Tape) -> Any:
    import jax

    return jax.enable_x64(tape.is_wide)


def unpaired_gradients(search: Search) -> tuple[list[str], list[str]]:
    """Returns the parameters of torch and of JAX whose gradient the other side does not have.

    The gradient of a weight that one side holds in pieces is made of those of the pieces.
    """
    torch, jax = search.recording.values, search.tape.values
    ours = {
        name: torch[k].printed
        for name, k in search.recording.gradients.items()
        if torch[k].tells and k not in search.torch_pairs
    }
    theirs = {
        name: jax[k].printed
        for name, k in search.tape.gradients.items()
        if jax[k].tells and k not in search.jax_pairs
    }
    for whole, parts in ((ours, theirs), (theirs, ours)):
        for name in list(whole):
            pieces = made_of(whole[name], parts)
            if pieces:
                del whole[name]
                for piece in pieces:
                    del parts[piece]
    return list(ours), list(theirs)


def begin(torch_side: TorchSide, jax_side: JaxSide, cotangents: Any = None) -> Search:
    """Records both runs and pairs their values."""
    torch_side.cotangents = jax_side.cotangents = cotangents
    recording, _ = torch_side.record()
    tape, _, states = jax_side.record()
    return Search(torch_side, jax_side, recording, tape, states)
