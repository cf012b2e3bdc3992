"""Generated kernels read blocks of adjacent rows with the bits of rows that lie apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bridge
from bridge import _native
from bridge import lang as bl
from tests.frameworks import DTYPES

SHAPES = [(1, 64), (15, 70), (16, 257), (53, 64), (400, 96), (37, 1024), (20, 1025)]


@bridge.op
def scaled_sums(x: bl.Full, y: bl.Full, scale: bl.Row) -> Any:
    return x * scale + y, bl.column_sum(x * y), bl.column_sum(y), 1.0 * bl.sum(x)


def results_of(rows: int, cols: int, dtype: str, is_adjacent: bool) -> Any:
    generator = torch.Generator().manual_seed(rows * cols)
    drawn = torch.randn(2, 2, cols, rows, generator=generator, dtype=torch.float64)
    drawn[0, 0, -1, -1], drawn[1, 1, 0, 0] = float("nan"), -0.0
    scale = torch.randn(cols, generator=generator)
    x, y, scale = (each.to(getattr(torch, dtype)) for each in (*drawn, scale))
    if is_adjacent:
        return scaled_sums(x.mT, y.mT, scale)
    return scaled_sums(x.mT.contiguous(), y.mT.contiguous(), scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adjacent_rows(dtype: str) -> None:
    expected = [results_of(*shape, dtype, False) for shape in SHAPES]
    scaled_sums.compile(dtypes=[dtype])
    before = _native.generated_calls()
    for shape, results in zip(SHAPES, expected, strict=True):
        for one, two in zip(results_of(*shape, dtype, True), results, strict=True):
            assert torch.equal(one.nan_to_num(7.0), two.nan_to_num(7.0))
            assert torch.equal(one.isnan(), two.isnan())
    assert _native.generated_calls() > before
