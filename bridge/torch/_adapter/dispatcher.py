"""Defines every op as ops of torch's dispatcher, which tracing can see.

A schema has a fixed number of results, so there is one dispatcher op for each number:
`torch.ops.bridge.program` returns one result, `torch.ops.bridge.program_2` two. Absent operands are
None; parameters are keyword arguments.
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
from bridge.torch._adapter.kernels import Results, empty_results

library = torch.library.Library("bridge", "DEF")
_SCHEMA_TYPES = {"str": "str", "int": "int", "float": "float", "str | None": "str?"}
_MOST_ARGUMENTS = 64  # torch's limit for one schema


_at_first_dtensor: list[Callable[[], None]] = []


def at_first_dtensor(function: Callable[[], None]) -> None:
    """Calls `function` before the first call of an op after DTensors have been imported."""
    _at_first_dtensor.append(function)


@constant_to_dynamo
def _meet_dtensors() -> None:
    if "torch.distributed.tensor" in sys.modules:
        while _at_first_dtensor:
            _at_first_dtensor[-1]()
            _at_first_dtensor.pop()


def dispatch(op: Any, operands: tuple[Any, ...], params: Any) -> Results:
    """Calls the dispatcher op of `op` for the results that `params` wants."""
    _meet_dtensors()
    dtypes = op.result_dtypes(params)
    outputs = overload_of(op, dtypes)(*operands, **fields_of(params))
    remaining = iter((outputs,) if isinstance(outputs, Tensor) else outputs)
    return tuple(None if dtype is None else next(remaining) for dtype in dtypes)


def overload_of(op: Any, dtypes: tuple[str | None, ...]) -> Any:
    """Returns the dispatcher op of `op` for results of these dtypes."""
    return overloads[op.name, sum([dtype is not None for dtype in dtypes])]


def fields_of(params: Any) -> dict[str, Any]:
    """Returns the parameters as keyword arguments of the dispatcher op."""
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}


def trimmed(op: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Drops the absent operands at the end, which the defaults of the schema have filled in."""
    used = max(i for i, operand in enumerate(operands) if operand is not None) + 1
    count = op.operand_count(used)
    return (*operands[:count], *[None] * (count - len(operands)))


def flattened(results: Results) -> Any:
    """Returns the results as a dispatcher op does: a tensor, or a tuple of several."""
    present = [result for result in results if result is not None]
    return present[0] if len(present) == 1 else tuple(present)


def with_schema(op: Any, function: Callable[..., Results]) -> Callable[..., Any]:
    """Adapts function(op, operands, params) to the arguments and outputs of a dispatcher op."""

    def adapted(*operands: Any, **fields: Any) -> Any:
        return flattened(function(op, trimmed(op, operands), op.params_type(**fields)))

    return adapted


def _define(op: Any, count: int) -> Any:
    """Defines the dispatcher op for `count` results and returns it."""
    name = op.name if count == 1 else f"{op.name}_{count}"
    fields = dataclasses.fields(op.params_type)
    first, *others = op.operand_names[: _MOST_ARGUMENTS - len(fields)]
    arguments = [f"Tensor {first}", *(f"Tensor? {other}=None" for other in others), "*"]
    arguments += [f"{_SCHEMA_TYPES[str(field.type)]} {field.name}" for field in fields]
    returns = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    schema = f"{name}({', '.join(arguments)}) -> {returns}"
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

    torch.library.register_fake(f"bridge::{name}", with_schema(op, empty_results), lib=library)
    return getattr(torch.ops.bridge, name).default


overloads = {
    (op.name, count): _define(op, count)
    for op in OPS.values()
    for count in range(1, (MOST_RESULTS if op.result_names is None else len(op.result_names)) + 1)
}
