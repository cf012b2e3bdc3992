"""Declared ops as functions of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax

from bridge.jax._adapter.arguments import (
    as_array_like,
    as_arrays,
    compiled_for,
    refuse_narrowed,
    refuse_traced,
)
from bridge.jax._adapter.avals import spec_of
from bridge.jax._adapter.integers import as_integer, words
from bridge.jax._adapter.primitive import call
from bridge.lang import roles
from bridge.lang.dtypes import FLOATING, promote
from bridge.lang.tracing import HasDeclaration
from bridge.ops import PROGRAM
from bridge.ops.form import as_per_row, check_operands, dtypes_of_role
from bridge.ops.traced import Traced, function_of, traced

# Types of arrays that are passed on unchanged: isinstance with jax.Array costs as much as a tiny
# call.
_array_types: set[type] = set()
# Types of static arguments that cannot change, so that they are checked once.
_FIXED_TYPES = frozenset({float, int, bool, str, type(None)})
# The number of combinations of static arguments and present operands that an op caches.
_MOST_KINDS = 256


class DeclaredFunction:
    """The function of a declared op on arrays.

    Attributes:
      name: the name in messages and in JAX's programs.
      public: the function, with the declaration's signature.
    """

    def __init__(self, op: HasDeclaration, name: str = "") -> None:
        self.declaration = declaration = op.declaration
        self.name = name or declaration.name
        self._takes_columns = getattr(op, "takes_columns", False)
        self._optional = tuple(parameter.optional for parameter in declaration.parameters)
        # The key has the identities of static arguments, because hashing them costs more than a
        # tiny call. The entry keeps the arguments alive, so that no other object gets the same
        # identity.
        self._known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.public = function_of(declaration, "jax", None, self.run)

    def run(self, operands: tuple[Any, ...], _: None, *values: Any) -> Any:
        """Returns the result of the op; absent operands are None."""
        absent = tuple([operand is None for operand in operands])
        entered = self._known.get((absent, *map(id, values)))
        if entered is None:
            entered = self._entered(operands, absent, values)
        found, present, integers, compiled, _ = entered
        if False in present:
            operands = tuple(itertools.compress(operands, present))
        is_plain = _array_types.issuperset(map(type, operands))
        for place in integers:  # raw keys have a dimension
            is_plain = is_plain and not operands[place].aval.shape
        if not is_plain:
            operands = self._arguments(found, operands)
        return compiled(*operands)

    def on_axis(self, operands: tuple[Any, ...], *values: Any, axis: Any) -> Any:
        """Runs the op inside `shard_map`, on columns that are split over a mesh axis."""
        found = self._traced(operands, [True] * len(operands), values)
        return _compiled(self.name, found, axis, self._takes_columns)(
            *self._arguments(found, operands)
        )

    def _entered(
        self, operands: tuple[Any, ...], absent: tuple[bool, ...], values: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        pairs = zip(absent, self._optional, strict=True)
        present = tuple([not (is_absent and may_be) for is_absent, may_be in pairs])
        found = self._traced(operands, present, values)
        among = enumerate(found.program.operands)
        integers = tuple([place for place, each in among if each.role is roles.Integer])
        compiled = _compiled(self.name, found, None, self._takes_columns)
        entered = found, present, integers, compiled, values
        if not self.declaration.checks or _FIXED_TYPES.issuperset(map(type, values)):
            if len(self._known) == _MOST_KINDS:
                self._known.clear()
            self._known[absent, *map(id, values)] = entered
        return entered

    def _traced(
        self, operands: tuple[Any, ...], present: Sequence[bool], values: tuple[Any, ...]
    ) -> Traced:
        for (name, default), value in zip(self.declaration.static.items(), values, strict=True):
            # The check of a word names the words.
            if name in self.declaration.checks and not isinstance(default, str):
                refuse_traced(self.name, name, value)
        checked = self.declaration.checked(self.name, operands, values)
        return traced(self.declaration, tuple(present), *checked)

    def _arguments(self, found: Traced, operands: Sequence[Any]) -> tuple[Any, ...]:
        checked = []
        for operand, value in zip(found.program.operands, operands, strict=True):
            if operand.role is roles.Integer:
                checked.append(as_integer(self.name, operand.name, value))
                continue
            dtypes = dtypes_of_role(operand.role)
            expected = f"one of {', '.join(dtypes)}"
            checked.append(as_array_like(self.name, operand.name, value, dtypes, expected))
            refuse_narrowed(self.name, operand.name, value)
            if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
                _array_types.add(type(value))
        return tuple(checked)


@compiled_for
def _compiled(name: str, found: Traced, axis: str | None, takes_columns: bool) -> Any:
    integers = sum(operand.role is roles.Integer for operand in found.program.operands)

    def declared(*operands: Any) -> Any:
        arrays = []
        for operand, value in zip(found.program.operands, operands, strict=True):
            if operand.role is roles.Integer:
                arrays.append(words(name, operand.name, value, is_alone=integers == 1))
            else:
                arrays.extend(as_arrays(value))
        arrays = _settled(arrays)
        if takes_columns:
            arrays = [*as_per_row(found.form, tuple(arrays))]
        params = check_operands(name, found.form, [spec_of(array) for array in arrays], found.texts)
        results = call(PROGRAM, arrays, params, axis)
        return results if found.returns_several else results[0]

    declared.__name__ = name
    return declared


def _settled(arrays: list[Any]) -> list[Any]:
    """Casts weakly typed floating arrays to the dtype of the others, as in jax.numpy."""
    floating = [array for array in arrays if array.dtype.name in FLOATING]
    strong = [array.dtype.name for array in floating if not array.weak_type]
    if not strong:
        return arrays
    dtype = promote(*strong)
    return [
        array.astype(dtype) if array.dtype.name in FLOATING and array.weak_type else array
        for array in arrays
    ]
