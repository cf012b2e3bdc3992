"""A JAX program as a differentiable torch function.

`call` chooses the cheapest of these ways that is correct for the call, as `call` in
`bridge.torch._adapter.autograd` does for the ops:

- no gradient wanted: the jitted function, directly;
- autograd: a `Function` that stores JAX's residuals;
- `torch.func`, and derivatives that are differentiated: a `Function` whose derivatives are calls;
- tracing: an op of torch's dispatcher (`dispatcher` registers it by `dispatch_by`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torch import Tensor

from bridge._private.torch import (
    add_batch_dim,
    backward_class,
    can_unbatch,
    forward_ad,
    functorch_active,
    inside_dispatcher,
    is_functionalized,
    is_old_batched,
    old_vmap_level,
    remove_batch_dim,
    set_fwd_grad_enabled,
    unpack_dual,
    unwrap_if_dead,
)
from bridge.exchange.from_array import cross as to_torch
from bridge.exchange.from_tensor import cross as to_array
from bridge.exchange.refusal import Refused
from bridge.torch._adapter.autograd import is_traced
from bridge.torch._from_jax.forward import Forward, forward_of
from bridge.torch._from_jax.program import Mask, Program

_is_grad_enabled = torch.is_grad_enabled

Outputs = Callable[[Program, Sequence[Any]], Sequence[Any]]
_dispatch: Outputs


def dispatch_by(function: Outputs) -> None:
    """Registers the function for traced calls: the dispatcher op, whose rules are calls again."""
    global _dispatch
    _dispatch = function


def call(program: Program, leaves: Sequence[Any]) -> Sequence[Any]:
    """Returns the outputs of `program`, differentiable if a leaf requires it."""
    tensors = leaves if program.only_tensors else tensors_of(program, leaves)
    return call_on(program, leaves, tensors, is_traced(tensors))


def call_on(
    program: Program, leaves: Sequence[Any], tensors: Sequence[Tensor], traced: bool
) -> Sequence[Any]:
    """Runs `call` when the caller already knows the tensors among the leaves and `traced`."""
    if traced or inside_dispatcher() or is_functionalized():
        return _dispatch(program, _to_keep(program, leaves))
    if functorch_active():
        return placed(_FunctorchCall.apply(program, *_to_keep(program, leaves)))
    try:
        if program.has_derivatives and (
            forward_ad._current_level >= 0
            or (_is_grad_enabled() and any([t.requires_grad for t in tensors]))
        ):
            return placed(_record(program, *_to_keep(program, leaves)))
        return run(program, leaves)
    except (Refused, RuntimeError):
        # Two rare cases, which only the tensors themselves show: tensors of torch's first vmap, and
        # wrappers that have outlived their transform.
        if can_unbatch and any(map(is_old_batched, tensors)):
            return _call_old_batched(program, leaves)
        pairs = zip(leaves, program.tensors, strict=True)
        alive = [unwrap_if_dead(leaf) if is_tensor else leaf for leaf, is_tensor in pairs]
        if all(map(operator.is_, alive, leaves)):
            raise
        return call(program, alive)


def _to_keep(program: Program, leaves: Sequence[Any]) -> Sequence[Any]:
    """Copies NumPy arrays, which can be written to before a backward pass reads them again."""
    if program.only_tensors:
        return leaves
    return [jnp.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]


def run(program: Program, leaves: Sequence[Any]) -> list[Any]:
    """Returns the outputs without a derivative."""
    if program.is_plain:
        return [to_torch(r) for r in program.run(*[to_array(t, None, True) for t in leaves])]
    return outputs_of(program, program.run(*arrays_of(program, leaves)))


def _call_old_batched(program: Program, leaves: Sequence[Any]) -> list[Any]:
    """Runs a call on tensors of torch's first vmap, which is_grads_batched uses for gradients."""
    level = old_vmap_level()
    dims: list[int | None] = []
    moved, size = [], 0
    for leaf, is_tensor in zip(leaves, program.tensors, strict=True):
        is_batched = is_tensor and is_old_batched(leaf)
        if is_batched:
            leaf = remove_batch_dim(leaf, level, 0, 0)
            size = leaf.shape[0]
        moved.append(leaf)
        dims.append(0 if is_batched else None)
    outputs = call(program.vmap(tuple(dims), size), moved)
    return [add_batch_dim(output, 0, level) for output in outputs]


