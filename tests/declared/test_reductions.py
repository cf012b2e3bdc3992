"""Sums of declared ops and their order; the largest number of a row, and its column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
import bridge.torch
from bridge import lang as bl
from tests.test_bits import column_tree, row_tree


@bridge.op
def sums(x: bridge.Full) -> Any:
    return bl.sum(x), bl.column_sum(x)


@bridge.op
def largest(x: bridge.Full) -> Any:
    return bl.max(x), 1.0 * bl.argmax(x), bl.logsumexp(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "cols", [1, 7, 31, 32, 33, 255, 257, 512, 513, 1023, 1025, 1500, 2500, 5001]
)
def test_sums_follow_the_trees(rng: np.random.Generator, dtype: str, cols: int) -> None:
    rows = 3 if cols > 600 else 300
    x = rng.standard_normal((rows, cols)).astype(dtype) * 1000
    along, over = sums(torch.tensor(x))
    np.testing.assert_array_equal(along.numpy(), [row_tree(row) for row in x])
    np.testing.assert_array_equal(over.numpy(), column_tree(x))


@pytest.mark.parametrize("cols", [2, 9, 40, 700, 1300])
def test_the_largest_and_its_place(rng: np.random.Generator, cols: int) -> None:
    x = rng.standard_normal((9, cols)).astype(np.float32)
    x[1, :] = -0.0
    x[1, -1] = 0.0
    x[2, [0, -1]] = 9.0
    x[3, -1] = np.nan
    x[4, :] = -np.inf
    x[5, -1] = np.inf
    x[6, :] = 3.0
    x[7, [0, -1]] = np.nan
    x[8, :] -= 1e30
    value, place, lse = (each.numpy() for each in largest(torch.tensor(x)))
    np.testing.assert_array_equal(value, x.max(-1))
    np.testing.assert_array_equal(place, x.argmax(-1))
    assert not np.signbit(value[1])
    exact = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shift = np.where(np.isfinite(exact.max(-1)), exact.max(-1), 0.0)
        expected = np.log(np.exp(exact - shift[:, None]).sum(-1)) + shift
    units = np.spacing(np.maximum(np.abs(expected), 1.0).astype(np.float32))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(lse), np.isnan(expected))
    np.testing.assert_array_equal(lse[~finite], expected[~finite].astype(np.float32))
    assert (np.abs(lse[finite] - expected[finite]) <= 2 * units[finite]).all()


def test_no_rows_and_no_columns() -> None:
    along, over = sums(torch.ones(0, 3))
    assert along.shape == (0,)
    assert torch.equal(over, torch.zeros(3))
    assert not over.signbit().any()
    along, over = sums(torch.ones(2, 0))
    assert torch.equal(along, torch.zeros(2))
    assert along.signbit().all()
    assert over.shape == (0,)
    value, place, lse = largest(torch.ones(2, 0))
    assert (value == -torch.inf).all()
    assert (place == 0).all()
    assert (lse == -torch.inf).all()
