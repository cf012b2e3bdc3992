"""Unsigned 64-bit integers as two 32-bit words, `[..., 2]`, the low word first."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def constants(values: Any) -> np.ndarray:
    """Returns the word pairs of constant numbers."""
    values = np.asarray(values, np.uint64)
    return np.stack([values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)], -1).astype(np.uint32)


def add(a: Any, b: Any) -> Any:
    low = a[..., 0] + b[..., 0]
    carry = (low < a[..., 0]).astype(np.uint32)
    return jnp.stack([low, a[..., 1] + b[..., 1] + carry], -1)


def times(index: Any, factor: int) -> Any:
    """Returns the product of a 32-bit number and a constant 64-bit number."""
    index = jnp.asarray(index).astype(np.uint32)
    low, high = (np.uint32(word) for word in constants(factor))
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a, b = (index & mask, index >> half), (low & mask, low >> half)
    # Four products of 16-bit halves. None overflows, and neither does the middle sum of three
    # halves.
    lowest, cross, other, highest = a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]
    middle = (lowest >> half) + (cross & mask) + (other & mask)
    upper = highest + (cross >> half) + (other >> half) + (middle >> half)
    return jnp.stack([(lowest & mask) | (middle << half), upper + index * high], -1)
