"""Every op as ops of torch's dispatcher, which tracing can see.

One dispatcher op per number of results, because a schema has a fixed number of them:
`torch.ops.bridge.program` gives one, `torch.ops.bridge.program_2` two. Operands that are absent are
None, parameters are keyword arguments.
What runs them, and what autograd and vmap make of them, is in `dispatcher_rules`.
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
_MOST_ARGUMENTS = 64  # of a schema, as torch is built


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
    """The dispatcher op of `op` for results of these dtypes."""
    return overloads[op.name, sum([dtype is not None for dtype in dtypes])]


def fields_of(params: Any) -> dict[str, Any]:
    """The parameters as keyword arguments of the dispatcher op."""
    return {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}


def trimmed(op: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without the absent operands at the end, which a schema's defaults filled in."""
    used = max(i for i, operand in enumerate(operands) if operand is not None) + 1
    count = op.operand_count(used)
    return (*operands[:count], *[None] * (count - len(operands)))


def flattened(results: Results) -> Any:
    """Results as a dispatcher op returns them: a tensor, or a tuple of several."""
    present = [result for result in results if result is not None]
    return present[0] if len(present) == 1 else tuple(present)


def with_schema(op: Any, function: Callable[..., Results]) -> Callable[..., Any]:
    """function(op, operands, params) with the arguments and outputs of a dispatcher op."""

    def adapted(*operands: Any, **fields: Any) -> Any:
        return flattened(function(op, trimmed(op, operands), op.params_type(**fields)))

    return adapted


def _define(op: Any, count: int) -> Any:
    """The dispatcher op for so many results."""
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
