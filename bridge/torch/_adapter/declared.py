"""Runs declared ops on tensors."""

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
from bridge.ops.form import check_operands
from bridge.ops.integers import check_integer_array
from bridge.ops.traced import Traced, function_of, traced
from bridge.torch._adapter.autograd import call, native_kernel, plan_of
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.destination import write_at_once, write_into
from bridge.torch._adapter.entry import MOST_KINDS, fixed
from bridge.torch._adapter.kernels import dtypes_of, spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.integers import as_integer

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# Traced declarations by name, for dynamo. Dynamo must not trace the tracing of a declaration, and a
# function that it does not trace can give it only a number or a text. It reads attributes as they
# are now; a dict it would see as at the first op of a graph, without the entry of a second op.
_by_name = types.SimpleNamespace()

# Types of static arguments that cannot change.
_FIXED_TYPES = frozenset({float, int, bool, str, type(None)})

Operands = tuple[Any, ...]


def declared_entry(name: str, resolve: Callable[..., tuple[Traced, Operands]]) -> Any:
    """Returns run(operands, out, *values): the result of a declared op, in `out` if given.

    Absent operands are None. As for `entry`, the public function must call `run` directly,
    `run.public` is the function if its module does not have it by name, and each kind of call is
    checked once.
    run.recorded(operands, *values) serves callers that record a call in another way.

    Args:
      name: the public function's name, for messages and profilers.
      resolve: resolve(operands, *values) raises, or returns the traced declaration that a call
        with these static arguments runs, and its operands.
    """
    # The key is the identity of the values, because 0.0 == -0.0 and 1 == True. An entry holds the
    # values themselves, so that no other object gets their ids; their kernel; and a flag: the op
    # returns a tuple.
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
                    except ValueError:  # the checks below raise it in the public function's words
                        pass
                elif not is_tuple and write_at_once(name, kernel, operands, out):
                    return out
        if is_overridden(given := (*operands, out)):
            return hand_over(given, depth=2, function=getattr(run, "public", None))
        found, used = resolve(operands, *map(fixed, values))
        present = tuple([operand for operand in used if operand is not None])
        if not torch.compiler.is_compiling():
            tried = kernel
            # The kind of result may depend on which operands are present; the key lacks that.
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
                except ValueError:  # wrong shapes: the checks below raise a better message
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
        """Returns the plan of a known call that autograd records; None for any other call."""
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
    """True if the tensors are the operands without the absent ones."""
    present = [operand for operand in operands if operand is not None]
    return len(present) == len(tensors) and all(map(operator.is_, present, tensors))


def check(name: str, found: Traced, operands: Operands) -> ProgramParams:
    """Checks the operands, all present, and returns the parameters of the call."""
    form = found.form
    check_tensors(name, len(operands), **dict(zip(form.names, operands, strict=True)))
    for operand_name, role, operand in zip(form.names, form.roles, operands, strict=True):
        if role is Role.INTEGER:
            check_integer_array(name, operand_name, spec_of(operand))
    return check_operands(name, form, [spec_of(operand) for operand in operands], found.texts)


def declared_function(declaration: Declaration, name: str = "") -> Callable[..., Any]:
    """Returns a declaration's function of tensors; `name` replaces its name in messages."""
    name = name or declaration.name

    @constant_to_dynamo
    def name_to_dynamo(present: tuple[bool, ...], *values: Any) -> str:
        found = traced(declaration, present, *values)
        name = f"op_{hashlib.sha256(found.code.encode()).hexdigest()}"
        if not hasattr(_by_name, name):
            setattr(_by_name, name, found)
        return name

    def resolve(operands: Operands, *values: Any) -> tuple[Traced, Operands]:
        """Returns the traced declaration that `declared_entry` runs, and the operands."""
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
        """Returns the checked parameters of a call, for callers that run it in another way."""
        values = {**declaration.static, **static}.values()
        found, _ = resolve(operands, *values)
        return check(name, found, tuple([operand for operand in operands if operand is not None]))

    run.public.prepare = prepare
    run.public.resolve = resolve
    return run.public  # type: ignore[no-any-return]
