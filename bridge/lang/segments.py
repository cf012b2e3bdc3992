"""Declarations with segments: the declaration of the rows that the kernels see.

An op of segments takes rows of several lengths in one array. Its kernels take rows of one length in
which the last columns are hidden (`Segments`), or the position of each row (`Positions`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from bridge.lang import roles
from bridge.lang.dtypes import FLOATING
from bridge.lang.errors import DeclarationError
from bridge.lang.program import COLUMNS
from bridge.lang.returned import ColumnSum, HalvesValue, Typed
from bridge.lang.tracing import Declaration, Parameter
from bridge.lang.values import Builder, Value, shown

# The static argument that every op of `Segments` has besides its own.
LONGEST = "max_seqlen"
# The role that an array has once its segments are rows; other roles have no segments.
_OF_ROWS: dict[Any, Any] = {
    roles.Full: roles.Full,
    roles.Row: roles.Table,
    roles.PerRow: roles.PerRow,
    roles.PerRowOfIntegers: roles.PerRowOfIntegers,
    roles.Table: roles.Table,
    roles.Mask: roles.Mask,
    roles.Integer: roles.Integer,
    roles.Segments: roles.Segments,
}
_OF_POSITIONS = {
    roles.Positions: roles.PerRowOfIntegers,
    roles.PerPosition: roles.Table,
}


def place_of_segments(declaration: Declaration) -> int:
    """Returns the place of the operand that has segments; -1 if none has.

    Raises:
      DeclarationError: if several operands have segments, or one may be absent.
    """
    given = [each for each in declaration.parameters if each.role in roles.OF_SEGMENTS]
    tables = [each.name for each in declaration.parameters if each.role is roles.PerPosition]
    where = f"{declaration.name}: "
    if not given:
        if tables:
            raise DeclarationError(
                f"{where}{tables[0]} has one row for each position, and no operand says the "
                "positions: add an operand with the annotation bridge.Positions"
            )
        return -1
    if len(given) > 1:
        names = ", ".join(each.name for each in given)
        raise DeclarationError(f"{where}{names}: an op has one operand of segments")
    (one,) = given
    if one.optional:
        raise DeclarationError(f"{where}{one.name} may be None: an op of segments needs it")
    if tables and one.role is roles.Segments:
        raise DeclarationError(
            f"{where}{tables[0]} has one row for each position, which bridge.Positions gives: "
            f"{one.name} is a bridge.Segments"
        )
    return declaration.parameters.index(one)


def of_rows(declaration: Declaration, place: int) -> Declaration:
    """Returns the declaration that the kernels run, for segments in the operand at `place`."""
    name = declaration.parameters[place].name
    is_cut = declaration.parameters[place].role is roles.Segments
    if is_cut and declaration.vjp is not None:
        raise DeclarationError(
            f"{declaration.name}: vjp= with bridge.Segments: the rows of segments take the "
            "derived rule"
        )
    if is_cut and LONGEST in declaration.static:
        raise DeclarationError(
            f"{declaration.name}: static parameter {LONGEST}: every op of segments has it; rename "
            "yours"
        )
    parameters = tuple(
        Parameter(each.name, _role(declaration.name, each, is_cut), each.optional)
        for each in declaration.parameters
    )
    function = _cut(declaration.function, name) if is_cut else declaration.function
    return dataclasses.replace(declaration, function=function, parameters=parameters)


def with_longest(declaration: Declaration) -> Declaration:
    """Returns the declaration with the static argument `max_seqlen`, for its public functions."""

    @functools.wraps(declaration.function)
    def function(*arguments: Any, **keywords: Any) -> Any:
        return declaration.function(*arguments, **keywords)

    signature = inspect.signature(declaration.function)
    longest = inspect.Parameter(LONGEST, inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [*signature.parameters.values(), longest]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    static = types.MappingProxyType({**declaration.static, LONGEST: None})
    return dataclasses.replace(declaration, function=function, static=static)


def _role(name: str, parameter: Parameter, is_cut: bool) -> Any:
    if not is_cut:
        return _OF_POSITIONS.get(parameter.role, parameter.role)
    if parameter.role not in _OF_ROWS:
        known = ", ".join(role.__name__ for role in _OF_ROWS if role is not roles.PerRowOfIntegers)
        raise DeclarationError(
            f"{name}: operand {parameter.name} is a {parameter.role.__name__}, which has no "
            f"segments: beside bridge.Segments an operand is one of {known}"
        )
    return _OF_ROWS[parameter.role]


def _cut(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns the function on rows of which only the columns of a segment count.

    Args:
      name: the parameter with the length of each segment, an integer for each row.
    """

    @functools.wraps(function)
    def cut(*arguments: Any, **keywords: Any) -> Any:
        bound = inspect.signature(function).bind(*arguments, **keywords)
        length: Value = bound.arguments[name]
        builder = length.builder
        builder.end_rows_at(length)
        for key, value in bound.arguments.items():
            # Hidden columns hold zeros, so no operation has to replace what they hold.
            if isinstance(value, Value) and value.axes & COLUMNS:
                bound.arguments[key] = builder.cut(value)
        returned = function(*bound.args, **bound.kwargs)
        if isinstance(returned, tuple | list):
            return tuple(_shown(function.__name__, builder, each) for each in returned)
        return _shown(function.__name__, builder, returned)

    return cut


def _shown(name: str, builder: Builder, result: Any) -> Any:
    """Returns a result with 0 in its hidden columns, so that nothing flows back from there."""
    if isinstance(result, ColumnSum):
        raise DeclarationError(
            f"{name} returns a column_sum: segments have no columns in common to be summed"
        )
    if isinstance(result, HalvesValue):
        raise DeclarationError(
            f"{name} returns halves or pairs: a segment has one number for each column"
        )
    if isinstance(result, Typed):
        if result.dtype and result.dtype not in FLOATING:
            raise DeclarationError(
                f"{name} returns {result.dtype}: results of segments are floating"
            )
        return Typed(_shown(name, builder, result.value), result.operand, result.dtype)
    if isinstance(result, Value) and result.builder is builder and result.axes & COLUMNS:
        return shown(builder.cut(result), 0.0)
    return result
