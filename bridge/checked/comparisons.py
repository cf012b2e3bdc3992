"""Comparisons that detect a broken promise: other bits, or numbers that are too far off."""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.checked.arrays import Arrays


class BrokenPromiseError(Exception):
    """A promise is broken; the message has the difference."""


def hold_same(what: str, these: Arrays, others: Arrays) -> None:
    for place, (one, other) in enumerate(zip(these, others, strict=True)):
        if one.same(other):
            continue
        shown = f"{what}: array {place}: {one.dtype} {list(one.data.shape)}"
        if (one.dtype, one.data.shape) != (other.dtype, other.data.shape):
            raise BrokenPromiseError(
                f"{shown} is {other.dtype} {list(other.data.shape)} in the other"
            )
        differs = one.data.view(f"u{one.data.itemsize}") != other.data.view(f"u{one.data.itemsize}")
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        raise BrokenPromiseError(
            f"{shown}: {int(differs.sum())} of {differs.size} have other bits, the first at "
            f"{list(at)}: {one.values[at]} and {other.values[at]}"
        )


def hold_close(what: str, found: Any, expected: Any, bound: Any) -> None:
    """Raises unless numbers are within the bound, with NaN and infinities at the same places."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        raise BrokenPromiseError(
            f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}"
        )
    with np.errstate(invalid="ignore"):
        near = (np.abs(found - expected) <= bound) | (found == expected)
    far = ~(near | np.isnan(found) & np.isnan(expected))
    if far.any():
        at = tuple(int(i) for i in np.argwhere(far)[0])
        allowed = np.broadcast_to(bound, found.shape)[at]
        raise BrokenPromiseError(
            f"{what}: {found[at]} at {list(at)}, expected {expected[at]} within {allowed:.2g}"
        )
