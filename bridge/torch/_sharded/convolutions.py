"""Convolutions of DTensors; `bridge.ops.convolution_splits` says which splits stay."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from bridge.ops.convolution import ConvolutionParams
from bridge.ops.convolution_splits import dims_of, own_params, space_of, supported
from bridge.torch._adapter.convolutions import PRIMITIVES, params_of
from bridge.torch._adapter.dispatcher import library
from bridge.torch._sharded.rows import one_mesh, refuse_plain
from bridge.torch._sharded.split import Split, placed, spread


def run(a: Any, b: Any, bias: Any, params: ConvolutionParams) -> DTensor:
    """Returns the convolution of operands of which some are DTensors.

    Raises:
      TypeError: a is a plain tensor and another operand a DTensor.
      ValueError: operands are on different meshes, or this process is not in their mesh.
    """
    operands = [a, b] if bias is None else [a, b, bias]
    mesh = one_mesh("convolution", operands)
    names = {"forward": ("input", "weight"), "input": ("input", "weight")}
    refuse_plain("convolution", (*names.get(params.kind, ("x", "y")), "bias"), operands)
    shapes = [tuple(operand.shape) for operand in operands]
    space, (*dims, result_dims) = space_of(shapes, params), dims_of(shapes, params)
    spread_out = [(o, d) for o, d in zip(operands, dims, strict=True) if isinstance(o, DTensor)]
    split = Split(space, ((),) * len(space), mesh).like(spread_out)
    split = supported(split, params)
    x, y, *rest = (placed(o, split, d) for o, d in zip(operands, dims, strict=True))
    with torch.no_grad():
        own = own_params(params, split)
        result = PRIMITIVES.convolution(x, y, rest[0] if rest else None, own)
    return spread(result, split, result_dims)


def register_convolutions() -> None:
    """Gives the dispatcher's op a rule for DTensor, below autograd."""

    def rule(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        a, b, bias, *fields = args
        return run(a, b, bias, params_of(*fields, **(kwargs or {})))

    overload = torch.ops.bridge.convolution.default
    torch.library.register_torch_dispatch(overload, DTensor, rule, lib=library)
