"""The search for the parts: the first values that differ, and where the two agree again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.compared.axes import error_of, in_order
from bridge.compared.found import Found, Join
from bridge.compared.jax_run import JaxSide
from bridge.compared.joins import AHEAD, HELD, Joins
from bridge.compared.layers import again_found, alike
from bridge.compared.pairs import Pairs
from bridge.compared.replay import Replay
from bridge.compared.torch_run import TorchSide
from bridge.compared.values import Value, between, frontier, unmoved

MOST = 400  # parts


@dataclass
class Search(Pairs):
    """The parts of both runs, found one after the other.

    Attributes:
      found: the parts.
      is_joined: both sides met again behind each of them.
    """

    found: list[Found] = field(default_factory=list)
    is_joined: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.replay = Replay(self.tape)
        self._joins = Joins(self, self.replay)

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
        first = jax[frontier(jax, self.jax_dead, self.joined)[0]]
        join = self._joins.find(first)
        if join is None:
            return [Found(torch[self.torch_dead[0]] if self.torch_dead else None, first)]
        t, j = join.torch, jax[join.jax]
        if join.is_turned:
            found = Found(unmoved(torch, t), unmoved(jax, j), t, j, join.expected, join.got)
        else:
            first = jax[join.user] if join.is_missing else first
            start = j if join.is_missing and self._joins.is_same_call(j.index, t) else first
            origin = unmoved(torch, self._origin(t))
            found = Found(origin, start, t, j, join.expected, join.got, join.is_missing)
        before = {k: jax[k].printed for k in self.jax_dead}
        again = self._replace(join, first)
        for ours, theirs in [(t, j.index), *again]:
            span = max(t.index - found.torch.index, 0) if found.torch else 0
            self.settled_torch |= between(torch, ours.index, span)
            self.settled_jax |= between(jax, theirs, max(j.index - first.index, 0))
        found.error = max(error_of(join.expected, join.got), self._effect(before))
        return [found, *again_found(found, again, self, self.replay.errors)]

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
                    self.joined[j] = t.index
            replay.replaced[join.jax] = join.expected
            self.joined[join.jax] = join.torch.index
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


def begin(torch_side: TorchSide, jax_side: JaxSide, cotangents: Any = None) -> Search:
    """Records both runs and pairs their values."""
    torch_side.cotangents = jax_side.cotangents = cotangents
    recording, _ = torch_side.record()
    tape, _, states = jax_side.record()
    return Search(torch_side, jax_side, recording, tape, states)
