"""Every op as ops of torch's dispatcher, which tracing can see.

One dispatcher op per set of results, because a schema has a fixed number of them:
`torch.ops.bridge.bias_gelu` gives the full array, `bias_gelu_row` the column sums,
`bias_gelu_full_row` both. Operands that are absent are None.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.ops import OPS
from bridge.torch._kernels import empty_results, run

_library = torch.library.Library("bridge", "DEF")
_SCHEMA_TYPES = {"str": "str", "int": "int", "str | None": "str?"}


def dispatch(op: Any, operands: tuple[Any, ...], params: Any) -> tuple[Tensor | None, ...]:
    """Calls the dispatcher op of `op` for the results that `params` wants."""
    wanted = tuple(name for name in op.result_names if getattr(params, name) is not None)
    overload = _overloads[op.name, wanted]
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    outputs = overload(*operands, **fields)
    outputs = iter((outputs,) if isinstance(outputs, Tensor) else outputs)
    return tuple(next(outputs) if name in wanted else None for name in op.result_names)


def _define(op: Any, wanted: tuple[str, ...]) -> Any:
    name = op.name if wanted == op.result_names[:1] else "_".join((op.name, *wanted))
    first, *others = op.operand_names
    arguments = [f"Tensor {first}", *(f"Tensor? {other}=None" for other in others), "*"]
    fields = dataclasses.fields(op.params_type)
    arguments += [f"{_SCHEMA_TYPES[str(field.type)]} {field.name}" for field in fields]
    returns = "Tensor" if len(wanted) == 1 else f"({', '.join(['Tensor'] * len(wanted))})"
    _library.define(f"{name}({', '.join(arguments)}) -> {returns}")

    def adapt(function: Callable[..., Any]) -> Callable[..., Any]:
        """From (op, operands, params) -> results to the schema's flat arguments and outputs."""

        def flat(*operands: Any, **fields: Any) -> Any:
            while operands and operands[-1] is None:
                operands = operands[:-1]
            if len(operands) % 2:
                operands = (*operands, None)
            results = function(op, operands, op.params_type(**fields))
            present = tuple(result for result in results if result is not None)
            return present[0] if len(wanted) == 1 else present

        return flat

    qualified = f"bridge::{name}"
    for key in ("CPU", "CUDA"):
        _library.impl(name, adapt(run), key)
    torch.library.register_fake(qualified, adapt(_fake), lib=_library)
    torch.library.register_autograd(
        qualified, _backward(op, len(op.operand_names)), setup_context=_setup, lib=_library
    )
    torch.library.register_vmap(qualified, _vmap(op, wanted), lib=_library)
    return getattr(torch.ops.bridge, name).default


def _fake(op: Any, operands: tuple[Any, ...], params: Any) -> tuple[Any, ...]:
    return empty_results(op, operands[0], params)


def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any) -> None:
    ctx.fields = dict(keyword_only_inputs)
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _backward(op: Any, count: int) -> Callable[..., Any]:
    def backward(ctx: Any, *cotangents: Any) -> Any:
        from bridge.torch._autograd import vjp

        params = op.params_type(**ctx.fields)
        operands = tuple(ctx.saved_tensors)
        used = max(i for i, operand in enumerate(operands) if operand is not None) + 1
        used += used % 2
        wanted = ctx.needs_input_grad[:used]
        gradients = vjp(op, operands[:used], params, cotangents, wanted)
        return (*gradients, *[None] * (count - used))

    return backward


def _vmap(op: Any, wanted: tuple[str, ...]) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: Any, *operands: Any, **fields: Any) -> Any:
        from bridge.torch._autograd import batched

        used = [i for i, operand in enumerate(operands) if operand is not None]
        count = max(used) + 1 + (max(used) + 1) % 2
        dims = [*in_dims, *[None] * (len(operands) - len(in_dims))]
        results = batched(
            op,
            op.params_type(**fields),
            operands[:count],
            dims[:count],
            info.batch_size,
            dispatch,
        )
        present = tuple(result for result in results if result is not None)
        return (present[0], 0) if len(wanted) == 1 else (present, (0,) * len(wanted))

    return vmap


_overloads = {
    (op.name, wanted): _define(op, wanted)
    for op in OPS.values()
    for count in range(1, len(op.result_names) + 1)
    for wanted in itertools.combinations(op.result_names, count)
}
