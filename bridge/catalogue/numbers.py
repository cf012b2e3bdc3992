"""Operands of one number, or of a few, for the whole call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, shape_of
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays


@declared()
def spread(zeros: bl.Full, number: bl.Table):
    return bl.where(zeros < 0.0, zeros, number)


@declared()
def apart(numbers: bl.Full, *, count: int = 3):
    """Returns each number: -0.0 + number has all bits of the number."""
    places = [bl.column() == i for i in range(count)]
    return tuple(bl.sum(bl.where(place, numbers, -0.0)) for place in places)


class Numbers:
    """Spreads a number over the columns, as a `Row` of an op.

    The gradient of a number is then a sum over the rows in the kernel of the op, and a sum along
    the row of these sums in the tree of rows.
    """

    def __init__(self, arrays: Arrays, name: str) -> None:
        self.arrays, self.name = arrays, name
        self.spread, self.apart = arrays.entry(spread, name), arrays.entry(apart, name)

    def dtypes(self, **operands: Any) -> tuple[str, str]:
        """Returns the dtype of the arithmetic and that of the result; absent operands are None.

        Raises:
          TypeError: for an operand of another dtype.
        """
        found = []
        for name, operand in operands.items():
            if operand is None:
                continue
            found.append(self.arrays.dtype_of(operand))
            if found[-1] not in FLOATING:
                raise TypeError(
                    f"{self.name}: {name} has dtype {found[-1]}, expected one of "
                    f"{', '.join(FLOATING)}"
                )
        return promote(*found, "float32"), promote(*found)

    def check(self, name: str, number: Any, count: int = 1) -> None:
        """Raises ValueError unless an operand has `count` numbers."""
        shape = shape_of(number)
        if shape != (count,) and (shape or count > 1):
            expected = "[] or [1]" if count == 1 else f"[{count}]"
            raise ValueError(f"{self.name}: {name} has shape {list(shape)}, expected {expected}")

    def rows(self, x: Any, dtype: str, numbers: Any, count: int = 1) -> Sequence[Any]:
        """Returns a row of x's columns for each number; one number may have no dimension."""
        zeros = self.arrays.zeros(x, shape_of(x)[-1:], dtype)
        # A framework's own slices would not do: their gradient may change the bits of a NaN.
        parts = [numbers] if count == 1 else self.apart.run((numbers,), None, count)
        return [self.spread.run((zeros, part.reshape(1)), None) for part in parts]
