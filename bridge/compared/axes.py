"""The arrangement of one array's axes in another."""

from __future__ import annotations

import itertools

import numpy as np


def order_of(array: np.ndarray, like: np.ndarray) -> tuple[int, ...] | None:
    """Returns the order of an array's axes in another one that is close to it.

    Axes of one element do not count. None if the sizes do not allow it.
    """
    a = array.reshape([n for n in array.shape if n != 1])
    sizes = [n for n in like.shape if n != 1]
    if sorted(a.shape) != sorted(sizes):
        return None
    target = like.reshape(sizes)
    best, least = None, np.inf
    for order in itertools.permutations(range(a.ndim)):
        if [a.shape[k] for k in order] != sizes:
            continue
        with np.errstate(invalid="ignore"):  # two infinities
            error = float(np.nansum(np.abs(a.transpose(order) - target)))
        if best is None or error < least:
            best, least = order, error
    return best


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
