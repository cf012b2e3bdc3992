"""Random functions of rows: segments have the bits of rows alone, in values and two derivatives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl

ALONG = (bl.sum, bl.mean, bl.max, bl.min, bl.logsumexp)
EACH = (bl.silu, bl.tanh, bl.exp, abs, bl.relu, bl.erf, lambda v: v * v, lambda v: bl.rsqrt(v * v))


def _function(seed: int) -> Callable[..., Any]:
    """Returns a random function of two rows, a number and an integer."""

    def f(x: Any, y: Any, w: Any, k: Any) -> Any:
        draws = random.Random(seed)
        values = [x, y, w, 1.5, bl.where(bl.column() < k, w, 0.25), 1.0 * bl.columns()]
        for _ in range(draws.randint(3, 9)):
            a, b = draws.choice(values), draws.choice(values)
            a = x if isinstance(a, float) else a
            step = draws.randrange(7)
            if step == 0:
                values.append(draws.choice(ALONG)(a))
            elif step == 1:
                values.append(draws.choice(EACH)(a))
            elif step == 2:
                values.append(bl.where(a > b, a, draws.choice(values)))
            elif step == 3:
                values.append(bl.sum(bl.where(bl.column() == bl.argmax(a), x, 0.0)))
            elif step == 4:
                values.append(bl.visible(a, first=draws.randint(0, 2)))
            else:
                values.append(draws.choice([lambda p, q: p + q, lambda p, q: p * q])(a, b))
        return x * values[-1] + values[-2], bl.sum(values[-3] * y) + w

    return f


def _derived(op: Any, operands: Any, g: Any, rest: Any) -> list[Any]:
    """Returns results, gradients, and the gradients of a number computed from these."""
    own = [each.detach().clone().requires_grad_() for each in operands]
    results = list(op(*own, *rest))
    first = torch.autograd.grad(results, own, g, create_graph=True, materialize_grads=True)
    moved = [each for each in first if each.requires_grad]
    second = list(own)
    if moved:
        ones = [torch.ones_like(each) for each in moved]
        second = list(torch.autograd.grad(moved, own, ones, materialize_grads=True))
    return [*results, *first, *second]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(200))
def test_segments_of_a_random_function_have_the_bits_of_rows(seed: int) -> None:
    f = _function(seed)

    def of_segments(
        x: bridge.Full, y: bridge.Full, w: bridge.PerRow, k: bridge.PerRow[int], e: bridge.Segments
    ) -> Any:
        return f(x, y, w, k)

    def of_rows(x: bridge.Full, y: bridge.Full, w: bridge.PerRow, k: bridge.PerRow[int]) -> Any:
        return f(x, y, w, k)

    op, alone = bridge.op(of_segments), bridge.op(of_rows)
    draws = random.Random(seed)
    lengths = [draws.choice([0, 1, 2, 7, 16, 17, 40, 130]) for _ in range(draws.randint(1, 9))]
    ends = [0, *itertools.accumulate(lengths)]
    rng, total, count = np.random.default_rng(seed), ends[-1], len(lengths)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.tensor(rng.normal(size=shape), dtype=torch.float32)

    x, y, w = numbers(2, total), numbers(2, total), numbers(2, count)
    k = torch.tensor(rng.integers(0, 9, (2, count)))
    g = [numbers(2, total), numbers(2, count)]
    found = _derived(op, [x, y, w], g, [k, torch.tensor(ends)])
    for which, (start, stop) in enumerate(itertools.pairwise(ends)):
        own = [x[:, start:stop], y[:, start:stop], w[:, which]]
        cut = [g[0][:, start:stop], g[1][:, which]]
        single = _derived(alone, own, cut, [k[:, which]])
        for place, (whole, part) in enumerate(zip(found, single, strict=True)):
            is_full = place not in (1, 4, 7)
            mine = whole[:, start:stop] if is_full else whole[:, which]
            a, b = (np.nan_to_num(each.detach().numpy(), nan=-9.0) for each in (mine, part))
            is_same = np.array_equal(a.view(np.int32), np.ascontiguousarray(b).view(np.int32))
            assert is_same, f"place {place} of segment {which}: {a} and {b}"
