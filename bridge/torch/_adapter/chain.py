"""Two calls recorded as one node of autograd's graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bridge.torch._adapter.autograd import Plan
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.kernels import Results


def chained(first: Plan, second_of: Callable[[Results], Plan], operands: tuple[Any, ...]) -> Any:
    """Returns the only result of a second call on all results of a first call.

    For a tiny call, a node costs more than both kernels. Requirements: `first.native` says that
    autograd records a call on the operands (`recorded`); and the derivatives of the second call do
    not depend on the first's results that change with the operands, because autograd treats saved
    results as constants.
    """
    return _apply(first.name)(first, second_of, *operands)


@functools.cache
def _apply(name: str) -> Any:
    # The base class's `apply` skips the Python wrapper, whose checks have been made already.
    return super(torch.autograd.Function, named(_Chained, name)).apply


class _Part:
    """The residuals of one plan's call; it replaces the ctx of a node of its own."""

    def __init__(self, saved_tensors: tuple[Any, ...] = (), likes: Any = None) -> None:
        self.saved_tensors, self.likes = saved_tensors, likes

    def set_materialize_grads(self, value: bool) -> None:
        pass


def _compute(plan: Plan, operands: tuple[Any, ...]) -> Results:
    results = plan.compute(*operands)
    return plan.saving.run_below(operands) if results is None else results


class _Chained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Plan, second_of: Any, *operands: Any) -> Any:
        ctx.set_materialize_grads(False)
        results = _compute(first, operands)
        between = results[: len(first.derivatives.results)]
        second = second_of(between)
        totals = _compute(second, between)
        parts = _Part(), _Part()
        kept = first.remember(parts[0], operands, results)
        others = second.remember(parts[1], between, totals)
        ctx.plans, ctx.likes = (first, second), [part.likes for part in parts]
        ctx.count = len(kept)
        ctx.save_for_backward(*kept, *others)
        return second.present(totals)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        first, second = ctx.plans
        count, saved = ctx.count, ctx.saved_tensors
        of_first, of_second = map(_Part, (saved[:count], saved[count:]), ctx.likes)
        constant = first.derivatives.constant
        moved = tuple([i not in constant for i in range(len(second.dtypes))])
        between = second.vjp(of_second, cotangents, moved)
        return None, None, *first.vjp(of_first, between, ctx.needs_input_grad[2:])
