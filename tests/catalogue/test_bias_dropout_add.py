"""bias_dropout_add: the order of its roundings, and the random words of its masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch as bt
from bridge import _native
from bridge.catalogue.ahead_of_time import requests_of
from bridge.catalogue.bias_dropout_add import bias_dropout_add
from bridge.lang.philox import philox4x32, words


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 3), (300, 65), (3, 1100)])
def test_order_of_roundings(
    framework: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: str, p: float
) -> None:
    """The sum, its product with 1/(1 − p), the sum with the residual: each is rounded."""
    x, residual, g = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    bias = rng.standard_normal(shape[-1:]).astype(dtype)
    seed, offset = int(rng.integers(2**62)), int(rng.integers(2**62))

    def function(*arrays: Any) -> Any:
        return framework.ops.bias_dropout_add(*arrays, p=p, seed=seed, offset=offset)

    arrays = (x, bias, residual)
    value, dx, _, dresidual = framework.vjp(function, arrays, g)
    _, tangent = framework.jvp(function, arrays, arrays)
    index = np.arange(x.size, dtype=np.uint64).reshape(shape)
    keep = words(seed, offset, index) >= round(p * 2**32)
    factor = np.dtype(dtype).type(1 / (1 - p) if p < 1 else 0)
    expected = residual + np.where(keep, (x + bias) * factor, np.dtype(dtype).type(0))
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(tangent, expected)
    np.testing.assert_array_equal(dx, np.where(keep, g * factor, 0))
    np.testing.assert_array_equal(dresidual, g)


def test_words_are_those_that_are_published() -> None:
    """The words equal the vectors published by the authors of Philox (kat_vectors of Random123)."""
    ones = 0xFFFFFFFF
    for counter, key, expected in (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ):
        np.testing.assert_array_equal(philox4x32(np.array(counter), key), expected)


@pytest.mark.parametrize("columns", [64, 5, 700])
def test_an_element_is_kept_up_to_its_own_word(columns: int) -> None:
    """An element whose word is w is kept at the threshold w, and dropped at w + 1."""
    x = torch.ones(2, columns)
    drawn = words(7, 0, np.arange(2 * columns, dtype=np.uint64))
    for i in (0, 1, columns - 1, columns, 2 * columns - 1):
        for threshold, is_kept in ((int(drawn[i]), True), (int(drawn[i]) + 1, False)):
            y = bt.bias_dropout_add(x, p=threshold / 2**32, seed=7)
            kept = (y != 0).reshape(-1).numpy()
            assert kept[i] == is_kept
            np.testing.assert_array_equal(kept, drawn >= threshold)


def test_one_compiled_program_for_every_p() -> None:
    """Programs compiled ahead of time serve calls of any probability, forward and backward."""
    x, bias, residual = torch.randn(30, 70), torch.randn(70), torch.randn(30, 70)
    leaves = [tensor.requires_grad_() for tensor in (x, bias, residual)]
    for request in requests_of("bias_dropout_add", "float32"):
        request.compile()  # an earlier test in this process may have removed them
    for p in (0.0123, 0.1, 0.5, 0.98):
        before = _native.generated_calls()
        y = bt.bias_dropout_add(*leaves, p=p, seed=1)
        torch.autograd.grad(y, leaves, torch.ones_like(y))
        assert _native.generated_calls() == before + 2, p


def test_the_reference_is_the_formula() -> None:
    x, bias, residual = np.ones((2, 3)), np.full(3, 2.0), np.full((2, 3), 10.0)
    found = bias_dropout_add.reference(x, bias, residual, np.int64(4), None, p=0.25)
    keep = words(4, 0, np.arange(6, dtype=np.uint64)).reshape(2, 3) >= 2**30
    np.testing.assert_allclose(found, 10.0 + keep * 3.0 / 0.75)
