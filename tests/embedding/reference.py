"""Embeddings in NumPy, with the order of docs/numerics.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frameworks import numpy_dtype

LEAF = 16


def tree(rows: Any) -> Any:
    """Adds rows in chains of 16 and the binary tree over these."""
    if len(rows) > LEAF:
        half = LEAF
        while 2 * half < len(rows):
            half *= 2
        return tree(rows[:half]) + tree(rows[half:])
    total = np.full_like(rows[0], -0.0)
    for row in rows:
        total = total + row
    return total


def sums(g: Any, ids: Any, n: int) -> Any:
    """Returns the gradient `[n, d]` for cotangents `[*ids.shape, d]`."""
    own = np.float64 if g.dtype == np.float64 else np.float32
    found = np.zeros((n, g.shape[-1]), own)
    flat, rows = ids.reshape(-1), g.astype(own).reshape(ids.size, g.shape[-1])
    for row in {*flat.tolist()} & {*range(n)}:
        found[row] = tree(rows[flat == row])
    return found.astype(g.dtype)


def drawn(rng: np.random.Generator, shape: Any, dtype: str) -> Any:
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(
        numpy_dtype(dtype)
    )


def drawn_ids(rng: np.random.Generator, shape: Any, n: int, often: int = 0) -> Any:
    """Draws numbers of rows; half of the positions have the number `often`."""
    ids = rng.integers(0, n, shape)
    return np.where(rng.random(shape) < 0.5, often, ids)
