"""Embeddings: rows of a table by number, and the gradient of the table.

There are two ops, each linear in its first operand and the transpose of the other. Both have
batches, so that their batching rules only move dimensions:

    embedding           table `[batch, rows, cols]`, ids `[batch, count]` -> `[batch, count, cols]`
    embedding_gradient  cotangent `[batch, count, cols]`, ids -> `[batch, rows, cols]`

The gradient adds the cotangents of equal ids in the order of their positions, in the tree of column
sums (docs/numerics.md). An id that is no row has no part in it. A value has a row of NaN for such
an id, and a derivative a row of zeros: the flag `marks` of the first op.
"""

from __future__ import annotations

from typing import Any

from bridge.lang.dtypes import FLOATING, INTEGERS
from bridge.lang.trees import CHUNK_ROWS
from bridge.ops.definition import Spec

NAME = "embedding"


def check(ids: Spec, weight: Spec) -> None:
    """Raises TypeError or ValueError for operands that the public function does not take."""
    for name, spec, dtypes in (("ids", ids, INTEGERS), ("weight", weight, FLOATING)):
        if spec.dtype not in dtypes:
            raise TypeError(
                f"{NAME}: {name} has dtype {spec.dtype}, expected one of {', '.join(dtypes)}"
            )
    if len(weight.shape) != 2:
        raise ValueError(
            f"{NAME}: weight has shape {list(weight.shape)}, expected two dimensions, [n, d]"
        )


def workspace_bytes(batch: Any, count: Any, rows: Any, cols: Any, dtype: str) -> Any:
    """Returns the bytes of the gradient's workspace on CUDA; sizes may be symbolic.

    The kernels keep the first position of each row, and for every 128 positions two rows of sums.
    """
    chunks = 2 * ((count + CHUNK_ROWS - 1) // CHUNK_ROWS)
    numbers = batch * chunks * cols * (8 if dtype == "float64" else 4)
    return 8 * batch * (rows + 1) + 16 + numbers  # the positions are rounded up to 16 bytes
