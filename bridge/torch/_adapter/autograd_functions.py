"""The `autograd.Function`s of a plan: a call that autograd or torch.func records.

`Plan` (autograd.py) has the derivatives; these classes hand them to torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import backward_class, forward_ad, set_fwd_grad_enabled, unpack_dual
from bridge.ops.batching import Move, batch_call
from bridge.ops.definition import Op
from bridge.torch._adapter.kernels import Results


@functools.cache
def named(function: Any, name: str, forward: bool = True) -> Any:
    """Returns a subclass of a Function with the name that profilers and graphs show.

    The name is `bridge::<name>`, in NVTX ranges too; its backward pass is `bridge::<name>Backward`.
    With `forward=False` only the backward pass gets a name: the dispatcher names the forward pass.
    """
    own = type(f"bridge::{name}" if forward else function.__name__, (function,), {})
    if (node := backward_class(own)) is not None:
        node.__name__ = f"bridge::{name}Backward"
    return own


class Rules(torch.autograd.Function):
    """The derivative rules of a plan; subclasses differ in how they write forward."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return None, *ctx.plan.vjp(ctx, cotangents, ctx.needs_input_grad[1:])

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return ctx.plan.present(ctx.plan.jvp(ctx, ctx.saved_tensors, tangents))

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: Any, *operands: Any) -> Any:
        params, moved = batched(plan.op, plan.params, operands, in_dims[1:], info.batch_size)
        batch = plan.like(plan.op, params, plan.dtypes, plan.function)
        outputs = plan.present(batch(*moved))
        return outputs, (0 if isinstance(outputs, Tensor) else (0,) * len(outputs))


class _EagerCall(Rules):
    """Forward and context in one method, at a third of the cost of setup_context."""

    @staticmethod
    def forward(ctx: Any, plan: Any, *operands: Any) -> Any:
        results = plan.compute(*operands)
        if results is None:
            results = plan.saving.run_below(operands)
        if plan.keeps_operands and not plan.quantized:  # inlined `plan.remember`
            ctx.plan = plan
            ctx.set_materialize_grads(False)
            kept = operands
        else:
            kept = plan.remember(ctx, operands, results)
        ctx.save_for_backward(*kept)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*kept)
        return results[plan.only] if plan.only is not None else plan.present(results)


def _backward_below(ctx: Any, *cotangents: Any) -> Any:
    return None, *ctx.plan.vjp(ctx, cotangents, ctx.needs_input_grad[1:])


@functools.cache
def apply_of(name: str) -> Any:
    """Returns the Function's `apply` without torch's Python wrapper, whose checks are made."""
    function = named(_EagerCall, name)
    # By default the engine's call looks up `backward` and `vjp` first, a good part of the cost of a
    # tiny backward pass. A torch without this class keeps the default.
    if (node := backward_class(function)) is not None:
        node.apply = _backward_below
    return super(torch.autograd.Function, function).apply


class FunctorchCall(Rules):
    """The form of a call that torch.func can transform."""

    @staticmethod
    def forward(plan: Any, *operands: Any) -> Any:
        return plan.present(plan(*operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        remember(ctx, inputs[0], inputs[1:], inputs[0].place(output))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return jvp_among_levels(ctx, tangents)


def jvp_among_levels(ctx: Any, tangents: Any, forward_enabled: bool = True) -> Any:
    """Computes `Rules.jvp` where outer transforms of torch.func may exist.

    Autograd calls jvp with forward mode off, which is meant for this level only. The outer levels
    must see the caller's modes, so forward mode is restored and this level's tangents are removed.
    (Each level of torch.func has one dual level, 0; `forward_ad` does not know about the levels
    that dynamo enters.)
    """
    kept = [None if t is None else unpack_dual(t, level=0)[0] for t in ctx.saved_tensors]
    with set_fwd_grad_enabled(forward_enabled):
        return ctx.plan.present(ctx.plan.jvp(ctx, kept, tangents))


def remember(ctx: Any, plan: Any, operands: tuple[Any, ...], results: Results) -> None:
    """Saves the residuals of a call for both modes."""
    kept = plan.remember(ctx, operands, results)
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)


def batched(
    op: Op[Any], params: Any, operands: Sequence[Any], dims: Sequence[int | None], size: int
) -> tuple[Any, tuple[Any, ...]]:
    """Returns parameters and operands of the call with one more dimension, in front of results."""
    params, moves = batch_call(
        op, params, [o is not None for o in operands], [d is not None for d in dims]
    )
    moved: list[Any] = []
    for operand, dim, move in zip(operands, dims, moves, strict=True):
        if move is Move.FRONT:
            operand = operand.movedim(dim, 0)
        elif move is Move.BROADCAST:
            operand = operand.expand(size, *operand.shape)
        elif move is Move.ALIGN:
            operand = operand.movedim(dim, 0)
            ones = (1,) * (moved[0].ndim - operand.ndim)
            operand = operand.reshape(size, *ones, *operand.shape[1:])
        moved.append(operand)
    return params, tuple(moved)
