"""Defines every op as ops of torch's dispatcher, which tracing can see.

A schema has a fixed number of results, so there is one dispatcher op for each number:
`torch.ops.bridge.program` returns one result, `torch.ops.bridge.program_2` two. The default
overload takes as many operands as torch allows. The overload `few` takes up to 8: each argument of
a schema, even an absent one, costs time in every call. Absent operands are None; parameters are
keyword arguments. A schema never changes, because compiled graphs on disk and exported models call
it; a new schema gets a new overload name.

`dispatcher_rules` runs, differentiates and batches them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import constant_to_dynamo
from bridge.lang.limits import MOST_RESULTS
from bridge.ops import OPS
from bridge.ops.definition import Op
from bridge.torch._adapter.kernels import Results, empty_results

library = torch.library.Library("bridge", "DEF")
_SCHEMA_TYPES = {"str": "str", "int": "int", "float": "float", "str | None": "str?"}
_MOST_ARGUMENTS = 64  # torch's limit for one schema
_FEW = 8  # operands of the overload `few`; the programs of training have at most as many


_at_first_dtensor: list[Callable[[], None]] = []


def at_first_dtensor(function: Callable[[], None]) -> None:
    """Calls `function` before the first call of an op after DTensors have been imported."""
    _at_first_dtensor.append(function)


@constant_to_dynamo
def meet_dtensors() -> None:
    """Runs the functions of `at_first_dtensor` once DTensors have been imported."""
    if "torch.distributed.tensor" in sys.modules:
        while _at_first_dtensor:
            _at_first_dtensor[-1]()
            _at_first_dtensor.pop()


def dispatch(op: Op[Any], operands: tuple[Any, ...], params: Any) -> Results:
    """Calls the dispatcher op of `op` for the results that `params` wants."""
    meet_dtensors()
    dtypes = op.result_dtypes(params)
    outputs = overload_of(op, dtypes, len(operands))(*operands, **fields_of(params))
    remaining = iter((outputs,) if isinstance(outputs, Tensor) else outputs)
    return tuple(None if dtype is None else next(remaining) for dtype in dtypes)


def overload_of(op: Op[Any], dtypes: tuple[str | None, ...], operands: int) -> Any:
    """Returns the dispatcher op of `op` for results of these dtypes and a number of operands."""
    return overloads[op.name, sum([dtype is not None for dtype in dtypes]), operands <= _FEW]


def fields_of(params: Any) -> dict[str, Any]:
    """Returns the parameters as keyword arguments of the dispatcher op."""
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}


def trimmed(op: Op[Any], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Drops the absent operands at the end, which the defaults of the schema have filled in."""
    used = len(operands)
    while operands[used - 1] is None:
        used -= 1
    count = op.operand_count(used)
    if count == len(operands):
        return operands
    return (*operands[:count], *[None] * (count - len(operands)))


def flattened(results: Results) -> Any:
    """Returns the results as a dispatcher op does: a tensor, or a tuple of several."""
    present = [result for result in results if result is not None]
    return present[0] if len(present) == 1 else tuple(present)


def with_schema(op: Op[Any], function: Callable[..., Results]) -> Callable[..., Any]:
    """Adapts function(op, operands, params) to the arguments and outputs of a dispatcher op."""

    def adapted(*operands: Any, **fields: Any) -> Any:
        return flattened(function(op, trimmed(op, operands), op.params_type(**fields)))

    return adapted


def _define(op: Op[Any], results: int, few: bool) -> Any:
    """Defines the dispatcher op for a number of results, and for few or any number of operands."""
    name = op.name if results == 1 else f"{op.name}_{results}"
    fields = dataclasses.fields(op.params_type)
    most = _FEW if few else _MOST_ARGUMENTS - len(fields)
    first, *others = op.operand_names[:most]
    arguments = [f"Tensor {first}", *(f"Tensor? {other}=None" for other in others), "*"]
    arguments += [f"{_SCHEMA_TYPES[str(field.type)]} {field.name}" for field in fields]
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    full_name = f"{name}.few" if few else name
    schema = f"{full_name}({', '.join(arguments)}) -> {returns}"
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

    fake = with_schema(op, empty_results)
    torch.library.register_fake(f"bridge::{full_name}", fake, lib=library)
    return getattr(getattr(torch.ops.bridge, name), "few" if few else "default")


overloads = {
    (op.name, results, few): _define(op, results, few)
    for op in OPS.values()
    for few in (False, True)
    for results in range(1, (MOST_RESULTS if op.result_names is None else len(op.result_names)) + 1)
}
