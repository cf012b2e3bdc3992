"""One step against the formulas in float64, with tolerances relative to the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bridge.catalogue import optimizers
from bridge.torch import optim
from tests.frameworks import DTYPES, EPSILON
from tests.optim.steps import PAIRS, give, gradients, numbers, parameters, tensor, tree

SIZES = (1, 7, 130, 4097)


def unit(dtype: str) -> float:
    """Returns the unit of the arithmetic."""
    return EPSILON["float64" if dtype == "float64" else "float32"]


@pytest.mark.parametrize("count", [1, 2, 10, 1000, 123_456])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_of_adamw(dtype: str, size: int, count: int, rng: Any) -> None:
    lr, b1, b2, eps, decay = 3e-3, 0.9, 0.999, 1e-8, 0.1
    p = torch.nn.Parameter(torch.from_numpy(rng.normal(size=size)).to(getattr(torch, dtype)))
    p.grad = torch.from_numpy(rng.normal(size=size) * 0.01).to(p.dtype)
    optimizer = optim.AdamW([p], lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    wide = torch.float64 if dtype == "float64" else torch.float32
    optimizer.state[p] = {
        "step": torch.tensor(float(count - 1)),
        "exp_avg": torch.from_numpy(rng.normal(size=size) * 0.01).to(wide),
        "exp_avg_sq": torch.from_numpy(rng.random(size) * 1e-4).to(wide),
    }
    state = optimizer.state[p]
    old, g, m, v = map(numbers, (p, p.grad, state["exp_avg"], state["exp_avg_sq"]))
    optimizer.step()
    mean, square = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    u = unit(dtype)
    largest = abs(b1 * m) + abs((1 - b1) * g)
    assert np.all(abs(numbers(state["exp_avg"]) - mean) <= 2 * u * largest)
    assert np.all(abs(numbers(state["exp_avg_sq"]) - square) <= 2 * u * square)
    c1, c2 = (-np.expm1(count * np.log1p(-(1.0 - b))) for b in (b1, b2))  # 1 − bᵗ would cancel
    root = np.sqrt(square / c2) + eps
    change = lr * (mean / c1 / root + decay * old)
    size_of_change = lr * (largest / c1 / root + decay * abs(old))
    allowed = 8 * u * size_of_change + EPSILON[dtype] * (abs(old) + abs(change))
    assert np.all(abs(numbers(p) - (old - change)) <= allowed)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("beta", [0.3, 0.5, 0.9, 0.999, 0.9999, 1 - 1e-7])
def test_corrections_of_the_first_steps_have_no_cancellation(dtype: str, beta: float) -> None:
    """1 − βᵗ in float32 would have lost three digits at β = 0.999, seven at 1 − 10⁻⁷."""
    wide = getattr(torch, dtype)
    zero, one = torch.zeros(1, dtype=wide), torch.ones(1, dtype=wide)
    for count in (1, 2, 3, 10, 100, 10_000, 1_000_000):
        with torch.no_grad():  # p − lr·(β·m/(1 − βᵗ))/(0 + 1)
            p, *_ = optimizers.adamw_in_place.torch(
                *(zero, zero, one, zero, one[0], count), b1=beta, eps=1.0
            )
        exact = -beta / -np.expm1(count * np.log1p(-(np.float64(1.0) - beta)))
        assert abs(float(p) - exact) <= 4 * EPSILON[dtype] * abs(exact), count


def test_a_beta_of_zero_needs_no_correction() -> None:
    zero, one = torch.zeros(1), torch.ones(1)
    p, *_ = optimizers.adamw_in_place.torch(zero, one, one, one, one[0], 3, b1=0.0, b2=0.0, eps=1.0)
    assert p == -0.5  # lr·1/(√1 + 1)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_several_steps_are_those_of_torch(name: str, dtype: str, rng: Any) -> None:
    start, steps = tree(rng, dtype), list(gradients(rng, dtype, 4))
    params, theirs = parameters(start), parameters(start)
    ours = PAIRS[name].torch(params.values())
    for p in theirs.values():
        p.data = p.data.double()
    kind = torch.optim.AdamW if isinstance(ours, torch.optim.AdamW) else torch.optim.SGD
    group = ours.param_groups[0]
    chosen = {k: v for k, v in group.items() if k not in ("params", "decoupled_weight_decay")}
    original = kind(theirs.values(), **chosen)
    for grads in steps:
        give(params, grads)
        ours.step()
        for key, p in theirs.items():
            p.grad = tensor(grads[key]).double()
        original.step()
    for key in params:
        a, b = numbers(params[key]), numbers(theirs[key])
        tolerance = 40 * EPSILON[dtype] * (abs(numbers(tensor(start[key]))) + abs(b) + group["lr"])
        assert np.all(abs(a - b) <= tolerance), key


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm(dtype: str, rng: Any) -> None:
    start, grads = tree(rng, dtype), tree(rng, dtype)
    params = parameters(start)
    give(params, grads)
    exact = np.sqrt(sum(np.sum(numbers(tensor(g)) ** 2) for g in grads.values()))
    norm = optim.clip_grad_norm_(params, 0.5)
    assert abs(float(norm) - exact) <= 4 * unit(dtype) * exact
    for name, p in params.items():
        expected = numbers(tensor(grads[name])) * (0.5 / exact)
        rounded = EPSILON[dtype] * abs(expected) + 8 * unit(dtype) * abs(expected)
        tiny = 2.0**-24 if dtype == "float16" else 0.0  # the unit of subnormal numbers
        assert np.all(abs(numbers(p.grad) - expected) <= rounded + tiny), name
