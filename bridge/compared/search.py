"""The search for the parts: the first values that differ, and where the two agree again."""

from __future__ import annotations

from typing import Any

from bridge.compared.axes import error_of
from bridge.compared.causes import cause_of_numbers
from bridge.compared.choices import wrong_choices
from bridge.compared.conditioning import rounded_alike, rounded_behind
from bridge.compared.found import SMALL, Found, Join
from bridge.compared.held import Substitute
from bridge.compared.joins import AHEAD, Joins
from bridge.compared.layers import again_found, alike
from bridge.compared.recording.jax_run import JaxSide
from bridge.compared.recording.torch_run import TorchSide
from bridge.compared.recording.values import Value, between, is_piece, unmoved
from bridge.compared.state import State

MOST = 400  # parts


class Search(State):
    """The parts of both runs, found one after the other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._joins = Joins(self, self.replay, self.held)

    def run(self) -> None:
        """Finds all parts."""
        while True:
            boundary = rounded_alike(self)
            if boundary:
                self.boundaries += [boundary] if boundary not in self.boundaries else []
                self.pair()
                continue
            choices = wrong_choices(self)
            if choices:
                self.found += choices
                self.pair()
                continue
            if not (self.jax_dead or self.torch_dead):
                self.found += self._wrong_tokens()
                return
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

    def _wrong_tokens(self) -> list[Found]:
        """Returns outputs of whole numbers that differ although no value behind them does."""
        torch, jax = self.recording, self.tape
        pairs = [
            (torch.values[torch.outputs[k]], jax.values[jax.outputs[k]])
            for k in self.wrong_outputs()
        ]
        return [
            Found(unmoved(torch.values, t), unmoved(jax.values, j), error=1.0)
            for t, j in pairs
            if t.printed is not None and t.printed.is_whole
        ]

    def next(self) -> list[Found]:
        """Finds the first part that is left and goes on with torch's value behind it."""
        jax, torch = self.tape.values, self.recording.values
        if not self.jax_dead:
            return [self._without_jax(torch[self.torch_dead[0]])]
        first = self.first_dead()
        assert first is not None
        join = self._joins.find(first)
        if join is None:
            return [Found(torch[self.torch_dead[0]] if self.torch_dead else None, first)]
        t, j = join.torch, jax[join.jax]
        if not join.is_turned and not join.is_missing:
            first = self._first_behind(j, first)
        if join.is_turned:
            found = Found(unmoved(torch, t), unmoved(jax, j), t, j, join.expected, join.got)
        else:
            first = jax[join.user] if join.is_missing else first
            start = j if join.is_missing and self._joins.is_same_call(j.index, t) else first
            origin = unmoved(torch, self._origin(t))
            found = Found(origin, start, t, j, join.expected, join.got, join.is_missing)
        found.numbers = cause_of_numbers(found)
        found.expected = found.got = None  # no arrays are kept
        before = {k: jax[k].printed for k in self.jax_dead}
        ends = [*self.tape.outputs, *self.states, *self.tape.gradients.values()]
        outputs = [jax[k].printed for k in ends]
        again = self._replace(join, first)
        for ours, theirs in [(t, j.index), *again]:
            span = max(t.index - found.torch.index, 0) if found.torch else 0
            self.settled_torch |= between(torch, ours.index, span)
            self.settled_jax |= between(jax, theirs, max(j.index - first.index, 0))
        if outputs == [jax[k].printed for k in ends] and any(jax[k].tells for k in ends):
            found.error = 0.0  # no output depends on the numbers that differ
            return [found]
        found.error = error_of(join.expected, join.got)
        effect = self._effect(before)
        if found.error < SMALL <= effect:
            smooth, rounded = rounded_behind(self, first)
            effect = self._effect({k: old for k, old in before.items() if k in smooth})
            found.rounded = rounded if effect < SMALL else ""
        found.error = max(found.error, effect)
        return [found, *again_found(found, again, self, self.replay.errors)]

    def _without_jax(self, first: Value) -> Found:
        """Returns a part of which JAX has no value that tells, such as a gradient of zeros."""
        for j, t in self.wrong_gradients():
            ours, theirs = self.recording.values[t].printed, self.tape.values[j].printed
            line = self.tape.values[j].place
            if t in self.torch_dead and line is not None and ours and theirs:
                return Found(first, self.tape.values[j], error=ours.distance(theirs))
        return Found(first, None)

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

    def _first_behind(self, joined: Value, first: Value) -> Value:
        """Returns the first dead value of JAX that a joined one was computed from.

        The value of an earlier part stands for its slices, and for results of it in other places.
        """
        values, dead = self.tape.values, set(self.jax_dead)
        behind = between(values, joined.index, joined.index - first.index)
        start = first.index if first.index in behind else min(behind & dead, default=first.index)
        earlier = {old.jax.index for old in self.found if old.jax and old.error >= SMALL}
        while True:
            parents = [
                k
                for k in values[start].parents
                if k in self.settled_jax and k not in self.joined and k not in self.jax_pairs
                if values[start].kind == "move"
                or is_piece(values[start], values[k])
                or unmoved(values, values[k]).index in earlier
            ]
            if not parents:
                return self.before_gradient(values[start])
            start = parents[0]

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
            shape = tape.values[join.jax].shape
            replay.bypassed[start, join.jax] = Substitute(join.torch.index, join.order, shape)
        else:
            others = alike(self, join)
            for t, j in [(join.torch, join.jax), *others]:
                replay.replaced[j] = Substitute(t.index, join.order, tape.values[j].shape)
                self.joined[j] = t.index
        with tape.wide():
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


def begin(torch_side: TorchSide, jax_side: JaxSide) -> Search:
    """Records both runs and pairs their values."""
    recording, _ = torch_side.record()
    tape, _, states = jax_side.record()
    return Search(torch_side, jax_side, recording, tape, states)
