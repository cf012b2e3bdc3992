"""Writes results into memory that exists already, for any op: `out=`, and in place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import forward_ad, is_old_batched
from bridge.ops.definition import Op
from bridge.torch._adapter.autograd import Plan, call, is_recorded, is_watched, plan_of
from bridge.torch._adapter.autograd_functions import Rules, named, remember
from bridge.torch._adapter.checks import check_destination
from bridge.torch._adapter.derivatives import Step
from bridge.torch._adapter.kernels import Results, dtypes_of, spec_of, specs_of


def write_at_once(function: str, kernel: Any, operands: tuple[Any, ...], out: Any) -> bool:
    """Writes an ordinary call into `out` if a native kernel takes the call; True if it did.

    `out` is a tensor, or a tuple of them for several results.
    """
    places = as_tuple(out)
    try:
        if not all([type(place) is Tensor and not place.is_inference() for place in places]):
            return False
        if not kernel.write(places, *operands):
            return False
    except ValueError as error:
        raise _named_error(kernel.op, function, "out", error) from None
    torch.autograd.graph.increment_version(places)
    return True


def as_tuple(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def write_into(function: str, op: Op[Any], operands: tuple[Any, ...], params: Any, out: Any) -> Any:
    """Runs a call whose results go into `out`, and returns `out`.

    `function` is the name in messages and profilers. `out` is a tensor, or a tuple of one for each
    result that the call wants.

    Raises:
      TypeError, ValueError: if `out` cannot take the results. Nothing has been written then.
      RuntimeError: if an operand or `out` requires a gradient.
    """
    places = as_tuple(out)
    if torch.compiler.is_compiling() or is_watched((*operands, *places)):
        results = [r for r in call(op, operands, params, function) if r is not None]
        first, specs = "the first operand", [spec_of(result) for result in results]
    else:
        results = []
        first = op.words(params)[1][0]
        specs = [s for s in op.results(specs_of(operands), params) if s is not None]
    if len(places) != len(specs):
        raise ValueError(f"{function}: out has {len(places)} tensors, expected {len(specs)}")
    for place, spec in zip(places, specs, strict=True):
        check_destination(function, first, operands[0], spec, place)
    if len(set(map(id, places))) < len(places):
        raise ValueError(f"{function}: out has the same tensor twice, expected one for each result")
    if results:
        for place, result in zip(places, results, strict=True):
            place.copy_(result)
        return out
    present = [tensor for tensor in (*operands, *places) if tensor is not None]
    followed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in present)
    if forward_ad._current_level >= 0:
        followed = followed or any(forward_ad.unpack_dual(t).tangent is not None for t in present)
    if followed:
        raise RuntimeError(
            f"{function}: out=... does not support automatic differentiation, but one of the "
            "arguments requires grad"
        )
    _write(plan_of(op, params, dtypes_of(operands), function), operands, out, "out")
    return out


def overwrite(function: str, op: Op[Any], operands: tuple[Any, ...], params: Any) -> Tensor:
    """Runs a call whose only result takes the place of its first operand, and returns that.

    `function` is the name in profilers.
    """
    x, *others = operands
    if (
        torch.compiler.is_compiling()
        or is_watched(operands)
        or forward_ad._current_level >= 0
        or not _has_rows(x)
        or x.is_neg()
    ):
        return x.copy_(call(op, (x.clone(), *others), params, function)[0])
    plan = plan_of(op, params, dtypes_of(operands), function)
    if torch.is_grad_enabled() and any(o is not None and o.requires_grad for o in operands):
        if plan.saving is not plan:  # residuals among the results have no place in x
            return x.copy_(call(op, (x.clone(), *others), params, function)[0])
        # The copy is an input with a history of its own, so that second derivatives find x again.
        before = x.clone()
        x = named(_Overwrite, function, False).apply(plan, x, before, *others)
        # Write only now: torch has raised its errors by now and has counted the change.
        with torch.no_grad():
            _run_into(plan, (before, *others), x)
        return x
    _write(plan, operands, x)
    return x


def call_overwritten(function: str, op: Op[Any], operands: tuple[Any, ...], params: Any) -> Results:
    """Returns the results of a call whose backward pass may overwrite the first operand.

    The first operand's gradient is written over it. Reading it afterwards is an error of autograd,
    as after any change in place. Nothing is overwritten if more than a plain backward pass is
    recorded. `function` is the name in profilers.
    """
    x = operands[0]
    if torch.compiler.is_compiling() or is_watched(operands) or not is_recorded(operands):
        return call(op, operands, params, function)
    if forward_ad._current_level >= 0 or not (x.requires_grad and _has_rows(x)) or x.is_neg():
        return call(op, operands, params, function)
    if not _are_apart(x):
        return call(op, operands, params, function)
    plan = plan_of(op, params, dtypes_of(operands), function)
    return plan.place(named(_Overwritten, function).apply(plan, *operands))


def _write(plan: Plan, operands: tuple[Any, ...], out: Any, argument: str = "") -> None:
    """Runs the call into `out`; errors call it `argument`, or by the first operand's name."""
    places = as_tuple(out)
    if any(p.is_inference() for p in places) and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{plan.name}: Inplace update to inference tensor outside InferenceMode is not "
            "allowed; clone it first"
        )
    _run_into(plan, operands, out, argument)
    torch.autograd.graph.increment_version([p for p in places if not p.is_inference()])


