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
from bridge.lang.tracing import HasDeclaration
from bridge.ops import PROGRAM, ProgramParams, Role
from bridge.ops.form import as_per_row, check_operands
from bridge.ops.integers import check_integer_array
from bridge.ops.traced import Traced, function_of, traced
from bridge.torch._adapter.autograd import call, native_kernel, plan_of
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.destination import (
    as_tuple,
    call_overwritten,
    pull_over,
    write_at_once,
    write_into,
)
from bridge.torch._adapter.entry import MOST_KINDS, fixed
from bridge.torch._adapter.integers import as_integer
from bridge.torch._adapter.kernels import dtypes_of, spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# Traced declarations by name, for dynamo. Dynamo must not trace the tracing of a declaration, and a
# function that it does not trace can give it only a number or a text. It reads attributes as they
# are now; a dict it would see as at the first op of a graph, without the entry of a second op.
_by_name = types.SimpleNamespace()

# Types of static arguments that cannot change.
_FIXED_TYPES = frozenset({float, int, bool, str, type(None)})

Operands = tuple[Any, ...]


class DeclaredEntry:
    """The path from a public function into a declared op, which checks each kind of call once.

    Attributes:
      name: the public function's name, for messages and profilers.
      public: the public function, if its module does not have it by name.
    """

    public: Callable[..., Any] | None = None

    def __init__(self, op: HasDeclaration, name: str = "") -> None:
        self.declaration = declaration = op.declaration
        self.name = name or declaration.name
        self._takes_columns = getattr(op, "takes_columns", False)
        # The key is the identity of the values, because 0.0 == -0.0 and 1 == True. An entry holds
        # the values themselves, so that no other object gets their ids; their kernel; and a flag:
        # the op returns a tuple.
        self._known: dict[tuple[int, ...], tuple[Operands, Any, bool]] = {}
        self._kernels: dict[Traced, Any] = {}

        @constant_to_dynamo
        def name_to_dynamo(present: tuple[bool, ...], *values: Any) -> str:
            found = traced(declaration, present, *values)
            name = f"op_{hashlib.sha256(found.code.encode()).hexdigest()}"
            if not hasattr(_by_name, name):
                setattr(_by_name, name, found)
            return name

        self._name_to_dynamo = name_to_dynamo

    def run(self, operands: Operands, out: Any = None, *values: Any) -> Any:
        """Returns the result of the op, in `out` if given; absent operands are None.

        The public function must call it directly: `__torch_function__` reads the caller's frame.
        """
        kernel, is_tuple = None, False
        if not _is_dynamo_compiling():
            entered = self._known.get(tuple(map(id, values)))
            if entered is not None:
                _, kernel, is_tuple = entered
                if out is None:
                    try:
                        if (results := kernel(*operands)) is not None:
                            return results if is_tuple else results[0]
                    except ValueError:  # the checks below raise it in the public function's words
                        pass
                elif is_tuple is isinstance(out, tuple) and write_at_once(
                    self.name, kernel, operands, out
                ):
                    return out
        if is_overridden(given := (*operands, *as_tuple(out))):
            return hand_over(given, depth=2, function=self.public)
        if (composed := self.composed(operands, out, *values)) is not None:
            return composed
        found, used = self.resolve(operands, *map(fixed, values))
        present = tuple([operand for operand in used if operand is not None])
        if self._takes_columns and all([isinstance(each, torch.Tensor) for each in present]):
            present = as_per_row(found.form, present)
        if not torch.compiler.is_compiling():
            tried = kernel
            # The kind of result may depend on which operands are present; the key lacks that.
            is_other = tried is not None and is_tuple != found.returns_several
            if is_other or not _are_the_present(present, operands):
                kernel, operands = self._kernel_of(found), present
            elif kernel is None:
                kernel = self._kernel_of(found)
                if _FIXED_TYPES.issuperset(map(type, values)):
                    if len(self._known) == MOST_KINDS:
                        self._known.clear()
                    self._known[tuple(map(id, values))] = values, kernel, found.returns_several
            if out is None and kernel is not tried:
                try:
                    if (results := kernel(*operands)) is not None:
                        return results if found.returns_several else results[0]
                except ValueError:  # wrong shapes: the checks below raise a better message
                    pass
        if out is not None and found.returns_several != isinstance(out, tuple):
            expected = "a tuple of tensors" if found.returns_several else "a tensor"
            returned = "a tuple" if found.returns_several else "one result"
            raise TypeError(
                f"{self.name}: out has type {type(out).__name__}, expected {expected}: the op "
                f"returns {returned}"
            )
        params = _checked(self.name, found, present)
        if not torch.compiler.is_compiling():
            plan = plan_of(PROGRAM, params, dtypes_of(present), self.name)
            plan.add_to(kernel, tuple([operand is not None for operand in operands]))
        if out is not None:
            return write_into(self.name, PROGRAM, present, params, out)
        results = call(PROGRAM, present, params, self.name)
        return results if found.returns_several else results[0]

    def resolve(self, operands: Operands, *values: Any) -> tuple[Traced, Operands]:
        """Returns the traced declaration that a call runs, and its operands.

        Raises:
          TypeError, ValueError: an operand is missing, or a static argument is not allowed.
        """
        values = self.declaration.checked(self.name, operands, values)
        for parameter, operand in zip(self.declaration.parameters, operands, strict=True):
            if operand is None and not parameter.optional:
                check_tensors(self.name, 1, **{parameter.name: operand})
        present = tuple([operand is not None for operand in operands])
        if _is_dynamo_compiling():
            return getattr(_by_name, self._name_to_dynamo(present, *values)), operands
        return traced(self.declaration, present, *values), operands

    def composed(self, operands: Operands, out: Any, *values: Any) -> Any:
        """Returns the result of a call that takes several ops; None for any other call."""
        return None

    def prepare(self, *operands: Any, **static: Any) -> ProgramParams:
        """Returns the checked parameters of a call, for callers that run it in another way."""
        return self.params(operands, *{**self.declaration.static, **static}.values())

    def params(self, operands: Operands, *values: Any) -> ProgramParams:
        """Works as `prepare`, with absent operands and the static arguments in order."""
        found, used = self.resolve(operands, *values)
        return _checked(self.name, found, tuple([each for each in used if each is not None]))

    def overwritten(self, operands: Operands, *values: Any) -> Any:
        """Returns the result; the backward pass may write the first gradient over its operand."""
        found, operands = self.resolve(operands, *values)
        params = _checked(self.name, found, operands)
        results = call_overwritten(self.name, PROGRAM, operands, params)
        return results if found.returns_several else results[0]

    def with_gradient(self, operands: Operands, g: Any, *values: Any) -> tuple[Any, Any]:
        """Returns the results as a tuple, and the gradient of the first operand, written over it.

        Autograd records nothing.

        Args:
          g: the cotangent of the first result, or None for no gradient.
        """
        found, operands = self.resolve(operands, *values)
        params = _checked(self.name, found, operands)
        plan = plan_of(PROGRAM, params, dtypes_of(operands), self.name)
        count = len(found.program.results)
        if g is None:
            return plan.run_below(operands)[:count], None
        results = plan.saving.run_below(operands)
        return results[:count], pull_over(plan, operands, results, (g, *[None] * (count - 1)))

    def recorded(self, operands: Operands, *values: Any) -> Any:
        """Returns the plan of a known call that autograd records; None for any other call."""
        if _is_dynamo_compiling():
            return None
        entered = self._known.get(tuple(map(id, values)))
        return None if entered is None else entered[1].recorded(*operands)

    def _kernel_of(self, found: Traced) -> Any:
        if (kernel := self._kernels.get(found)) is None:
            if len(self._kernels) == MOST_KINDS:
                self._kernels.clear()
            kernel = self._kernels[found] = native_kernel(PROGRAM)
        return kernel


def _are_the_present(tensors: Operands, operands: Operands) -> bool:
    """True if the tensors are the operands without the absent ones."""
    present = [operand for operand in operands if operand is not None]
    return len(present) == len(tensors) and all(map(operator.is_, present, tensors))


def _checked(name: str, found: Traced, operands: Operands) -> ProgramParams:
    """Checks the operands, all present, and returns the parameters of the call."""
    form = found.form
    check_tensors(name, len(operands), **dict(zip(form.names, operands, strict=True)))
    for operand_name, role, operand in zip(form.names, form.roles, operands, strict=True):
        if role is Role.INTEGER:
            check_integer_array(name, operand_name, spec_of(operand))
    return check_operands(name, form, [spec_of(operand) for operand in operands], found.texts)


class DeclaredFunction(DeclaredEntry):
    """The function of a declared op on tensors, `public`; `name` replaces its name in messages."""

    public: Callable[..., Any]

    def __init__(self, op: HasDeclaration, name: str = "") -> None:
        super().__init__(op, name)
        integer = functools.partial(as_integer, self.name)
        self.public = function_of(
            self.declaration, "torch", None, self.run, integer, takes_out=True
        )
