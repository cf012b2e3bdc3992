"""Long functions that one loop begins and another one finishes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from bridge.lang.applied import apply
from bridge.lang.emission.cpu import source_of
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests


@bridge.op
def all_of_them(x: bridge.Full, y: bridge.Full) -> Any:
    """Each function, of x, of -x, and of an expression that both loops compute."""
    gelus = [
        apply("gelu", x - y, static=(kind, order))
        for kind in ("tanh", "sigmoid")
        for order in (0, 1, 2)
    ]
    return bl.sigmoid(-x) - bl.sigmoid(x) * y, bl.silu(-x) + bl.silu(x) * bl.sigmoid(x * y), *gelus


@bridge.op
def of_a_long_function(x: bridge.Full) -> Any:
    return bl.silu(bl.tanh(x))


@bridge.op
def of_a_sum(x: bridge.Full) -> Any:
    return bl.silu(x * bl.rsqrt(bl.sum(x * x)))


@bridge.op
def of_many(x: bridge.Full) -> Any:
    return sum((bl.silu(x * float(n)) for n in range(2, 42)), start=x)


def sources(op: Any, dtype: str) -> list[str]:
    requests = usual_requests(
        traced(op.declaration, (True,) * len(op.declaration.parameters)), dtype
    )
    return [source_of(each.program, each.arithmetic, each.dtypes) for each in requests]


def test_what_is_started() -> None:
    forward = sources(all_of_them, "float32")[0]
    # For x: both sigmoids and silu; for -x and x y; for GELU the value, and both derivatives.
    assert forward.count("= start<kSilu>(") == 3
    assert forward.count("= start<kGelu") == 4
    assert forward.count("= finish<k") == 11
    assert "start<" not in sources(of_a_long_function, "float32")[0]
    assert "= start<kSilu>(" in sources(of_a_sum, "float32")[0]
    assert "start<" not in sources(of_a_sum, "bfloat16")[0]  # two short loops
    many = sources(of_many, "float32")[0]
    assert many.count("= start<kSilu>(") == many.count("= finish<kSilu>(") == 8  # the stack's size
    assert many.count("= compute<kSilu>(") == 32


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cols", [1, 7, 1024, 2500])
def test_the_bits_are_those_of_one_loop(dtype: str, cols: int, rng: np.random.Generator) -> None:
    own = getattr(torch, dtype)
    x = torch.tensor(rng.standard_normal((9, cols)) * 20, dtype=own)
    y = torch.tensor(rng.standard_normal((9, cols)), dtype=own)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 700.0][:cols]
    x[0, : len(special)] = torch.tensor(special, dtype=own)
    for op, given in ((all_of_them, (x, y)), (of_a_sum, (x,))):
        expected = op(*given)
        op.compile(dtypes=[dtype])
        for found, interpreted in zip(_each(op(*given)), _each(expected), strict=True):
            assert torch.equal(found.view(torch.uint8), interpreted.view(torch.uint8))


def _each(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