def _run_into(plan: Plan, operands: tuple[Any, ...], out: Any, argument: str = "") -> None:
    """Runs the kernel as `_write` does, but counts no change of `out`."""
    try:
        with plan.recorded():
            plan.run(operands, plan.place(out))
    except ValueError as error:
        argument = argument or plan.op.words(plan.params)[1][0]
        raise _named_error(plan.op, plan.name, argument, error) from None


def _named_error(op: Op[Any], function: str, argument: str, error: ValueError) -> ValueError:
    """Returns the op's error about its only result in the words of the public function."""
    return ValueError(re.sub(f"^{op.name}: a result ", f"{function}: {argument} ", str(error)))


def _has_rows(x: Tensor) -> bool:
    """True if a kernel can write x: the rows have one stride, their elements are adjacent."""
    if x.ndim == 0 or x.numel() == 0:
        return True
    try:
        x.view(-1, x.shape[-1])
    except RuntimeError:
        return False
    return x.shape[-1] == 1 or x.stride(-1) == 1


def _are_apart(x: Tensor) -> bool:
    """True if no two rows of x share memory; `_has_rows(x)` must be true."""
    rows = x.view(-1, x.shape[-1]) if x.ndim and x.numel() else x
    return rows.ndim < 2 or len(rows) == 1 or rows.stride(0) >= rows.shape[1]


class _Overwrite(Rules):
    """Records a call in place on x; `before` is a copy of x. The kernel runs afterwards."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, before: Tensor, *others: Any) -> Tensor:
        remember(ctx, plan, (before, *others), plan.place(x))
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        _, x, _, *others = ctx.needs_input_grad
        first, *rest = ctx.plan.vjp(ctx, cotangents, (x, *others))
        return None, first, None, *rest


class _Overwritten(Rules):
    """A call whose backward pass may write the gradient of the first operand over it."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *operands: Any) -> Any:
        results = plan.saving.run_below(operands)
        ctx.save_for_backward(*plan.remember(ctx, operands, results))
        return plan.present(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        plan, wanted = ctx.plan, ctx.needs_input_grad[1:]
        given = [cotangent for cotangent in cotangents if cotangent is not None]
        is_plain = not (torch.is_grad_enabled() or is_watched(given))
        is_plain = is_plain and not any([is_old_batched(g) or g.is_sparse for g in given])
        step = _only_step(plan, wanted, cotangents) if is_plain else None
        if step is None:
            return None, *plan.vjp(ctx, cotangents, wanted)
        kept = ctx.saved_tensors  # read once: each read may recompute them (checkpointing)
        x = kept[plan.derivatives.kept.index(0)].detach()
        _write(step.plan, step.pick((*kept, *cotangents, None)), x)
        return None, *step.arrange((*step.plan.place(x), None))


def _only_step(plan: Plan, wanted: Sequence[bool], cotangents: Sequence[Any]) -> Any:
    """Returns the step that computes only the first operand's cotangent, or None.

    The operand must be a residual, so that the cotangent may be written over it.
    """
    step = plan.vjp_steps(tuple(wanted), tuple([each is not None for each in cotangents]))
    is_all = type(step) is Step and [place for _, place in step.places] == [0]
    return step if is_all and 0 in plan.derivatives.kept else None


def pull_over(
    plan: Plan, operands: tuple[Any, ...], results: Results, cotangents: Sequence[Any]
) -> Tensor:
    """Writes the first operand's cotangent over the operand and returns it; records nothing.

    Args:
      results: the results of `plan.saving`.
      cotangents: the cotangents of the wanted results, or None.
    """
    step = _only_step(plan, [i == 0 for i in range(len(operands))], cotangents)
    assert step is not None, plan.name
    kept = plan.derivatives.keep((*operands, *results))
    _write(step.plan, step.pick((*kept, *cotangents, None)), operands[0])
    return operands[0]  # type: ignore[no-any-return]
