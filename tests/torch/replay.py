"""Comparisons of the drop-ins in their originals' cases: with float64, and by their tolerances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad

from tests.torch.expected import assert_close

Tolerances = dict[str, float]


def replay(
    ours: Callable[..., Any],
    exact: Callable[..., Any],
    tensors: Sequence[Tensor],
    published: Tolerances | None = None,
    *,
    ulps: float = 8.0,
    dtypes: Sequence[torch.dtype] | None = None,
) -> None:
    """Compares values, and gradients of random cotangents, with those of `exact` in float64.

    Args:
      ours, exact: functions of the tensors that return a tensor or a tuple.
      tensors: arguments, whose gradients are compared too.
      published: the original's tolerances, checked in addition.
      ulps: our tolerance, in units of the largest number of each tensor.
      dtypes: the dtypes of the results; by default the first tensor's.
    """
    inputs = [t.detach().requires_grad_() for t in tensors]
    wide = [t.detach().double().requires_grad_() for t in tensors]
    results, expected = (
        found if isinstance(found, tuple) else (found,) for found in (ours(*inputs), exact(*wide))
    )
    assert [y.dtype for y in results] == list(dtypes or [tensors[0].dtype] * len(expected))
    random = torch.Generator().manual_seed(17)
    cotangents = [torch.randn(y.shape, generator=random).to(y.dtype) for y in results]
    before = [g.clone() for g in cotangents]
    gradients = grad(results, inputs, cotangents)
    references = grad(expected, wide, [g.double() for g in cotangents])
    for g, same in zip(cotangents, before, strict=True):
        assert torch.equal(g, same)
    for gradient, one in zip(gradients, inputs, strict=True):
        assert gradient.dtype == one.dtype
    found = (*results, *gradients)
    for y, reference in zip(found, (*expected, *references), strict=True):
        assert_close(y, reference, ulps)
        if published is not None:
            torch.testing.assert_close(y.detach(), reference.detach().to(y.dtype), **published)
