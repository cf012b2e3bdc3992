"""What is right, from the op's float64 reference, as torch tensors; and how close is close."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.ops import BIAS_GELU, BiasGeluParams

FORMS = ("tanh", "none", "sigmoid")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def gelu(x: Tensor, bias: Tensor | None, form: str = "tanh", order: int = 0, *factors: Any) -> Any:
    """gelu⁽ⁿ⁾(x + bias)·∏ factors in float64."""
    operands = [x, bias]
    for factor in factors:
        operands += [factor, None]
    arrays = [None if o is None else o.detach().double().numpy() for o in operands]
    return torch.from_numpy(np.array(BIAS_GELU.reference(arrays, BiasGeluParams(form, order))[0]))


def assert_close(actual: Tensor, expected: Tensor, ulps: float = 4.0) -> None:
    """Relative to the largest expected value: an output of zeros or without the bias is far off."""
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
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    first, second = (t.detach().contiguous().view(integer) for t in (actual, expected))
    assert torch.equal(first, second)
