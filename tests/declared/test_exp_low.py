"""The power in derivatives of log Σ e^x: its exponents are at most 0, except for rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from bridge.lang.applied import apply


@bridge.op
def low(x: bl.Full) -> Any:
    return apply("exp_low", x)


@bridge.op
def exp(x: bl.Full) -> Any:
    return bl.exp(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_has_the_bits_of_exp_up_to_40(dtype: torch.dtype, rng: np.random.Generator) -> None:
    bits = np.int32 if dtype == torch.float32 else np.int64
    limits = np.iinfo(bits)
    every = rng.integers(limits.min, limits.max, 1 << 18, bits).view(f"f{bits().nbytes}")
    others = [*rng.uniform(-800, 40, 1 << 18), -np.inf, -0.0, 0, 40]
    x = torch.cat([torch.tensor(every), torch.tensor(others, dtype=dtype)])
    x = x[~(x > 40)]  # and NaN
    assert torch.equal(low(x).nan_to_num(7), exp(x).nan_to_num(7))
    assert torch.equal(low(x).isnan(), x.isnan())
    assert torch.equal(low(x).signbit(), exp(x).signbit())
    above = torch.tensor([40.5, 1e30, torch.inf], dtype=dtype)
    assert torch.equal(low(above), exp(torch.full_like(above, 40)))


def test_its_derivatives_are_itself(rng: np.random.Generator) -> None:
    x = torch.tensor(rng.uniform(-3, 0, (3, 5)), requires_grad=True)
    (first,) = torch.autograd.grad(low(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(first, low(x))
    assert torch.equal(second, low(x))
