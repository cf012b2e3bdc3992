"""Roles of the operands of a declared op: the annotations of its parameters.

A call works in a row space of shape `[*rows, d]`. Each class says how an array lies in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

_Kind = TypeVar("_Kind")


class _Arithmetic:
    """The operators of an operand, for type checkers: a declaration runs on values with these."""

    if TYPE_CHECKING:

        def _with(self, other: Any) -> Any: ...
        def _alone(self) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _with
        __truediv__ = __rtruediv__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = _with
        __and__ = __rand__ = __or__ = __ror__ = _with
        __neg__ = __abs__ = __invert__ = _alone


class Annotation(_Arithmetic):
    """Base class of all roles. A role is used as an annotation and never instantiated."""

    integer = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"bridge.{cls.__name__} is an annotation: write `x: bridge.{cls.__name__}` among the "
            "parameters of a declaration"
        )


class Full(Annotation):
    """A floating number at every place: `[*rows, d]`."""


class Row(Annotation):
    """One floating number for each column, the same for all rows: `[d]`."""


class PerRow(Annotation, Generic[_Kind]):
    """One floating number for each row: `[*rows]`. `PerRow[int]` is one integer for each row."""

    def __class_getitem__(cls, kind: type) -> type[PerRow]:
        if kind is float:
            return PerRow
        if kind is int:
            return PerRowOfIntegers
        raise TypeError(f"bridge.PerRow[{kind!r}]: expected PerRow[float] or PerRow[int]")


class PerRowOfIntegers(PerRow):
    """One integer for each row: `[*rows]`, of any integer dtype."""

    integer = True


class PerBlock(Annotation):
    """One number for each block of n columns: `[*rows, d / n]`, as `PerBlock[32]`.

    n is 16, 32, 64 or 128. The dtype is a floating or an 8-bit one; 8 bits have no gradient.
    """

    block = 0

    def __class_getitem__(cls, n: int) -> type[PerBlock]:
        if n not in OF_BLOCKS:
            raise TypeError(f"bridge.PerBlock[{n!r}]: n is one of {', '.join(map(str, BLOCKS))}")
        return OF_BLOCKS[n]


class PerBlock16(PerBlock):
    """One number for each block of 16 columns."""

    block = 16


class PerBlock32(PerBlock):
    """One number for each block of 32 columns."""

    block = 32


class PerBlock64(PerBlock):
    """One number for each block of 64 columns."""

    block = 64


class PerBlock128(PerBlock):
    """One number for each block of 128 columns."""

    block = 128


class Table(Annotation):
    """Floating numbers that broadcast against the space from the right, read without a copy."""


class Mask(Annotation):
    """Booleans that broadcast against the space from the right, read without a copy."""


class Quantized(Annotation):
    """A number of an 8-bit dtype at every place, without a gradient: `[*rows, d]`."""


class Scale(Annotation):
    """One number for each row, of a floating or an 8-bit dtype: `[*rows]`."""


class Halves(Annotation):
    """An array `[*rows, 2d]` seen as two Fulls: `first, second = x`."""


class Pairs(Annotation):
    """An array `[*rows, 2d]` seen as two Fulls that alternate: the even and the odd columns."""


class Integer(Annotation):
    """One 64-bit integer for the whole call, such as a seed, known only when the call runs."""

    integer = True


class Segments(Annotation):
    """The ends of segments, `[n + 1]` integers from 0 to d: each segment of the columns is a row.

    A `Full` is then `[*rows, d]` with n segments in its last dimension, and a `PerRow` is
    `[*rows, n]`.
    """

    integer = True


class Positions(Annotation):
    """The ends of segments of the first dimension: one integer for each row, its position.

    They are `[n + 1]` integers from 0 to the size of the first dimension. A position counts from 0
    in each segment.
    """

    integer = True


class PerPosition(Annotation):
    """A table `[positions, d]` beside `Positions`: a row sees the table's row of its position."""


OF_BLOCKS: dict[int, type[PerBlock]] = {
    role.block: role for role in (PerBlock16, PerBlock32, PerBlock64, PerBlock128)
}
BLOCKS = tuple(OF_BLOCKS)  # the numbers of columns that a block may have
DOUBLE = (Halves, Pairs)  # two Fulls in one array
# Roles with a number at every place: the first operand's shape gives the space.
SPACIOUS = (Full, Quantized, *DOUBLE)
# The names of all roles, in the order of their numbers in the bytecode (cpp/program/program.h).
NAMES: dict[Any, str] = {
    Full: "full",
    Row: "row",
    PerRow: "per_row",
    PerRowOfIntegers: "label",
    Table: "table",
    Mask: "mask",
    Halves: "halves",
    Integer: "integer",
    Pairs: "pairs",
    **{role: f"per_block_{n}" for n, role in OF_BLOCKS.items()},
}
NUMBERS = {name: number for number, name in enumerate(NAMES.values())}
# The kernels see the shape of an array and its dtype, which tell these roles from no other.
# They see segments as a label, the length of each row.
NAMES |= {Quantized: "full", Scale: "per_row", Segments: "label"}
ANNOTATIONS = tuple(NAMES)
OF_SEGMENTS = (Segments, Positions)
OF_TOKENS = (Positions, PerPosition)  # kernels see a PerRow[int] and a Table instead
