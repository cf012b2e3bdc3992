"""Softmax and its derivatives on split columns: the kernels' bits, and no row is sent."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bridge.catalogue.softmax_programs import (
    derivative_program,
    jacobian_program,
    softmax_program,
)
from bridge.ops import PROGRAM
from bridge.torch._adapter.arrays import last_columns
from bridge.torch._adapter.dispatcher import dispatch
from tests.torch.parts_together import on_parts

DTYPES = ["float32", "float64", "bfloat16", "float16"]
# Columns of a part and the number of parts.
SPLITS = [(1, 3), (24, 4), (700, 3), (1024, 4), (1536, 2), (3 * 1024, 2)]
SCALES = [1.0, -0.7, 0.0, 1e-25, 37.0, 3e30, 1e-200, -1e300]


def rows_of(rng: np.random.Generator, columns: int, dtype: str) -> Tensor:
    """Returns `[2, 16, columns]`: numbers of all sizes, infinities and NaN."""
    x = rng.standard_normal((32, columns)) * 2.0 ** rng.integers(-3, 3, (32, columns))
    x[1] *= 1e-6
    x[2] = -3.25
    x[3] += 3000  # a larger shift is not subtracted from exponents
    x[4] = x[4] * 60 - 700
    x[5, columns // 2] = np.nan
    x[6, columns - 1] = np.inf
    x[7] = -np.inf
    x[8, : columns // 2 + 1] = -np.inf
    x[9] = np.where(rng.random(columns) < 0.5, 0.0, -0.0)
    x[10] *= 1e-40 if dtype != "float16" else 1e-7
    x[11] *= 1e4
    x[12, 0] = 80
    x[13] = np.linspace(-100, 3, columns)
    x[14, columns // 3] = -np.inf
    return torch.tensor(x).to(getattr(torch, dtype)).reshape(2, 16, columns)


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Compares bits; all NaN count as equal."""
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(found), nan)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    a, b = (torch.where(nan, 0.0, each).view(kind) for each in (found, expected))
    assert torch.equal(a, b), (a != b).nonzero()[:5]


def masks(rng: np.random.Generator, columns: int) -> list[Tensor | None]:
    full = torch.tensor(rng.random((2, 16, columns)) < 0.3)
    full[0, 3] = True
    return [None, full, torch.tensor(rng.random(columns) < 0.5).to(torch.uint8), full[:, :, :1]]


def compare(operands: tuple[Tensor | None, ...], params: Any, queries: int, parts: int) -> Any:
    """Compares a call with the same call on parts; returns the rows that were sent."""
    present = tuple([operand for operand in operands if operand is not None])
    (expected,) = dispatch(PROGRAM, present, params)
    found, sent = on_parts(PROGRAM, present, params, (1, queries, parts))
    assert_same(found, expected)
    return sent


@pytest.mark.sampled(24)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("local", "parts"), SPLITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_whole_rows(
    dtype: str, local: int, parts: int, scale: float, causal: bool, rng: np.random.Generator
) -> None:
    columns = local * parts
    x = rows_of(rng, columns, dtype)
    last = last_columns(x) if causal else None
    for mask, queries in itertools.product(masks(rng, columns), (1, 2)):
        params = softmax_program(scale, dtype, (mask is not None, causal))
        sent = compare((x, mask, last), params, queries, parts)
        assert len(sent) == 2
        if local == 1024:
            rows = 32 // queries
            assert sent == [rows, rows * (2 if dtype == "float32" else 1)]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.3, 0.0, 1e300])
@pytest.mark.parametrize(("local", "parts"), SPLITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_derivatives(
    dtype: str, local: int, parts: int, scale: float, causal: bool, rng: np.random.Generator
) -> None:
    columns = local * parts
    x, v, w = (rows_of(rng, columns, dtype) for _ in range(3))
    v[0, 5], w[0, 6] = 1.0, np.inf
    last = last_columns(x) if causal else None
    given = (x,) if last is None else (x, last)
    (y,) = dispatch(PROGRAM, given, softmax_program(0.5, dtype, (False, causal)))
    every = ((True, True, False), (False, True, True), (False, False, True), (True, True, True))
    calls: list[tuple[Any, Any, int]] = [((y, v), jacobian_program(scale, dtype, causal), 1)]
    for product, factors in itertools.product((True, False), every):
        params = derivative_program(scale, dtype, product, factors, causal)
        calls.append(((x, v, w), params, sum(factors)))
    for (operands, params, sums), queries in itertools.product(calls, (1, 2)):
        sent = compare((*operands, last), params, queries, parts)
        if local == 1024:
            assert sent == [32 // queries * sums]
