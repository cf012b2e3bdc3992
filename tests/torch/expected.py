"""Expected values from the op's float64 reference, as torch tensors, and their tolerances."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bridge.lang.gelu_reference import gelu_derivative

FORMS = ("tanh", "none", "sigmoid")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def gelu(x: Tensor, bias: Tensor | None, form: str = "tanh", order: int = 0, *factors: Any) -> Any:
    """Returns gelu⁽ⁿ⁾(x + bias)·∏ factors in float64."""
    h = x.detach().double() + (0.0 if bias is None else bias.detach().double())
    y = torch.as_tensor(gelu_derivative(h.numpy(), form, order))
    return math.prod([factor.detach().double() for factor in factors], start=y)


def clamped(x: Tensor, low: float, high: float) -> Tensor:
    """Tensor.clamp with the gradient 1 at the bounds, where torch's is 0 from version 2.14 on."""
    return torch.where(x < low, low, torch.where(x > high, high, x))


def assert_close(actual: Tensor, expected: Tensor, ulps: float = 4.0) -> None:
    """Compares relative to the largest expected value, which detects zeros or a missing bias."""
    assert actual.shape == expected.shape
    expected = expected.detach()
    assert expected.numel() == 0 or expected.abs().max() > 0
    largest = expected.double().abs().max() if expected.numel() else 0.0
    tolerance = ulps * max(torch.finfo(actual.dtype).eps, 2.0**-52) * largest
    torch.testing.assert_close(
        actual.detach().double(), expected.double(), rtol=0.0, atol=float(tolerance)
    )


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    first, second = (t.detach().contiguous().view(integer) for t in (actual, expected))
    assert torch.equal(first, second)