def arrays_of(program: Program, leaves: Sequence[Any]) -> list[Any]:
    if program.only_tensors:
        return [to_array(leaf, None, True) for leaf in leaves]
    pairs = zip(leaves, program.tensors, strict=True)
    return [to_array(leaf, None, True) if is_tensor else leaf for leaf, is_tensor in pairs]


def outputs_of(program: Program, results: Sequence[Any]) -> list[Any]:
    if program.plain_outputs:
        return [to_torch(result) for result in results]
    if all(program.opaque):
        # No tensor output waits for JAX, which may still be reading the input tensors.
        jax.block_until_ready(results)
    pairs = zip(results, program.opaque, strict=True)
    return [result if is_opaque else to_torch(result) for result, is_opaque in pairs]


class _Kept:
    """The residuals of a forward pass that are not tensors of torch.

    The object is an attribute of a tensor that is saved with the others, so that it lives as long
    as saved tensors do: a backward pass that does not retain the graph frees it. If a hook for
    saved tensors has replaced that tensor (offloading), there is no object, and the backward pass
    runs the forward pass again.

    A residual in a saved tensor's memory is read again from the tensor in two cases: its storage
    has moved (FSDP frees parameters after the forward pass and gathers them again before the
    backward pass), or a hook has saved another tensor, which allows writes to the original. An
    input that got other memory by `.data =` leaves the residual where it was.
    """

    __slots__ = ("forward", "places", "residuals")

    def __init__(
        self, forward: Forward, residuals: list[Any], saved: Sequence[Tensor], inputs: int
    ) -> None:
        """`saved` has the inputs, then outputs; the object of an output would keep itself."""
        self.forward = forward
        self.residuals = residuals
        self.places = [
            (n, i, storage, storage.data_ptr(), saved[i] if i < inputs else None)
            for n, i in forward.saved
            for storage in (saved[i].untyped_storage(),)
        ]

    def current(self, saved: Sequence[Tensor]) -> list[Any]:
        """Returns the residuals; those of moved or replaced tensors are read from `saved`."""
        residuals = list(self.residuals)
        for n, i, storage, address, own in self.places:
            is_replaced = saved[i] is not own and saved[i].untyped_storage().data_ptr() != address
            if is_replaced or storage.data_ptr() != address:
                residuals[n] = to_array(saved[i], None, True)
        return residuals


class _Token(Tensor):
    """The saved tensor that carries a `_Kept`; `detach`, which checkpoints call, passes it on."""

    kept: _Kept

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if func is Tensor.detach:
            result.kept = args[0].kept
        return result


_EMPTY = torch.empty(0)


class ProgramFunction(torch.autograd.Function):
    """The derivatives as calls of programs; subclasses differ in how they write forward.

    ctx has `program`, and `others`: the leaves, None in place of tensors.
    """

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return jvp(ctx, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: Program, *leaves: Any) -> Any:
        batched = program.vmap(tuple(in_dims[1:]), info.batch_size)
        outputs = call(batched, leaves)
        dims = [None if is_opaque else 0 for is_opaque in program.opaque]
        return presented(outputs), presented(dims)


