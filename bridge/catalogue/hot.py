"""Programs of the catalogue that a build compiles: who has no compiler runs them at full speed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bridge.catalogue import bias_dropout_add, bias_gelu, cross_entropy, gates, norms
from bridge.generated.ahead import usual_requests
from bridge.generated.requests import Request
from bridge.ops.declared import traced

# As training has them: with these of the optional operands, all operands of one dtype, and static
# parameters with their defaults but for these and the dtype of a sum. Numbers such as eps may be
# others.
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
DTYPES = ("float32", "bfloat16")

# Of these a build with CUDA has kernels too, in bfloat16: what a layer of a language model, but for
# attention, and its loss call in a first training step. Others are compiled as they are called:
# every build pays for these with time of nvcc, once for each architecture, and every process that
# uses a GPU loads all of them and compares them with the interpreter.
ON_CUDA = (
    "rms_norm",
    "swiglu packed",
    "swiglu",
    "bias_gelu tanh",
    "bias_dropout_add",
    "cross_entropy",
)


def requests() -> Iterator[Request]:
    """What the build compiles."""
    for name, dtype in itertools.product(OPS, DTYPES):
        yield from requests_of(name, dtype)


def cuda_requests() -> Iterator[Request]:
    """What it compiles for CUDA, for any architecture: of those, and of the mean of the losses."""
    for name in ON_CUDA:
        yield from requests_of(name, "bfloat16")
    found = traced(cross_entropy.mean.declaration, (True, True))
    forward, reverse = itertools.islice(usual_requests(found, "float32"), 2)
    yield from (forward, reverse)
    # JAX has no use for the gradient towards the counts of rows.
    alone = replace(reverse.program, results=reverse.program.results[:1])
    yield replace(reverse, program=alone, dtypes=reverse.dtypes[:-1])


def requests_of(name: str, dtype: str) -> Iterator[Request]:
    """An op's forward pass, that which keeps what the backward pass reads, and that one."""
    op, given, chosen = OPS[name]
    declaration = op.declaration
    static = {**declaration.static, **chosen}
    if "dtype" in static:
        static["dtype"] = dtype
    present = tuple(not p.optional or p.name in given for p in declaration.parameters)
    usual = usual_requests(traced(declaration, present, *static.values()), dtype)
    yield from itertools.islice(usual, 3 if declaration.keep else 2)
