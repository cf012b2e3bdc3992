"""The workspace planned for softmax on CUDA is at least as large as the library needs."""

from __future__ import annotations

import numpy as np
import pytest

from bridge.lang.dtypes import FLOATING
from bridge.ops.definition import Spec
from bridge.ops.softmax import SOFTMAX, SOFTMAX_DERIVATIVE, SoftmaxDerivativeParams, SoftmaxParams

SEGMENT, NODES, CACHED = 8192, 1024, 24 << 20


def itemsize(dtype: str) -> int:
    return {"float32": 4, "float64": 8}.get(dtype, 2)


def nodes_bytes(rows: int, cols: int, dtype: str, operands: int, parts: int = 1) -> int:
    """Returns the bytes of one kind of node (cpp/drivers/rows/row_nodes.h), level by level."""
    at_once = min(rows, max(1, CACHED // (operands * cols * itemsize(dtype))))
    level = -(-cols // SEGMENT)
    count = level
    while level > NODES:
        level = -(-level // NODES)
        count += level
    return -(-at_once * count * parts * (8 if dtype == "float64" else 4) // 16) * 16


@pytest.mark.parametrize("dtype", FLOATING)
def test_workspace_is_never_too_small(dtype: str, rng: np.random.Generator) -> None:
    edges = [n + k for n in (1024, 8192, 16384, 32768, 1 << 23, 1 << 33) for k in (-1, 0, 1)]
    for cols in [1, 1000, *edges, *(int(c) for c in 2 ** rng.uniform(10, 45, 300))]:
        for rows in (1, 7, 5000, 1 << 40):
            x = Spec((rows, cols), dtype)
            given = SOFTMAX.workspace_bytes((x, None), SoftmaxParams(1.0, 0, dtype))
            if cols > (16384 if dtype == "float64" else 32768):
                # The largest key, and the sum, which has two parts in float32.
                parts = 2 if dtype == "float32" else 1
                largest = nodes_bytes(rows, cols, dtype, 1)
                assert given >= largest + nodes_bytes(rows, cols, dtype, 1, parts)
            params = SoftmaxDerivativeParams(1.0)
            given = SOFTMAX_DERIVATIVE.workspace_bytes((x, x, None), params)
            if cols > 65536 // itemsize(dtype):
                assert given >= nodes_bytes(rows, cols, dtype, 2)
            given = SOFTMAX_DERIVATIVE.workspace_bytes((x, x, x), params)
            if cols > 1024:
                assert given >= 3 * nodes_bytes(rows, cols, dtype, 3)


def test_rows_of_ordinary_length_need_none() -> None:
    for dtype in FLOATING:
        x = Spec((4, 8192), dtype)
        assert SOFTMAX.workspace_bytes((x, None), SoftmaxParams(1.0)) == 0
        assert SOFTMAX_DERIVATIVE.workspace_bytes((x, x), SoftmaxDerivativeParams(1.0)) == 0