class _EagerCall(ProgramFunction):
    """Forward and context in one method; stores residuals."""

    @staticmethod
    def forward(ctx: Any, program: Program, *leaves: Any) -> Any:
        wanted = ctx.needs_input_grad[1:]
        arrays = arrays_of(program, leaves)
        saved = list(leaves) if program.only_tensors else tensors_of(program, leaves)
        if any(wanted):
            forward = forward_of(program, wanted)
            results = forward.run(*arrays)
            outputs = outputs_of(program, results[: forward.out_count])
            inputs = len(saved)
            saved += [outputs[i] for i in forward.aliased]
            token = _EMPTY.as_subclass(_Token)
            token.kept = _Kept(forward, forward.residuals(arrays, results), saved, inputs)
            ctx.save_for_backward(*saved, token)
        else:
            outputs = outputs_of(program, program.run(*arrays))
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*saved)
        remember(ctx, program, leaves)
        return presented(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return _backward(ctx, *cotangents)


def _backward(ctx: Any, *cotangents: Any) -> Any:
    with ctx.program.settings.restored():
        return _backward_here(ctx, *cotangents)


def _backward_here(ctx: Any, *cotangents: Any) -> Any:
    """Uses the residuals, unless the derivative is to be differentiated itself."""
    *saved, token = ctx.saved_tensors
    kept = getattr(token, "kept", None)
    if (
        kept is None
        or _is_grad_enabled()
        or forward_ad._current_level >= 0
        or not _are_plain(cotangents)
    ):
        return vjp(ctx, saved, cotangents)
    given, needed = given_of(cotangents), ctx.needs_input_grad[1:]
    try:
        arrays = [to_array(c, None, True) for c in cotangents if c is not None]
    except Refused as refused:
        raise refused.at("from_jax", "the gradient of an output") from refused.__cause__
    try:
        residuals = kept.current(saved)
    except Refused as refused:
        raise refused.at("from_jax", "a tensor saved for backward") from refused.__cause__
    gradients = kept.forward.backward(given, needed)(residuals, arrays)
    return (None, *spread(needed, map(to_torch, gradients)))


# The engine calls this; by default it would look for `backward` on the class first, as for ops.
if (_node := backward_class(_EagerCall)) is not None:
    _node.apply = _backward
# The base class's `apply` skips the Python wrapper, whose checks have been made already.
_record = super(torch.autograd.Function, _EagerCall).apply


class _FunctorchCall(ProgramFunction):
    """The form of a call that torch.func can transform."""

    @staticmethod
    def forward(program: Program, *leaves: Any) -> Any:
        return presented(call(program, leaves))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        program, *leaves = inputs
        tensors = tensors_of(program, leaves)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        remember(ctx, program, leaves)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return vjp(ctx, ctx.saved_tensors, cotangents)


def vjp(ctx: Any, saved: Sequence[Tensor], cotangents: Sequence[Any]) -> Any:
    """Computes gradients by a call that can be differentiated; it repeats the forward pass."""
    program, needed = ctx.program, ctx.needs_input_grad[1:]
    given = given_of(cotangents)
    leaves = _leaves(program, saved, ctx.others)
    present = [cotangent for cotangent in cotangents if cotangent is not None]
    with program.settings.restored():
        gradients = call(program.vjp(needed, given), (*leaves, *present))
    return (None, *spread(needed, gradients))


def jvp(ctx: Any, tangents: Sequence[Any], forward_enabled: bool = True) -> Any:
    """Computes tangents of the outputs, also below outer transforms of torch.func.

    Autograd calls jvp with forward mode off, which is meant for this level only. The outer levels
    must see the caller's modes, so forward mode is restored and this level's tangents are removed.
    """
    program = ctx.program
    given = given_of(tangents)
    saved = ctx.saved_tensors[: sum(program.tensors)]
    with set_fwd_grad_enabled(forward_enabled):
        primals = [unpack_dual(tensor, level=0)[0] for tensor in saved]
        leaves = _leaves(program, primals, ctx.others)
        present = [tangent for tangent in tangents if tangent is not None]
        outputs = call(program.jvp(given), (*leaves, *present))
    return presented(spread(program.differentiable, outputs))


def remember(ctx: Any, program: Program, leaves: Sequence[Any]) -> None:
    ctx.program = program
    ctx.others = None
    if not program.only_tensors:
        ctx.others = others_of(program, leaves)
    ctx.set_materialize_grads(False)


def _are_plain(cotangents: Sequence[Any]) -> bool:
    present = [cotangent for cotangent in cotangents if cotangent is not None]
    return not (is_traced(present) or functorch_active() or any(map(is_old_batched, present)))


def tensors_of(program: Program, leaves: Sequence[Any]) -> list[Tensor]:
    pairs = zip(leaves, program.tensors, strict=True)
    return [leaf for leaf, is_tensor in pairs if is_tensor]


def others_of(program: Program, leaves: Sequence[Any]) -> list[Any]:
    """Returns the leaves that are not tensors, and None in place of tensors."""
    pairs = zip(leaves, program.tensors, strict=True)
    return [None if is_tensor else leaf for leaf, is_tensor in pairs]


def given_of(values: Sequence[Any]) -> Mask:
    return tuple([value is not None for value in values])


def _leaves(program: Program, tensors: Sequence[Tensor], others: Sequence[Any] | None) -> Any:
    if others is None:
        return tensors[: len(program.tensors)]
    remaining = iter(tensors)
    pairs = zip(others, program.tensors, strict=True)
    return [next(remaining) if is_tensor else other for other, is_tensor in pairs]


def spread(mask: Mask, values: Any) -> tuple[Any, ...]:
    """Returns the values at the places where the mask is set, None elsewhere."""
    remaining = iter(values)
    return tuple([next(remaining) if here else None for here in mask])


def presented(outputs: Sequence[Any]) -> Any:
    """Returns outputs as a Function does: one, or a tuple of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def placed(outputs: Any) -> Sequence[Any]:
    """Inverts `presented`."""
    return outputs if type(outputs) is tuple else (outputs,)
