"""Declared ops on tensors."""

from __future__ import annotations

import functools
import hashlib
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from bridge._private.torch import constant_to_dynamo
from bridge.lang.tracing import Declaration
from bridge.ops import PROGRAM, ProgramParams, Role
from bridge.ops.declared import Traced, function_of, traced
from bridge.ops.form import check_operands
from bridge.ops.integers import check_integer_array
from bridge.torch._adapter.autograd import call, native_kernel, plan_of
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.destination import write_at_once, write_into
from bridge.torch._adapter.entry import MOST_KINDS, fixed
from bridge.torch._adapter.kernels import dtypes_of, spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.integers import as_integer

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# What dynamo, which is not to trace what traces a declaration, finds it by: it takes no more from a
# function that it does not trace than a number or a text. It looks attributes up as they are now; a
# dict it would see as it was at the first op of a graph, without what a second one adds.
_by_name = types.SimpleNamespace()

# Of static arguments that cannot change.
_FIXED_TYPES = frozenset({float, int, bool, str, type(None)})

Operands = tuple[Any, ...]


def declared_entry(name: str, resolve: Callable[..., tuple[Traced, Operands]]) -> Any:
    """Returns run(operands, out, *values): what a declared op returns, in `out` if given.

    Absent operands are None. As that of `entry`, a function of a module calls it with nothing
    between, one that is in no module is `run.public`, and checks of a kind are made once.
    run.recorded(operands, *values) is for who makes a call in another way.

    Args:
      name: the public function's name, for messages and profilers.
      resolve: resolve(operands, *values) raises, or returns what a call with these static arguments
        runs, and the operands of that.
    """
    # Values are told apart as the objects that they are: 0.0 and -0.0 are equal, as 1 and True are.
    # They are kept beside their kernel, so that no other object gets their numbers, and whether the
    # op returns a tuple.
    known: dict[tuple[int, ...], tuple[Operands, Any, bool]] = {}
    kernels: dict[Traced, Any] = {}

    def run(operands: Operands, out: Any = None, *values: Any) -> Any:
        kernel, is_tuple = None, False
        if not _is_dynamo_compiling():
            entered = known.get(tuple(map(id, values)))
            if entered is not None:
                _, kernel, is_tuple = entered
                if out is None:
                    try:
                        if (results := kernel(*operands)) is not None:
                            return results if is_tuple else results[0]
                    except ValueError:  # Autograd has no way back: what follows is for any shapes.
                        pass
                elif not is_tuple and write_at_once(name, kernel, operands, out):
                    return out
        if is_overridden(given := (*operands, out)):
            return hand_over(given, depth=2, function=getattr(run, "public", None))
        found, used = resolve(operands, *map(fixed, values))
        present = tuple([operand for operand in used if operand is not None])
        if not torch.compiler.is_compiling():
            tried = kernel
            # Whether it is a tuple may depend on which operands are there, which `known` is not by.
            is_other = tried is not None and is_tuple != found.returns_several
            if is_other or not _are_the_present(present, operands):
                kernel, operands = kernel_of(found), present
            elif kernel is None:
                kernel = kernel_of(found)
                if _FIXED_TYPES.issuperset(map(type, values)):
                    if len(known) == MOST_KINDS:
                        known.clear()
                    known[tuple(map(id, values))] = values, kernel, found.returns_several
            if out is None and kernel is not tried:
                try:
                    if (results := kernel(*operands)) is not None:
                        return results if found.returns_several else results[0]
                except ValueError:  # of shapes that the checks below have words for
                    pass
        if out is not None and found.returns_several:
            raise TypeError(f"{name}: out is given, expected None: the op returns a tuple")
        params = check(name, found, present)
        if not torch.compiler.is_compiling():
            plan = plan_of(PROGRAM, params, dtypes_of(present), name)
            plan.add_to(kernel, tuple([operand is not None for operand in operands]))
        if out is not None:
            return write_into(name, PROGRAM, present, params, out)
        results = call(PROGRAM, present, params, name)
        return results if found.returns_several else results[0]

    def recorded(operands: Operands, *values: Any) -> Any:
        """The plan of an ordinary call that was seen and that autograd records; None of another."""
        if _is_dynamo_compiling():
            return None
        entered = known.get(tuple(map(id, values)))
        return None if entered is None else entered[1].recorded(*operands)

    def kernel_of(found: Traced) -> Any:
        if (kernel := kernels.get(found)) is None:
            if len(kernels) == MOST_KINDS:
                kernels.clear()
            kernel = kernels[found] = native_kernel(PROGRAM)
        return kernel

    run.recorded = recorded  # type: ignore[attr-defined]
    return run


def _are_the_present(tensors: Operands, operands: Operands) -> bool:
    """Whether they are the operands, less the absent."""
    present = [operand for operand in operands if operand is not None]
    return len(present) == len(tensors) and all(map(operator.is_, present, tensors))


def check(name: str, found: Traced, operands: Operands) -> ProgramParams:
    """The parameters of a call on operands that are all there."""
    form = found.form
    check_tensors(name, len(operands), **dict(zip(form.names, operands, strict=True)))
    for operand_name, role, operand in zip(form.names, form.roles, operands, strict=True):
        if role is Role.INTEGER:
            check_integer_array(name, operand_name, spec_of(operand))
    return check_operands(name, form, [spec_of(operand) for operand in operands], found.texts)


def declared_function(declaration: Declaration, name: str = "") -> Callable[..., Any]:
    """The function of a declaration on tensors; `name` is another for messages and profilers."""
    name = name or declaration.name

    @constant_to_dynamo
    def name_to_dynamo(present: tuple[bool, ...], *values: Any) -> str:
        found = traced(declaration, present, *values)
        name = f"op_{hashlib.sha256(found.code.encode()).hexdigest()}"
        if not hasattr(_by_name, name):
            setattr(_by_name, name, found)
        return name

    def resolve(operands: Operands, *values: Any) -> tuple[Traced, Operands]:
        """What `declared_entry` is to run."""
        for parameter, operand in zip(declaration.parameters, operands, strict=True):
            if operand is None and not parameter.optional:
                check_tensors(name, 1, **{parameter.name: operand})
        present = tuple([operand is not None for operand in operands])
        if _is_dynamo_compiling():
            return getattr(_by_name, name_to_dynamo(present, *values)), operands
        return traced(declaration, present, *values), operands

    run = declared_entry(name, resolve)
    integer = functools.partial(as_integer, name)
    run.public = function_of(declaration, "torch", None, run, integer, takes_out=True)

    def prepare(*operands: Any, **static: Any) -> ProgramParams:
        """The parameters of a call of the op, checked: for other ways to make it."""
        values = {**declaration.static, **static}.values()
        found, _ = resolve(operands, *values)
        return check(name, found, tuple([operand for operand in operands if operand is not None]))

    run.public.prepare = prepare
    run.public.resolve = resolve
    return run.public  # type: ignore[no-any-return]
