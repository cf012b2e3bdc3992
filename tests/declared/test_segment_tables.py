"""Tables of one number for all tokens beside segments: only tokens count in their gradients."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl


def _shifted(x: Any, table: Any) -> Any:
    """Returns a softmax, which no shift changes, and a mean, which is NaN without columns."""
    p = bl.exp(bl.log_softmax(x + table))
    return p * x * table, bl.sum(p * x) + bl.mean(x * table)


@bridge.op
def shifted(x: bridge.Full, table: bridge.Table, cu_seqlens: bridge.Segments):
    return _shifted(x, table)


def _expected(x: torch.Tensor, table: torch.Tensor, ends: Any, g: Any) -> torch.Tensor:
    """Returns the gradient of the table in float64, segment by segment."""
    total = torch.zeros((), dtype=torch.float64)
    for which, (start, stop) in enumerate(itertools.pairwise(ends)):
        own = x[:, start:stop]
        if own.shape[1]:
            p = (own + table).softmax(-1)
            total = total + (g[0][:, start:stop] * p * own * table).sum()
            total = total + (g[1][:, which] * ((p * own).sum(-1) + (own * table).mean(-1))).sum()
    return torch.autograd.grad(total, table)[0]


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 1)], ids=str)
@pytest.mark.parametrize(
    "lengths", [(2, 0, 1), (20, 2, 78, 5), (1,), (40, 1, 0, 0, 3, 17)], ids=str
)
def test_the_gradient_of_a_table_with_one_column(lengths: Any, shape: Any) -> None:
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    rng = np.random.default_rng(len(lengths))
    x = rng.normal(size=(3, ends[-1])).astype(np.float32)
    table = np.asarray(rng.normal(size=shape), np.float32)
    g = [rng.normal(size=size).astype(np.float32) for size in (x.shape, (3, len(lengths)))]
    wanted = torch.tensor(table, requires_grad=True)
    results = shifted(torch.tensor(x), wanted, torch.tensor(ends))
    (found,) = torch.autograd.grad(results, wanted, [torch.tensor(each) for each in g])
    exact = torch.tensor(table, dtype=torch.float64, requires_grad=True)
    whole = [torch.tensor(each, dtype=torch.float64) for each in g]
    expected = _expected(torch.tensor(x, dtype=torch.float64), exact, ends, whole)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for transform in (lambda f: f, jax.jit):
        pull = transform(lambda t, e: jax.vjp(lambda t: shifted(x, t, e), t)[1](tuple(g))[0])
        pulled = np.asarray(pull(jnp.asarray(table), ends))
        np.testing.assert_array_equal(pulled.view(np.int32), found.numpy().view(np.int32))
