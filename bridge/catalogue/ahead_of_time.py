"""The programs of the catalogue compiled ahead of time, which run fast without a compiler."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bridge.catalogue import (
    bias_dropout_add,
    bias_gelu,
    cross_entropy,
    framework_functions,
    gates,
    norms,
    optimizers,
)
from bridge.catalogue.softmax_programs import jacobian_program, softmax_program
from bridge.generated.requests import Request
from bridge.lang import codes
from bridge.lang.dtypes import FLOATING
from bridge.lang.program import is_parameter
from bridge.ops.definition import Role, Spec
from bridge.ops.form import check_operands
from bridge.ops.program_params import ProgramParams
from bridge.ops.traced import Traced, traced
from bridge.ops.usual_programs import request_of, requests_towards, usual_requests

# The usual calls in training: the op, the optional operands present, and static parameters that
# differ from the defaults. All operands have one dtype, also the dtype of a sum. Numbers such as
# eps may differ: they are free constants.
OPS: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "rms_norm": (norms.rms_norm, ("weight",), {}),
    "rms_norm + residual": (norms.add_rms_norm, ("weight",), {}),
    "layer_norm": (norms.layer_norm, ("weight", "bias"), {}),
    "swiglu packed": (gates.packed_glu, (), {}),
    "swiglu": (gates.glu, (), {}),
    "cross_entropy": (cross_entropy.counted_losses, (), {}),
    "bias_gelu tanh": (bias_gelu.bias_gelu, ("bias",), {"approximate": "tanh"}),
    "bias_gelu none": (bias_gelu.bias_gelu, ("bias",), {"approximate": "none"}),
    "bias_dropout_add": (
        bias_dropout_add.bias_dropout_add,
        ("bias", "residual", "seed"),
        {"p": 0.1},
    ),
    "bias_dropout_add in evaluation": (
        bias_dropout_add.bias_dropout_add,
        ("bias", "residual"),
        {"p": 0.0},
    ),
}
# Less frequent calls, compiled for CPUs only.
ON_CPU: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "swiglu packed + bias": (gates.packed_glu, ("bias", "up_bias"), {}),
    # The functions of torch and JAX that `invariant` runs, and bridge has no name for.
    "silu": (framework_functions.silu, (), {}),
    "mean": (framework_functions.mean, (), {}),
    "weighted cross_entropy": (framework_functions.weighted_losses, (), {}),
}
DTYPES = ("float32", "bfloat16")

# A step of an optimizer: the op, and the operands present. They have the dtype of the parameter, or
# its arithmetic's for the state and the numbers. The step count is int64 in PyTorch, int32 in JAX.
_ADAMW = ("p", "g", "m", "v", "lr", "step", "weight_decay")
STEPS = (
    (optimizers.adamw_in_place, _ADAMW, "int64", "float32"),
    (optimizers.adamw_in_place, _ADAMW, "int64", "bfloat16"),
    (optimizers.adamw_update, _ADAMW, "int32", "float32"),
    (optimizers.sgd_in_place, ("p", "g", "lr", "buffer", "step"), "int64", "float32"),
)

# Operands that have no gradient in any call.
CONSTANT = {"weighted cross_entropy": ("weight",)}

# Operands that fine-tuning may freeze together, as low-rank adapters do. The backward pass towards
# the others is another program, compiled too.
FROZEN = {
    "rms_norm": ("weight",),
    "rms_norm + residual": ("weight",),
    "layer_norm": ("weight", "bias"),
    "swiglu packed + bias": ("bias", "up_bias"),
    "bias_gelu tanh": ("bias",),
    "bias_gelu none": ("bias",),
    "bias_dropout_add": ("bias",),
}

# Ops that a build with CUDA also compiles for GPUs, in bfloat16: the ops of a first training step
# in a layer of a language model, without attention, and its loss. Other programs are compiled on
# first call: nvcc takes time in every build for each of these and each architecture, and every
# process that uses a GPU loads all of them and compares them with the interpreter.
ON_CUDA = (
    "rms_norm",
    "swiglu packed",
    "swiglu",
    "bias_gelu tanh",
    "bias_dropout_add",
    "cross_entropy",
)


def hand_written() -> Iterator[tuple[str, Request, int]]:
    """Yields the programs with kernels written by hand.

    With each comes the kernel's name in C++, and the number of its parameters. These are the first
    constants of the bytecode; other constants must be the program's.

    Measured against generated kernels, these are faster (docs/architecture.md).
    """
    for dtype, has_last in itertools.product(FLOATING, (False, True)):
        last = ("int64",) * has_last
        for has_mask in (False, True):
            params = softmax_program(1.0, dtype, (has_mask, has_last))
            dtypes = (dtype, *("bool",) * has_mask, *last, dtype)
            yield "softmax", *_request(params, dtypes)
        params = jacobian_program(1.0, dtype, has_last)
        yield "jacobian", *_request(params, (dtype, dtype, *last, dtype))


def _request(params: ProgramParams, dtypes: tuple[str, ...]) -> tuple[Request, int]:
    program = codes.parse(params.code).program
    return Request(program, params.arithmetic, dtypes), sum(map(is_parameter, program.nodes))


def requests() -> Iterator[Request]:
    """The programs that the build compiles for CPUs."""
    for name, dtype in itertools.product((*OPS, *ON_CPU), DTYPES):
        yield from requests_of(name, dtype)
    for name, dtype in itertools.product(FROZEN, DTYPES):
        yield frozen_request_of(name, dtype)
    # The mean of losses in `invariant`; losses are float32 where logits have fewer bits.
    found = traced(framework_functions.weighted_mean.declaration, (True, True))
    yield from itertools.islice(usual_requests(found, "float32"), 2)
    yield from itertools.starmap(_step, STEPS)


def _step(op: Any, given: tuple[str, ...], integer: str, dtype: str) -> Request:
    declaration = op.declaration
    present = tuple(p.name in given for p in declaration.parameters)
    found = traced(declaration, present, *declaration.static.values())
    shapes = {Role.INTEGER: (), Role.TABLE: (), Role.PER_ROW: (2,)}
    specs = [
        Spec(
            shapes.get(role, (2, 64)),
            integer if role is Role.INTEGER else dtype if name in ("p", "g") else "float32",
        )
        for name, role in zip(found.form.names, found.form.roles, strict=True)
    ]
    params = check_operands(found.name, found.form, specs, found.texts)
    return request_of(params, [spec.dtype for spec in specs])


def cuda_requests() -> Iterator[Request]:
    """The programs that the build compiles for CUDA, including the mean of losses."""
    for name in ON_CUDA:
        yield from requests_of(name, "bfloat16")
    found = traced(cross_entropy.mean.declaration, (True, True))
    forward, reverse = itertools.islice(usual_requests(found, "float32"), 2)
    yield from (forward, reverse)
    # JAX has no use for the gradient towards the counts of rows.
    alone = replace(reverse.program, results=reverse.program.results[:1])
    yield replace(reverse, program=alone, dtypes=reverse.dtypes[:-1])


def requests_of(name: str, dtype: str) -> Iterator[Request]:
    """Yields the programs of a training step: forward, forward with residuals, and backward."""
    yield from _requests_without(CONSTANT.get(name, ()), name, dtype)


def frozen_request_of(name: str, dtype: str) -> Request:
    """Returns an op's backward pass towards the operands that are not frozen."""
    *_, reverse = _requests_without(FROZEN[name], name, dtype)
    return reverse


def _requests_without(frozen: tuple[str, ...], name: str, dtype: str) -> Iterator[Request]:
    """Yields the programs of a training step, without gradients of these operands."""
    found = _traced(name, dtype)
    towards = [
        i
        for i, operand in enumerate(found.program.operands)
        if operand.dtype == "float" and operand.name not in frozen
    ]
    yield from itertools.islice(requests_towards([towards], found, dtype), _passes(name))


def _passes(name: str) -> int:
    """Returns the number of programs of a training step: 3 for an op with residuals, else 2."""
    return 3 if {**OPS, **ON_CPU}[name][0].declaration.keep else 2


def _traced(name: str, dtype: str) -> Traced:
    op, given, chosen = {**OPS, **ON_CPU}[name]
    declaration = op.declaration
    static = {**declaration.static, **chosen}
    if "dtype" in static:
        static["dtype"] = dtype
    present = tuple(not p.optional or p.name in given for p in declaration.parameters)
    return traced(declaration, present, *static.values())
