"""Any op as a differentiable torch function, from its two derivative rules.

One function, `call`, runs everywhere; it picks the cheapest way that is right where it stands:

- plain tensors, no gradient wanted: the kernel, directly;
- autograd, forward mode, torch.func: an `autograd.Function` whose derivatives are calls again;
- tracing (torch.compile, export, fake tensors, dispatch modes, tensor subclasses): the dispatcher
  op of the same name (see `_dispatcher`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bridge.ops.batching import Move, batch_call
from bridge.torch._dispatcher import dispatch
from bridge.torch._kernels import run, spec_of

_PLAIN = {Tensor, torch.nn.Parameter}


def call(op: Any, operands: tuple[Any, ...], params: Any) -> tuple[Tensor | None, ...]:
    """Runs `op`, differentiably where the operands ask for it."""
    if is_traced(operands):
        return dispatch(op, operands, params)
    if torch._C._are_functorch_transforms_active():
        return _results(_FunctorchCall.apply(op, params, *operands), op, params)
    if needs_derivative(operands):
        return _results(_EagerCall.apply(op, params, *operands), op, params)
    return run(op, operands, params)


def is_traced(operands: Sequence[Any]) -> bool:
    """Whether something other than eager execution looks at the operands."""
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    ):
        return True
    return any(operand is not None and type(operand) not in _PLAIN for operand in operands)


def needs_derivative(operands: Sequence[Any]) -> bool:
    """Whether autograd or forward mode follows any of the operands."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    return any(operand is not None and operand.requires_grad for operand in operands)


def _results(outputs: Any, op: Any, params: Any) -> tuple[Tensor | None, ...]:
    """Puts the wanted results, as a Function returned them, back into their places."""
    if not isinstance(outputs, tuple):
        outputs = (outputs,)
    remaining = iter(outputs)
    return tuple(
        None if getattr(params, name) is None else next(remaining) for name in op.result_names
    )


def _wanted(results: Sequence[Any]) -> Any:
    present = tuple(result for result in results if result is not None)
    return present[0] if len(present) == 1 else present


def vjp(
    op: Any, operands: tuple[Any, ...], params: Any, cotangents: Sequence[Any], wanted: Any
) -> list[Any]:
    """Cotangents of the operands; `cotangents` are those of the wanted results."""
    specs = [None if operand is None else spec_of(operand) for operand in operands]
    placed = _results(tuple(cotangents), op, params)
    gradients: list[Any] = [None] * len(operands)
    for derivative, places in op.vjp(operands, placed, wanted, specs, params):
        results = call(derivative.op, derivative.operands, derivative.params)
        for result, place in zip(results, places, strict=True):
            if place is None:
                continue
            previous = gradients[place]
            gradients[place] = result if previous is None else previous + result
    return gradients


class _Call(torch.autograd.Function):
    """The derivative rules, shared by the two ways of writing forward."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        wanted = ctx.needs_input_grad[2:]
        return (None, None, *vjp(ctx.op, ctx.saved_tensors, ctx.params, cotangents, wanted))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        op, params, operands = ctx.op, ctx.params, ctx.saved_tensors
        specs = [None if operand is None else spec_of(operand) for operand in operands]
        totals: list[Any] | None = None
        for derivative in op.jvp(operands, tangents[2:], specs, params):
            results = call(derivative.op, derivative.operands, derivative.params)
            if totals is None:
                totals = list(results)
            else:
                totals = [
                    None if total is None else total + result
                    for total, result in zip(totals, results, strict=True)
                ]
        return _wanted(totals or [None] * len(op.result_names))

    @staticmethod
    def vmap(info: Any, in_dims: Any, op: Any, params: Any, *operands: Any) -> Any:
        dims = in_dims[2:]
        results = batched(op, params, operands, dims, info.batch_size, call)
        wanted = _wanted(results)
        return wanted, (0 if isinstance(wanted, Tensor) else (0,) * len(wanted))


class _EagerCall(_Call):
    """Forward and context in one, which costs a third of what setup_context does."""

    @staticmethod
    def forward(ctx: Any, op: Any, params: Any, *operands: Any) -> Any:
        _remember(ctx, op, params, operands)
        return _wanted(run(op, operands, params))


class _FunctorchCall(_Call):
    """The form that torch.func can transform."""

    @staticmethod
    def forward(op: Any, params: Any, *operands: Any) -> Any:
        return _wanted(call(op, operands, params))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        op, params, *operands = inputs
        _remember(ctx, op, params, tuple(operands))


def _remember(ctx: Any, op: Any, params: Any, operands: tuple[Any, ...]) -> None:
    ctx.op, ctx.params = op, params
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*operands)
    ctx.save_for_forward(*operands)


def batched(
    op: Any,
    params: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    size: int,
    caller: Callable[..., Any],
) -> tuple[Tensor | None, ...]:
    """Calls the op with one more dimension, which every result carries in front."""
    new_params, moves = batch_call(
        op, params, [o is not None for o in operands], [d is not None for d in dims]
    )
    moved = []
    for operand, dim, move in zip(operands, dims, moves, strict=True):
        if move is Move.FRONT:
            operand = operand.movedim(dim, 0)
        elif move is Move.BROADCAST:
            operand = operand.expand(size, *operand.shape)
        moved.append(operand)
    return caller(op, tuple(moved), new_params)
