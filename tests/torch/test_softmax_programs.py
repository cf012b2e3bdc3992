"""The softmax kernels have the bits of the programs that they replace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bridge.ops import PROGRAM
from bridge.ops.softmax import (
    PRODUCT,
    SOFTMAX,
    SOFTMAX_DERIVATIVE,
    SoftmaxDerivativeParams,
    SoftmaxParams,
    visible_columns,
)
from bridge.torch._adapter.autograd import call
from bridge.torch._adapter.kernels import DTYPES
from tests.torch.expected import assert_same_bits

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_SHAPES = [(3, 5, 1), (2, 4, 31), (1, 7, 257), (2, 3, 1100), (1, 2, 20000), (1, 3, 70001)]
_SCALES = (0.7, -1.0, 3e5, -1e-30, 0.0, 1e300, 2.0**-1060)
_SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 6e4, 3e38, 1e-40)


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Draws normal rows, some of large spread, some with special numbers."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 5, (*shape[:-1], 1))
    places = rng.random(shape) < rng.choice([0.0, 0.0, 0.01, 0.3], (*shape[:-1], 1))
    x[places] = rng.choice(_SPECIAL, places.sum())
    with np.errstate(over="ignore"):
        return torch.tensor(x, dtype=DTYPES[dtype])


def _compare(op: Any, operands: tuple[Tensor | None, ...], params: Any) -> None:
    """Compares the kernel of `op` with the program of the same name."""
    present = [operand is not None for operand in operands]
    given = [operand for operand in operands if operand is not None]
    rows, columns = given[0].shape[-2:]
    if params.causal:
        given.append(~torch.tensor(visible_columns((rows, columns), 1)))
    program = op.program(present, params, bool(params.causal))
    (found,) = call(op, operands, params)
    (expected,) = call(PROGRAM, tuple(given), program)
    assert found is not None
    assert expected is not None
    assert_same_bits(found, expected)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scale", _SCALES)
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("dtype", _DTYPES)
def test_kernels_have_their_bits(dtype: str, shape: tuple[int, ...], scale: float) -> None:
    rng = np.random.default_rng(shape[-1])
    mask = torch.tensor(rng.random(shape) < 0.3)
    mask[..., :1, :] = True  # rows that are fully hidden
    x, g, w = (_array(rng, shape, dtype) for _ in range(3))
    for causal in (0, 1):
        for given in (None, mask):
            _compare(SOFTMAX, (x, given), SoftmaxParams(scale, causal, dtype))
        (y,) = call(SOFTMAX, (x, mask), SoftmaxParams(0.7, causal, dtype))
        _compare(
            SOFTMAX_DERIVATIVE,
            (y, g, None),
            SoftmaxDerivativeParams(scale, causal, full=dtype),
        )
        for terms in (PRODUCT, 15, int(rng.integers(1, 16))):
            _compare(
                SOFTMAX_DERIVATIVE,
                (y, g, w),
                SoftmaxDerivativeParams(scale, causal, terms, dtype),
            )
