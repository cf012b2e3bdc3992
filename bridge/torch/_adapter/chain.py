"""Two calls recorded as one node of autograd's graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.ops import PROGRAM
from bridge.torch._adapter.autograd import Plan, plan_of
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.kernels import Results, dtypes_of


class Chain:
    """An op of rows and the op that reduces all its results, recorded as one node.

    For a tiny call, a node costs more than both kernels. The derivatives of the reduction must not
    depend on results that change with the operands, because autograd treats saved results as
    constants.
    """

    def __init__(
        self, rows: DeclaredEntry, reduction: DeclaredEntry, flat: Callable[[Tensor], Tensor]
    ) -> None:
        self._name, self._reduction = rows.name, reduction
        self._run, self._recorded = rows.run, rows.recorded  # bound once, which is faster
        self._flat = flat  # removes all dimensions but one
        self._plans: dict[Any, Plan] = {}  # key: the dtype of the first result

    def run(self, operands: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        """Returns the reduced results of rows, for these static arguments of the op of rows."""
        first, *_, last = operands
        is_recorded = getattr(first, "requires_grad", False) and torch.is_grad_enabled()
        if is_recorded and getattr(last, "ndim", 0) == 1:
            plan = self._recorded(operands, *values)
            if plan is not None:
                try:
                    return _apply(self._name)(plan, self._plan_of, *operands)
                except ValueError:  # wrong shapes: the checks below raise a better message
                    pass
        found = self._run(operands, None, *values)
        results = found if type(found) is tuple else (found,)
        flat = tuple([each if each.ndim == 1 else self._flat(each) for each in results])
        return self._reduction.run(flat, None)

    def _plan_of(self, found: Results) -> Plan:
        """Returns the plan that reduces such results."""
        key = found[0].dtype  # type: ignore[union-attr]
        if key not in self._plans:
            params = self._reduction.prepare(*found)
            name = self._reduction.name
            self._plans[key] = plan_of(PROGRAM, params, dtypes_of(found), name)
        return self._plans[key]


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
