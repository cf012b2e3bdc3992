"""The arrangement of one array's axes in another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

TIED = 1.25  # differences up to this factor apart do not tell two orders apart


def order_of(array: np.ndarray, like: np.ndarray) -> tuple[int, ...] | None:
    """Returns the order of an array's axes in another one that is close to it.

    Axes of one element do not count. None if the sizes do not allow it.
    """
    return next(iter(likely_orders(array, like)), None)


def likely_orders(array: np.ndarray, like: np.ndarray) -> list[tuple[int, ...]]:
    """Returns the orders of axes with about the smallest difference.

    Orders that exchange few axes of one size come first: ports seldom exchange height and width.
    """
    a = array.reshape([n for n in array.shape if n != 1])
    sizes = [n for n in like.shape if n != 1]
    if sorted(a.shape) != sorted(sizes):
        return []
    target = like.reshape(sizes)
    errors: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(a.ndim)):
        if [a.shape[k] for k in order] == sizes:
            with np.errstate(invalid="ignore"):  # two infinities
                errors[order] = float(np.nansum(np.abs(a.transpose(order) - target)))
    least = min(errors.values())
    tied = [order for order, error in errors.items() if error <= TIED * least]
    return sorted(tied, key=lambda order: (_exchanges(order), errors[order]))


def fits(order: tuple[int, ...], array: Sequence[int], like: Sequence[int]) -> bool:
    """True if an order of axes brings one shape into the other."""
    sizes, target = ([n for n in shape if n != 1] for shape in (array, like))
    return len(sizes) == len(order) and [sizes[k] for k in order] == target


def _exchanges(order: tuple[int, ...]) -> int:
    """Returns the number of pairs of axes that an order exchanges."""
    return sum(a > b for a, b in itertools.combinations(order, 2))


def in_order(array: np.ndarray, order: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array with its axes in an order, in the shape of the other side."""
    a = array.reshape([n for n in array.shape if n != 1])
    return np.ascontiguousarray(a.transpose(order)).reshape(shape)


def other_orders(array: np.ndarray, like: np.ndarray) -> list[tuple[int, ...]]:
    """Returns the orders of axes that give the shape of the other array and not its numbers."""
    a = array.reshape([n for n in array.shape if n != 1])
    sizes = [n for n in like.shape if n != 1]
    found = []
    for order in itertools.permutations(range(a.ndim)):
        if [a.shape[k] for k in order] == sizes:
            moved = a.transpose(order).reshape(like.shape)
            if not np.allclose(moved, like, equal_nan=True):
                found.append(order)
    return found


def error_of(expected: np.ndarray, got: np.ndarray) -> float:
    """Returns the largest difference relative to the largest expected number."""
    with np.errstate(all="ignore"):
        difference = np.abs(expected - got)
    difference = difference[np.isfinite(difference)]
    finite = expected[np.isfinite(expected)]
    scale = float(np.max(np.abs(finite))) if finite.size else 0.0
    return float(difference.max()) / (scale or 1.0) if difference.size else 0.0
