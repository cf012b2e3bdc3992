"""Gradients of parameters on both sides, compared parameter by parameter.

A parameter of JAX belongs to the one of torch that holds the same numbers. The gradient that the
function returns for it must be that of torch: an equal value somewhere else is not enough.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from bridge.compared.found import SMALL
from bridge.compared.recording.fingerprints import Print, made_of, total
from bridge.compared.recording.recorder import Recording
from bridge.compared.recording.tape import Tape
from bridge.compared.recording.values import Value

NOISE = 1e-11  # of the largest gradient: the bias of a key has the gradient 0, with its rounding


class GradientPairs:
    """The parameters of both sides that belong together, and the state of their gradients.

    Attributes:
      related: for each parameter of torch with a gradient, those of JAX that hold its numbers.
    """

    def __init__(self, recording: Recording, tape: Tape) -> None:
        self.recording, self.tape = recording, tape
        self._torch = {v.name: v for v in recording.values if v.kind == "leaf"}
        leaves = {v.name: v for v in tape.values if v.kind == "leaf"}
        self._jax = {name: leaves[name] for name in tape.gradients}
        sizes: dict[int, list[Value]] = defaultdict(list)
        for value in self._jax.values():
            if value.printed is not None:
                sizes[value.printed.size].append(value)
        self.related = {name: _relatives(self._torch[name], sizes) for name in recording.gradients}
        self._known = {
            other.name
            for value in self._torch.values()
            if tape.gradients and value.printed is not None
            for other in sizes.get(value.printed.size, [])
            if _holds(value, other)
        }

    def unpaired(
        self, torch_pairs: Collection[int], jax_pairs: Collection[int]
    ) -> tuple[list[str], list[str]]:
        """Returns the parameters of torch and of JAX whose gradient the other side does not have.

        Parameters that one side holds in pieces or stacked belong to none. Their gradients are
        looked for among all values, and among the values that pieces are made of.
        """
        ours = {name: self.recording.values[k] for name, k in self.recording.gradients.items()}
        theirs = {name: self.tape.values[k] for name, k in self.tape.gradients.items()}
        noise = NOISE * max((_size(v) for v in [*ours.values(), *theirs.values()]), default=0.0)
        same = {
            (name, other)
            for name, others in self.related.items()
            for other in others
            if max(_size(ours[name]), _size(theirs[other])) <= noise or self._is_same(name, other)
        }
        right, right_there = {name for name, _ in same}, {other for _, other in same}
        owned = {other for others in self.related.values() for other in others}
        wrong = [name for name, others in self.related.items() if others and name not in right]
        wrong_there = [other for other in theirs if other in owned - right_there]
        left = {
            name: value.printed
            for name, value in ours.items()
            if not self.related[name] and _size(value) > noise and value.index not in torch_pairs
        }
        left_there = {
            name: value.printed
            for name, value in theirs.items()
            if name not in self._known and _size(value) > noise and value.index not in jax_pairs
        }
        for whole, parts in ((left, left_there), (left_there, left)):
            for name in list(whole):
                pieces = made_of(whole[name], parts)
                if pieces:
                    del whole[name]
                    for piece in pieces:
                        del parts[piece]
        if _same_numbers(left.values(), left_there.values()):
            left, left_there = {}, {}
        # If torch has none left, those of JAX are tables and other arrays that torch computes.
        return [*wrong, *left], [*wrong_there, *(left_there if left else ())]

    def _is_same(self, name: str, other: str) -> bool:
        """True if both gradients are equal, with their axes in the parameters' order."""
        a = self.recording.values[self.recording.gradients[name]].printed
        b = self.tape.values[self.tape.gradients[other]].printed
        if a is None or b is None or not a.matches(b):
            return False
        if a.shape != b.shape or not a.axes or not b.axes:
            return True
        orders = set(self._orders_of(name, other))
        return any(order in orders for order in _orders(a, b))

    def _orders_of(self, name: str, other: str) -> Iterator[tuple[int, ...]]:
        return _orders(self._torch[name].printed, self._jax[other].printed)

    def far(self, names: Sequence[str]) -> list[str]:
        """Returns those whose gradients differ by more than a constant held in float32 does."""
        found = []
        for name in names:
            ours = self.recording.values[self.recording.gradients[name]].printed
            for other in self.related.get(name, ()):
                theirs = self.tape.values[self.tape.gradients[other]].printed
                if ours is not None and theirs is not None:
                    is_near = not ours.matches(theirs) and ours.distance(theirs) < SMALL
                    found += [] if is_near else [name]
        return list(dict.fromkeys(found))

    def wrong(self, names: Sequence[str]) -> dict[tuple[int, int], tuple[int, ...]]:
        """Returns JAX's and torch's value of gradients that differ, where one belongs to one.

        With each comes the order of torch's axes in JAX's parameter; an empty one if that has
        another shape.
        """
        found = {}
        for name in names:
            if len(self.related.get(name, ())) != 1:
                continue
            (other,) = self.related[name]
            key = (self.tape.gradients[other], self.recording.gradients[name])
            ours, theirs = self._torch[name].printed, self._jax[other].printed
            assert ours is not None
            assert theirs is not None
            places = next(self._orders_of(name, other), ()) if ours.shape == theirs.shape else ()
            found[key] = tuple(int(k) for k in np.argsort(places))
        return found


def _same_numbers(ours: Iterable[Print | None], theirs: Iterable[Print | None]) -> bool:
    """True if the arrays of both sides hold the same numbers in all, such as stacked ones."""
    a, b = (total([p for p in prints if p is not None]) for prints in (ours, theirs))
    return a is not None and b is not None and a.equals(b)


def _relatives(value: Value, sizes: dict[int, list[Value]]) -> list[str]:
    """Returns the parameters of JAX that hold the numbers of one of torch.

    If several do, such as new layers of norm, the one of its name is taken, else all of them.
    """
    assert value.printed is not None
    found = [other.name for other in sizes.get(value.printed.size, []) if _holds(value, other)]
    named = [name for name in found if f".{name}".endswith(f".{value.name}")]
    return named if len(named) == 1 else found


def _holds(ours: Value, theirs: Value) -> bool:
    a, b = ours.printed, theirs.printed
    return a is not None and b is not None and not a.is_whole and a.matches(b)


def _size(value: Value) -> float:
    """Returns the largest absolute number of a value."""
    return 0.0 if value.printed is None else max(map(abs, value.printed.sums[3:]))


def _orders(a: Print | None, b: Print | None) -> Iterator[tuple[int, ...]]:
    """Yields the orders in which the axes of one array are the axes of the other."""
    assert a is not None
    assert b is not None
    if not a.axes or not b.axes:
        yield from itertools.permutations(range(len(a.shape)))
        return
    ours, theirs = (sorted(x.axes, key=lambda axis: axis[3]) for x in (a, b))
    for order in itertools.permutations(range(len(theirs))):
        if all(a.has_axis(ours[k], theirs[p]) for k, p in enumerate(order)):
            yield order
