"""Scratch memory of column sums on CUDA."""

from __future__ import annotations

import math

from bridge.lang.trees import CHUNK_ROWS, LEAF_ROWS

# Nodes that a block adds (cpp/drivers/columns/column_sums.cuh), and the fewest leaves and elements
# for a column driver (cpp/cuda/simt_cuda.h).
TREE_WIDTH = 64
MANY_LEAVES, MANY_ELEMENTS = 66, 1 << 24


def column_sums_workspace_bytes(
    sums: int, shape: tuple[int, ...], batch_ndim: int, is_float64: bool
) -> int:
    """Returns the bytes for `sums` sums over the rows of `[*batch, *rows, d]`.

    It is an upper bound if a size is symbolic. `shape` has at least one dimension.
    """
    size = 8 if is_float64 else 4
    batch, rows, cols = math.prod(shape[:batch_ndim]), math.prod(shape[batch_ndim:-1]), shape[-1]
    vector = batch * cols * size
    if not all(isinstance(n, int) for n in shape):
        # c + ⌈c/64⌉ + ⌈c/64²⌉ + … (down to 1, which is the result) ≤ c + ⌊c/32⌋. Each of at most
        # eleven levels is rounded up to 16 bytes.
        chunks = (rows + CHUNK_ROWS - 1) // CHUNK_ROWS
        return _rounded(sums * rows * vector) + vector * (chunks + chunks // 32) + 256
    leaves, chunks = -(-rows // LEAF_ROWS), -(-rows // CHUNK_ROWS)
    # For sums whose chunks a column driver adds, or that follow a row driver.
    added = 0 if chunks <= 1 else _rounded(chunks * vector) + _levels(chunks, vector)
    if batch * leaves >= MANY_LEAVES and batch * rows * cols >= MANY_ELEMENTS:
        own = _rounded(sums * leaves * vector) + _levels(leaves, vector)
    else:
        own = _rounded(sums * rows * vector) + added
    return max(own, sums * added) if rows else 0


def _levels(count: int, vector: int) -> int:
    """Returns the bytes of the levels above `count` nodes, without the root."""
    found = 0
    while (count := -(-count // TREE_WIDTH)) > 1:
        found += _rounded(count * vector)
    return found


def _rounded(size: int) -> int:
    return (size + 15) // 16 * 16
