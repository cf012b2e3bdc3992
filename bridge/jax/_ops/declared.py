"""Declared ops on arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from bridge.jax._adapter.arguments import as_array_like, as_arrays, compiled_for
from bridge.jax._adapter.avals import spec_of
from bridge.jax._adapter.primitive import call
from bridge.jax._ops.integers import as_integer, words
from bridge.lang import roles
from bridge.lang.tracing import Declaration
from bridge.ops import PROGRAM
from bridge.ops.declared import Traced, function_of, traced
from bridge.ops.dtypes import FLOATING, promote
from bridge.ops.program import check_operands, dtypes_of_role


def declared_function(declaration: Declaration, several: bool) -> Callable[..., Any]:
    """The function of a declaration on arrays."""

    def run(found: Traced, operands: tuple[Any, ...], axis: str | None = None) -> Any:
        arguments = []
        for operand, value in zip(found.program.operands, operands, strict=True):
            if operand.role is roles.Integer:
                arguments.append(as_integer(found.name, operand.name, value))
                continue
            dtypes = dtypes_of_role(operand.role)
            expected = f"one of {', '.join(dtypes)}"
            arguments.append(as_array_like(found.name, operand.name, value, dtypes, expected))
        results = _compiled(found, axis)(*arguments)
        return results if several else results[0]

    find = functools.partial(traced, declaration)
    function: Any = function_of(declaration, find, run)

    def on_axis(axis: str, *operands: Any, **static: Any) -> Any:
        """The op inside of `shard_map`, on columns that are split over a mesh axis."""
        values = {**declaration.static, **static}.values()
        return run(find((True,) * len(operands), *values), operands, axis)

    function.on_axis = on_axis
    return function  # type: ignore[no-any-return]


@compiled_for
def _compiled(found: Traced, axis: str | None) -> Any:
    def declared(*operands: Any) -> tuple[jax.Array, ...]:
        arrays = []
        for operand, value in zip(found.program.operands, operands, strict=True):
            if operand.role is roles.Integer:
                arrays.append(words(found.name, operand.name, value))
            else:
                arrays.extend(as_arrays(value))
        arrays = _settled(arrays)
        params = check_operands(found.form, [spec_of(array) for array in arrays], found.texts)
        return call(PROGRAM, arrays, params, axis)

    declared.__name__ = found.name
    return declared


def _settled(arrays: list[Any]) -> list[Any]:
    """A weakly typed floating array takes the dtype of the others, as in jax.numpy."""
    floating = [array for array in arrays if array.dtype.name in FLOATING]
    strong = [array.dtype.name for array in floating if not array.weak_type]
    if not strong:
        return arrays
    dtype = promote(*strong)
    return [
        array.astype(dtype) if array.dtype.name in FLOATING and array.weak_type else array
        for array in arrays
    ]
