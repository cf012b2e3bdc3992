"""The arrangement of one array's axes in another."""

from __future__ import annotations

import itertools

import numpy as np


def arranged(array: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Returns the array with its axes in the order of another one that is close to it.

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
        moved = a.transpose(order)
        error = float(np.sum(np.abs(moved - target))) if a.size else 0.0
        if best is None or error < least:
            best, least = moved, error
    return None if best is None else best.reshape(like.shape)


def turned(array: np.ndarray, like: np.ndarray) -> list[np.ndarray]:
    """Returns the array in every other order of its axes that has the shape of the given one."""
    a = array.reshape([n for n in array.shape if n != 1])
    sizes = [n for n in like.shape if n != 1]
    found = []
    for order in itertools.permutations(range(a.ndim)):
        if [a.shape[k] for k in order] == sizes:
            moved = a.transpose(order).reshape(like.shape)
            if not np.allclose(moved, like, equal_nan=True):
                found.append(moved)
    return found


def error_of(expected: np.ndarray, got: np.ndarray) -> float:
    """Returns the largest difference relative to the largest expected number."""
    with np.errstate(all="ignore"):
        difference = np.abs(expected - got)
    difference = difference[np.isfinite(difference)]
    finite = expected[np.isfinite(expected)]
    scale = float(np.max(np.abs(finite))) if finite.size else 0.0
    return float(difference.max()) / (scale or 1.0) if difference.size else 0.0
