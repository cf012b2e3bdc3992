"""Scratch memory of the column sums, which several ops have as a result."""

from __future__ import annotations

import math

# The CUDA kernel makes one partial sum for each chunk of so many rows, then levels of a tree, each
# with a 64th of the nodes of the one below.
_CHUNK_ROWS = 128


def column_sums_workspace_bytes(shape: tuple[int, ...], batch_ndim: int, is_float64: bool) -> int:
    """Bytes that the sums over the rows of `[*batch, *rows, d]` never exceed.

    The sizes may be symbolic. `shape` has at least one dimension.
    """
    rows = math.prod(shape[batch_ndim:-1])
    if isinstance(rows, int) and rows <= _CHUNK_ROWS:
        return 0
    vector = math.prod(shape[:batch_ndim]) * shape[-1]
    chunks = (rows + _CHUNK_ROWS - 1) // _CHUNK_ROWS
    # c + ⌈c/64⌉ + ⌈c/64²⌉ + … (down to 1, which is the result) ≤ c + ⌊c/32⌋. Each of at most
    # eleven levels is rounded up to 16 bytes.
    return vector * (chunks + chunks // 32) * (8 if is_float64 else 4) + 256
