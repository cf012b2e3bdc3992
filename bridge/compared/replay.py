"""Runs of a tape with some of its values replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bridge.compared.axes import error_of
from bridge.compared.held import Held, Substitute
from bridge.compared.recording.tape import Tape, printed

SNAPSHOTS = 8  # of the arrays that are in use, along a run
Arrays = dict[int, Any]


class Replay:
    """A tape that is run again from where a value was replaced.

    Args:
      tape: the run.
      held: arrays of torch, to take the place of those of JAX.
      most: bytes of the snapshots.

    Attributes:
      replaced: values of torch in place of values.
      bypassed: the same in place of one input of one step, by (step, value).
    """

    def __init__(self, tape: Tape, held: Held, most: float) -> None:
        self.tape, self.held, self.most = tape, held, most
        self.replaced: dict[int, Substitute] = {}
        self.bypassed: dict[tuple[int, int], Substitute] = {}
        self.errors: dict[int, float] = {}  # of the values that were replaced
        self.users: dict[int, list[int]] = {}
        for place, step in enumerate(tape.steps):
            for index in step.inputs:
                self.users.setdefault(index, []).append(place)
        self._last = {index: users[-1] for index, users in self.users.items()}
        ends = [*tape.outputs, *tape.gradients.values()]
        self._last.update(dict.fromkeys(ends, len(tape.steps)))
        self._snapshots: list[tuple[int, Arrays]] = []

    def before(self, place: int) -> Arrays:
        """Returns the arrays in use just before a step."""
        start, arrays = self._from(place)
        for k in range(start, place):
            self.execute(k, arrays)
        return arrays

    def _from(self, place: int) -> tuple[int, Arrays]:
        for start, arrays in reversed(self._snapshots):
            if start <= place:
                return start, dict(arrays)
        return 0, {
            **self.tape.leaves,
            **{
                k: self._expected(0, v, self.tape.leaves[k])
                for k, v in self.replaced.items()
                if k in self.tape.leaves
            },
        }

    def execute(self, place: int, arrays: Arrays) -> None:
        """Runs one step and forgets the arrays that nothing uses later."""
        step = self.tape.steps[place]
        inputs = [
            self._expected(place, self.bypassed[place, index], arrays[index])
            if (place, index) in self.bypassed
            else arrays[index]
            for index in step.inputs
        ]
        outputs = step.run(*inputs)
        for index, array in zip(step.outputs, outputs, strict=True):
            if index in self._last:
                arrays[index] = self._in_place_of(index, array)
        for index in set(step.inputs):
            if self._last[index] == place:
                arrays.pop(index, None)

    def value(self, index: int) -> Any:
        """Returns the array of a value."""
        place = self.tape.maker[index]
        arrays = self.before(place)
        self.execute(place, arrays)
        return arrays[index]

    def _in_place_of(self, index: int, array: Any) -> Any:
        if index not in self.replaced:
            return array
        expected = self._expected(self.tape.maker[index], self.replaced[index], array)
        got = np.asarray(array, np.float64)
        self.errors[index] = error_of(expected, got)
        return expected

    def _expected(self, place: int, substitute: Substitute, own: Any) -> np.ndarray:
        """Returns torch's array in place of one of JAX, for a run that is at a step."""

        def soon() -> Iterator[int]:
            steps = [(self.tape.maker.get(j, 0), s) for j, s in self.replaced.items()]
            steps += [(step, s) for (step, _), s in self.bypassed.items()]
            for step, other in sorted(steps, key=lambda pair: pair[0]):
                if step >= place:
                    yield other.torch

        return substitute.arranged(self.held.get(substitute.torch, soon()), own)

    def _keep(self, place: int, arrays: Arrays) -> None:
        """Takes a snapshot, unless all of them would be too large."""
        taken = [*self._snapshots, (place, dict(arrays))]
        distinct = {
            id(array): array
            for _, held in taken
            for index, array in held.items()
            if index not in self.tape.leaves
        }
        if sum(getattr(array, "nbytes", 0) for array in distinct.values()) <= self.most:
            self._snapshots = taken

    def run(self, place: int) -> None:
        """Runs from a step to the end and takes the fingerprints anew."""
        tape = self.tape
        self._snapshots = [pair for pair in self._snapshots if pair[0] <= place][-1:]
        start, arrays = self._from(place)
        every = max(1, len(tape.steps) // SNAPSHOTS)
        changed = set(self.replaced)
        for k in range(start, len(tape.steps)):
            if k % every == 0 and k and all(s != k for s, _ in self._snapshots):
                self._keep(k, arrays)
            step = tape.steps[k]
            self.execute(k, arrays)
            is_changed = any(i in changed or (k, i) in self.bypassed for i in step.inputs)
            for index in step.outputs:
                if is_changed or index in self.replaced:
                    changed.add(index)
                    if index in arrays:
                        tape.values[index].printed = printed(arrays[index])

    def follow(
        self, place: int, arrays: Arrays, value: int, array: Any, most: int
    ) -> Iterator[int]:
        """Runs on from a step with a value replaced; yields each value that depends on it.

        Its fingerprint is in `trial`.
        """
        self.trial: dict[int, Any] = {}
        arrays = dict(arrays)
        arrays[value] = array
        below = {value}
        for k in range(place, min(place + most, len(self.tape.steps))):
            step = self.tape.steps[k]
            if value in step.outputs:
                continue
            self.execute(k, arrays)
            if below.intersection(step.inputs):
                for index in step.outputs:
                    below.add(index)
                    if index in arrays:
                        self.trial[index] = printed(arrays[index])
                        yield index
