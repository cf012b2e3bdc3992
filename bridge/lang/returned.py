"""Values that can only be taken apart or returned: two in one array, and forms of results."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.lang import roles
from bridge.lang.refusals import Unusable
from bridge.lang.values import Value


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
