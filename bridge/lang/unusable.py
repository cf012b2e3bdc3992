"""Values that allow no further operation: pairs of values in one array, and forms of results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from bridge.lang import roles
from bridge.lang.errors import refuse
from bridge.lang.refusals import Foreign

if TYPE_CHECKING:
    from bridge.lang.values import Value


class Unusable(Foreign):
    """A value that allows no further operation; `instead` is the advice in its error message."""

    instead = ""
    __hash__ = object.__hash__

    def refused(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(self.instead)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __float__ = refused
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = refused
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __abs__ = __invert__ = refused
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __rand__ = __or__ = __ror__ = refused
    __eq__ = __ne__ = __bool__ = __len__ = __getitem__ = refused  # type: ignore[assignment]
    __array_ufunc__ = refused

    def _instead_of(self, name: str) -> str:
        return self.instead


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
    """A value to be returned in the dtype of an operand."""

    instead = "a result of bl.like can only be returned"

    def __init__(self, value: Value, operand: int) -> None:
        self.value, self.operand = value, operand
