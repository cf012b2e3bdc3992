"""Declared ops on tensors."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

import torch

from bridge._private.torch import constant_to_dynamo
from bridge.lang.tracing import Declaration
from bridge.ops import PROGRAM, ProgramParams
from bridge.ops.declared import Traced, function_of, traced
from bridge.ops.program import check_operands
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.entry import entry, fixed
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._ops.integers import as_integer

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# What dynamo, which is not to trace what traces a declaration, finds it by: it takes no more from a
# function that it does not trace than a number or a text. It looks attributes up as they are now; a
# dict it would see as it was at the first op of a graph, without what a second one adds.
_by_name = types.SimpleNamespace()


def declared_function(declaration: Declaration, several: bool) -> Callable[..., Any]:
    """The function of a declaration on tensors."""
    name = declaration.name

    def check(found: Traced, operands: tuple[Any, ...]) -> ProgramParams:
        form = found.form
        check_tensors(name, required=len(operands), **dict(zip(form.names, operands, strict=True)))
        return check_operands(form, [spec_of(operand) for operand in operands], found.texts)

    @constant_to_dynamo
    def name_to_dynamo(present: tuple[bool, ...], *values: Any) -> str:
        found = traced(declaration, present, *values)
        name = f"op_{hashlib.sha256(found.code.encode()).hexdigest()}"
        if not hasattr(_by_name, name):
            setattr(_by_name, name, found)
        return name

    def find(present: tuple[bool, ...], *values: Any) -> Traced:
        if _is_dynamo_compiling():
            values = tuple(map(fixed, values))
            return getattr(_by_name, name_to_dynamo(present, *values))  # type: ignore[no-any-return]
        return traced(declaration, present, *values)

    run: Any = entry(name, PROGRAM, Traced, check, several)
    integer = functools.partial(as_integer, name)
    run.public = function_of(declaration, find, run, integer, takes_out=not several)

    def prepare(*operands: Any, **static: Any) -> ProgramParams:
        """The parameters of a call of the op, checked: for other ways to make it."""
        values = {**declaration.static, **static}.values()
        return check(find((True,) * len(operands), *values), operands)

    run.public.prepare = prepare
    return run.public  # type: ignore[no-any-return]
