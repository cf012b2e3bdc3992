"""The sum of products has the order of docs/numerics.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bridge.ops.product import ProductParams
from bridge.torch._adapter.products import product

LEAF = 256


def numbers(rng: np.random.Generator, *shape: int) -> Any:
    """Returns numbers of 12 bits: sums of their products are exact in float64."""
    return rng.integers(-2047, 2048, shape) * 2.0**-11


def summed(a: Any, b: Any) -> Any:
    """Evaluates the order with one rounding to float32 for each fused multiply-add."""
    k = a.shape[1]
    if k > LEAF:
        half = LEAF
        while 2 * half < k:
            half *= 2
        left, right = summed(a[:, :half], b[:half]), summed(a[:, half:], b[half:])
        return (left + right).astype(np.float32)
    total = np.full((a.shape[0], b.shape[1]), -0.0, np.float32)
    for p in range(k):
        exact = a[:, p, None] * b[None, p] + total.astype(np.float64)
        total = exact.astype(np.float32)
    return total


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 700, 1024, 1025, 2048, 2817, 5200])
@pytest.mark.parametrize("m", [1, 3, 8, 9, 40])
def test_order(m: int, k: int, layout: str, rng: np.random.Generator) -> None:
    a, b = numbers(rng, m, k), numbers(rng, k, 37)
    right = torch.tensor(b, dtype=torch.float32)
    right = right if layout == "rows" else right.mT.contiguous().mT
    ours = product(torch.tensor(a, dtype=torch.float32), right, None, ProductParams("float32"))
    assert np.array_equal(ours.numpy(), summed(a, b))
    bias = torch.tensor(numbers(rng, 37), dtype=torch.float32)
    with_bias = product(torch.tensor(a, dtype=torch.float32), right, bias, ProductParams("float32"))
    assert torch.equal(with_bias, ours + bias)
    rounded = product(torch.tensor(a, dtype=torch.float32), right, bias, ProductParams("bfloat16"))
    assert torch.equal(rounded, with_bias.bfloat16())


def test_signs_of_zeros() -> None:
    """A sum of zeros that are all negative is -0."""
    a = torch.zeros(3, 300)
    y = product(a, torch.full((300, 20), -1.0), None, ProductParams("float32"))
    assert torch.equal(torch.signbit(y), torch.ones_like(y, dtype=torch.bool))
    none = product(a[:, :0], torch.ones(0, 20), None, ProductParams("float32"))
    assert not torch.signbit(none).any()
    assert not none.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", range(1, 9))
def test_few_rows_and_more_columns_than_a_strip(
    m: int, dtype: str, rng: np.random.Generator
) -> None:
    """The product of few rows reads strips of columns; the sums of its rows stay apart."""
    a, b = numbers(rng, m, 5), numbers(rng, 5, 4500 // m)
    left, right = (torch.tensor(each, dtype=getattr(torch, dtype)) for each in (a, b))
    ours = product(left, right, None, ProductParams(dtype)).numpy()
    assert np.array_equal(ours, summed(a, b) if dtype == "float32" else a @ b)


@pytest.mark.parametrize("k", [1, 16, 31, 256, 257, 1100])
@pytest.mark.parametrize("layouts", ["rr", "rc", "cr", "cc"])
@pytest.mark.parametrize(("m", "n"), [(1, 5), (2, 37), (3, 64), (4, 33), (37, 1), (64, 2), (33, 4)])
def test_few_rows_and_few_columns(
    m: int, n: int, layouts: str, k: int, rng: np.random.Generator
) -> None:
    """The matrix with many rows or columns is read as it lies, whatever its layout."""
    a, b = numbers(rng, m, k), numbers(rng, k, n)
    left, right = (torch.tensor(each, dtype=torch.float32) for each in (a, b))
    left = left if layouts[0] == "r" else left.mT.contiguous().mT
    right = right if layouts[1] == "r" else right.mT.contiguous().mT
    ours = product(left, right, None, ProductParams("float32"))
    assert np.array_equal(ours.numpy(), summed(a, b))


def test_leaves_with_zeros(rng: np.random.Generator) -> None:
    """Leaves of zeros alone, of some and of none: an absent term hides the NaN in its row of b."""
    a, b = numbers(rng, 40, 5 * 256 + 9), numbers(rng, 5 * 256 + 9, 70)
    a[:, :256] = a[:14, 300:500] = a[20:, 513:700] = a[:, 1280:1285] = 0.0
    a[3:5, 768:1024] = 0.0
    hidden = b.copy()
    hidden[(a == 0).all(0)] = np.nan
    params = ProductParams("float32", skips_zeros=True)
    ours = product(*(torch.tensor(x, dtype=torch.float32) for x in (a, hidden)), None, params)
    assert np.array_equal(ours.numpy(), summed(a, b))
