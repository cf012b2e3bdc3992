"""Both recorded runs: the values that are paired, and the dead ones that are left."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.compared.found import SMALL
from bridge.compared.gradient_pairs import GradientPairs
from bridge.compared.recording.jax_run import COTANGENT, JaxSide
from bridge.compared.recording.recorder import Recording
from bridge.compared.recording.tape import Tape
from bridge.compared.recording.torch_run import TorchSide
from bridge.compared.recording.values import Table, Value, dead, paired


@dataclass
class Pairs:
    """Both recorded runs.

    Attributes:
      torch_side, jax_side: the models with their arguments.
      recording, tape: the runs.
      states: indices of the states that the call of JAX changed.
      joined: values of torch that took the place of values of JAX.
      settled_torch, settled_jax: values of the parts that were found.
      torch_table: torch's values by their numbers.
      torch_pairs, jax_pairs: the partner of each value that has one.
      torch_dead, jax_dead: values behind which nothing is paired.
    """

    torch_side: TorchSide
    jax_side: JaxSide
    recording: Recording
    tape: Tape
    states: list[int]

    def __post_init__(self) -> None:
        self.joined: dict[int, int] = {}  # of JAX's values, those that torch's took the place of
        self.settled_jax: set[int] = set()
        self.settled_torch: set[int] = set()
        self.parameters: dict[str, None] = {}  # those whose gradient differs, in torch's order
        self._gradients = GradientPairs(self.recording, self.tape)
        cotangents = {v.index for v in self.tape.values if v.name == COTANGENT}
        below = set(cotangents)
        for value in self.tape.values:
            if not below.isdisjoint(value.parents):
                below.add(value.index)
        self._backward = below - cotangents
        # Values that outputs were computed from; others belong to the gradients alone.
        self._forward = {*self.tape.outputs, *self.states}
        for value in reversed(self.tape.values):
            if value.index in self._forward:
                self._forward.update(value.parents)
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
        wrong_torch += [
            k for k in self.recording.buffers if torch[k].tells and k not in self.torch_pairs
        ]
        # A cache that JAX writes has no buffer in torch: states of a wrong buffer's shape count.
        shapes = {torch[k].shape for k in wrong_torch if k in self.recording.buffers}
        wrong_jax += [k for k in self.states if k not in self.jax_pairs and jax[k].shape in shapes]
        # Parts of the forward pass come first: they make all gradients wrong.
        is_forward = bool(wrong_torch or wrong_jax)
        if not is_forward:
            ours, theirs = self.unpaired_gradients()
            self.parameters.update(dict.fromkeys(self._gradients.far(ours)))
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
            # Nor does the right row of a stack that a scan keeps for its backward pass.
            turn = min(self._backward, default=len(jax))
            jax_pairs = {k for k in jax_pairs if k < turn or k in self._forward}
            torch_pairs = {k for k in torch_pairs if k < self.recording.forward}
        self.jax_dead = dead(jax, jax_pairs, wrong_jax, self.settled_jax, self.joined)
        self.torch_dead = dead(torch, torch_pairs, wrong_torch, self.settled_torch)
        if not is_forward:
            # Residuals of the forward pass are no part: torch has no such values.
            self.jax_dead = [k for k in self.jax_dead if k in self._backward]

    def pair_nearly(self) -> None:
        """Pairs values of models without a part that differ by a constant held in float32.

        Values that hold their rows in another order are paired too.
        """
        torch, jax = self.recording.values, self.tape.values
        for values, pairs, table in (
            (torch, self.torch_pairs, Table(jax)),
            (jax, self.jax_pairs, self.torch_table),
        ):
            for value in values:
                if value.tells and value.index not in pairs and value.printed is not None:
                    near = next(table.equal_to(value.printed, SMALL), None)
                    pairs.update({} if near is None else {value.index: near.index})

    def before_gradient(self, value: Value) -> Value:
        """Returns the first wrong value that a wrong gradient was computed from beside a gradient.

        It may be a slope, which a custom rule computes in another line.
        """
        values, behind, first = self.tape.values, {value.index}, value
        if value.index not in self._backward:
            return value
        for k in range(value.index, 0, -1):
            for parent in values[k].parents if k in behind else ():
                is_own = parent not in self._backward and parent not in self._forward
                is_own = is_own and values[parent].tells and values[parent].kind != "leaf"
                if is_own and parent not in self.jax_pairs:
                    behind.add(parent)
                    first = values[min(parent, first.index)]
        return value if first.place == value.place else first

    def unpaired_gradients(self) -> tuple[list[str], list[str]]:
        """Returns the parameters of torch and of JAX whose gradient the other side lacks."""
        return self._gradients.unpaired(self.torch_pairs, self.jax_pairs)

    def wrong_gradients(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Returns JAX's and torch's value of each wrong gradient, with the order of its axes."""
        return self._gradients.wrong(self.unpaired_gradients()[0])

    def wrong_outputs(self) -> list[int]:
        """Returns the numbers of the outputs that differ."""
        wrong = []
        for k, (t, j) in enumerate(zip(self.recording.outputs, self.tape.outputs, strict=True)):
            a, b = self.recording.values[t].printed, self.tape.values[j].printed
            if a is not None and b is not None and not a.matches(b) and j not in self.joined:
                wrong.append(k)
        return wrong
