"""Values that can only be taken apart or returned, and the functions that make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bridge.lang import roles
from bridge.lang.dtypes import FLOATING, OF_8_BITS
from bridge.lang.errors import refuse
from bridge.lang.refusals import Unusable
from bridge.lang.values import Value, builder_of, shown


class HalvesValue(Unusable):
    """Two Fulls in one array, an operand or a result: `first, second = x`."""

    instead = "an operand of two halves: take it apart first, `first, second = x`"

    def __init__(
        self, first: Value, second: Value, *, role: type[roles.Annotation] = roles.Halves
    ) -> None:
        self.first, self.second, self.role = first, second, role

    def __iter__(self) -> Iterator[Value]:
        return iter((self.first, self.second))


class ColumnSum(Unusable):
    """The sum of a value over the rows, which can only be returned."""

    instead = (
        "a column sum can only be returned: compute with it in another op, which takes it as a Row"
    )

    def __init__(self, value: Value) -> None:
        self.value = value


class Typed(Unusable):
    """A value to be returned in the dtype of an operand, or in a named dtype."""

    instead = "a result of bl.like or bl.stored can only be returned"

    def __init__(self, value: Value, operand: int = -1, dtype: str = "") -> None:
        self.value, self.operand, self.dtype = value, operand, dtype


def check_dtype(function: str, dtype: str) -> None:
    known = (*FLOATING, *OF_8_BITS)
    if dtype not in known:
        raise refuse(f"{function} has no dtype {dtype!r}: one of {', '.join(map(repr, known))}")


def like(x: Any, operand: Value) -> Typed:
    """x, to be returned in the dtype of one operand instead of the promoted dtype of all."""
    builder = builder_of(x, operand)
    node = builder.nodes[operand.number] if isinstance(operand, Value) else None
    if node is None or node.operation != "operand" or node.dtype != "float":
        raise refuse("the second argument of like is no floating operand")
    return Typed(builder.floating(shown(builder.value(x), 0.0)), node.static[0])


def stored(x: Any, dtype: str) -> Typed:
    """x, to be returned in a floating or 8-bit dtype, whatever the dtypes of the operands.

    It is rounded to nearest, ties to even. In an 8-bit dtype a number beyond the largest one
    becomes that; NaN stays NaN, or becomes 0 as int8; and the result is a constant to derivatives.
    """
    check_dtype("stored", dtype)
    builder = builder_of(x)
    return Typed(builder.floating(shown(builder.value(x), 0.0)), dtype=dtype)


def column_sum(x: Any) -> ColumnSum:
    """The sum over the rows in the tree of docs/numerics.md, a Row. It can only be returned."""
    if isinstance(x, Unusable):
        x.refused()
    builder = builder_of(x)
    return ColumnSum(builder.floating(shown(builder.value(x), -0.0)))


def halves(first: Any, second: Any) -> HalvesValue:
    """Two values as the halves of one array `[*rows, 2d]`, to be returned."""
    return _joined(first, second, roles.Halves)


def pairs(first: Any, second: Any) -> HalvesValue:
    """Two values as the even and the odd columns of one array `[*rows, 2d]`, to be returned."""
    return _joined(first, second, roles.Pairs)


def _joined(first: Any, second: Any, role: type[roles.Annotation]) -> HalvesValue:
    builder = builder_of(first, second)
    parts = (builder.floating(shown(builder.value(each), 0.0)) for each in (first, second))
    return HalvesValue(*parts, role=role)
