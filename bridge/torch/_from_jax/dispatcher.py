"""JAX programs as one op of torch's dispatcher, which tracing can see.

`torch.ops.bridge.jax_program(inputs, program)` runs the program of that name (see `carried`). A
traced graph holds only the name, so a program that has a name is never freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bridge._private.torch import SingleLevelFunction, functorch_active
from bridge.exchange.dtypes import TO_TORCH
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library
from bridge.torch._from_jax import call
from bridge.torch._from_jax.carried import name_of, name_to_run, program_of
from bridge.torch._from_jax.forward import forward_of
from bridge.torch._from_jax.program import Program


def dispatch(program: Program, leaves: Sequence[Any]) -> list[Tensor]:
    """Runs `program` through the dispatcher and returns its outputs."""
    if not program.plain_outputs:
        raise TypeError(
            f"from_jax: {program.name} returns a random key, which torch cannot trace; return "
            "jax.random.key_data of it"
        )
    if not program.only_tensors:
        others = call.others_of(program, leaves)
        leaves = call.tensors_of(program, leaves)
        program = program.bind(others)
    below_autograd = torch.is_inference_mode_enabled() and not functorch_active()
    name = (name_to_run if below_autograd else name_of)(program, leaves)
    return _op(list(leaves), name)


library.define("jax_program(Tensor[] inputs, str program) -> Tensor[]")
_op = torch.ops.bridge.jax_program.default


def _run(inputs: list[Tensor], name: str) -> list[Tensor]:
    program = program_of(name)
    _refuse_others(program, inputs)
    with program.settings.restored():
        return call.run(program, inputs)


def _fake(inputs: list[Tensor], name: str) -> list[Tensor]:
    program = program_of(name)
    _refuse_others(program, inputs)
    device = inputs[0].device if inputs else None
    return [
        torch.empty(aval.shape, dtype=TO_TORCH[aval.dtype], device=device)
        for aval in program.out_avals
    ]


def _refuse_others(program: Program, inputs: list[Tensor]) -> None:
    """Raises ValueError for tensors of other shapes or dtypes than the program was traced with."""
    expected = [(aval.shape, TO_TORCH[aval.dtype]) for aval in program.avals]
    if [(tuple(x.shape), x.dtype) for x in inputs] != expected:
        came = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
        wanted = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in expected)
        raise ValueError(
            f"from_jax: a graph calls {program.name} on ({came}), expected ({wanted}): a graph "
            "works only for the shapes and dtypes that it was traced with"
        )


for _key in ("CPU", "CUDA"):
    library.impl("jax_program", _run, _key)
torch.library.register_fake("bridge::jax_program", _fake, lib=library)


class _Dispatch(NamedTuple):
    program: Program
    below: BelowAutograd

    def run(self, inputs: Sequence[Tensor], program: Program | None = None) -> list[Tensor]:
        """Returns the outputs of the program, or of another one in its place."""
        name = name_to_run(program or self.program, inputs)
        outputs: list[Tensor] = self.below(list(inputs), name)
        return outputs


class _DispatchedCall(SingleLevelFunction):
    """The autograd Function that records the op."""

    @staticmethod
    def forward(ctx: Any, rest: _Dispatch, *inputs: Any) -> Any:
        ctx.forward_enabled = rest.below.forward_enabled
        wanted = ctx.needs_input_grad[1:]
        is_recorded = rest.below.grad_enabled and any(wanted)
        kept = forward_of(rest.program, wanted) if is_recorded else None
        whole = kept.whole() if kept is not None else None
        if kept is None or whole is None:
            ctx.kept, residuals = None, []
            outputs = rest.run(inputs)
        else:
            results = rest.run(inputs, whole)
            ctx.kept, residuals = kept, kept.travelling(inputs, results)
            outputs = results[: kept.out_count]
        ctx.save_for_backward(*inputs, *residuals)
        ctx.save_for_forward(*inputs)
        call.remember(ctx, rest.program, inputs)
        return call.presented(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        count = len(ctx.program.tensors)
        saved = ctx.saved_tensors  # read once: a selective checkpoint refuses the second read
        inputs, residuals = saved[:count], saved[count:]
        if ctx.kept is None or torch.is_grad_enabled():
            return call.vjp(ctx, inputs, cotangents)
        given, needed = call.given_of(cotangents), ctx.needs_input_grad[1:]
        present = [cotangent for cotangent in cotangents if cotangent is not None]
        with ctx.program.settings.restored():
            gradients = call.call(ctx.kept.pullback(given, needed), (*residuals, *present))
        return (None, *call.spread(needed, gradients))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return call.jvp(ctx, tangents, ctx.forward_enabled)


_record = recorder(_DispatchedCall)


def _autograd(keys: Any, inputs: list[Tensor], name: str) -> Any:
    program = program_of(name)
    rest = _Dispatch(program, BelowAutograd(_op, keys))
    if not program.has_derivatives:
        return rest.run(inputs)
    with program.settings.restored():
        return list(call.placed(_record(rest, *inputs)))


def _vmap(info: Any, in_dims: Any, inputs: list[Tensor], name: str) -> Any:
    program = program_of(name)
    with program.settings.restored():
        batched = program.vmap(tuple(in_dims[0]), info.batch_size)
    outputs = dispatch(batched, inputs)
    return outputs, [0] * len(outputs)


call.dispatch_by(dispatch)
library.impl("jax_program", _autograd, "Autograd", with_keyset=True)
torch.library.register_vmap("bridge::jax_program", _vmap, lib=library)
