"""What parity, bench and tests know of an op: its operands by role, and its plain form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Operands = Mapping[str, Any]  # arrays of a framework by name, the first of them "x"

# Shapes by role, of rows `[*rows, d]`. A table has one row for each position, the last of `rows`.
_SHAPES: dict[str, Callable[[Shape, int], Shape]] = {
    "full": lambda rows, d: (*rows, d),
    "packed": lambda rows, d: (*rows, 2 * d),
    "row": lambda rows, d: (d,),
    "per row": lambda rows, d: rows,
    "label": lambda rows, d: rows,  # of integers below d
    "mask": lambda rows, d: (*rows, d),
    "sink": lambda rows, d: (*rows, 1),
    "table": lambda rows, d: (*rows[-1:], d),
    # Of a product. A row has a few features to itself, each of which belongs to one column.
    "hidden": lambda rows, d: (*rows, math.prod(rows) * _own(d)),
    "projection": lambda rows, d: (d, math.prod(rows) * _own(d)),
    "offset": lambda rows, d: (d,),
}
ARRAYS = {"full": 1, "packed": 2}  # how many numbers are at a place of a row
# These belong to single rows.
OF_ROWS = ("full", "packed", "per row", "label", "mask", "sink", "hidden")
FACTORS = ("hidden", "projection")
FIXED = ("label", "mask", "table", "offset")  # nobody asks for gradients of these


def _own(d: int) -> int:
    """Features that are a row's own."""
    return min(d, 8)


def shape_of(role: str, space: Shape) -> Shape:
    return _SHAPES[role](space[:-1], space[-1])


def draw(role: str, space: Shape, dtype: Any, random: np.random.Generator) -> np.ndarray:
    """An operand of a role, of normal numbers in a dtype of NumPy where they are floating."""
    shape = shape_of(role, space)
    if role == "label":
        return np.asarray(random.integers(0, space[-1], shape))
    if role == "mask":
        return random.random(shape) < 0.3
    if role in FACTORS:
        return _factor(role, space, random).astype(dtype)
    if role == "offset":  # of such a product, to which it is added without a rounding too
        return (random.integers(-64, 64, shape) / 16).astype(dtype)
    # Without dimensions, arithmetic leaves a number of NumPy and no array.
    return np.asarray(random.standard_normal(shape), dtype)


def _factor(role: str, space: Shape, random: np.random.Generator) -> np.ndarray:
    """One of the factors of a product without roundings, nor are there any in its derivatives.

    All sums of it have one term that is not 0, of powers of two: a framework adds them in its own
    order.
    """
    shape = shape_of(role, space)
    powers = np.exp2(random.integers(0, 2, shape))
    return np.where(is_filled(role, space), powers * random.choice([-1, 1], shape), 0.0)


def is_filled(role: str, space: Shape) -> np.ndarray:
    """Where such a factor is not 0: in both, a feature belongs to one row and one column."""
    shape = shape_of(role, space)
    features = np.arange(shape[-1])
    belongs = features // _own(space[-1]) if role == "hidden" else features % space[-1]
    return (belongs == np.arange(math.prod(shape[:-1]))[:, None]).reshape(shape)


@dataclass(frozen=True)
class Entry:
    """An op with operands.

    Attributes:
      name: of the public function, and what tells the entry from others of it.
      roles: of the operands by name.
      results: roles of what is returned: a tuple, where there are several.
      call: call(ops, operands) with `ops` bridge.torch or bridge.jax.
      in_torch, in_jax: the same of a framework's own operations.
      added: two operands whose sum is rounded to an array's dtype before all else.
      moved: arrays of a row's size that each pass reads or writes at least, where that is not all
        operands, and in the backward pass their gradients too.
    """

    name: str
    roles: dict[str, str]
    results: tuple[str, ...]
    call: Callable[[Any, Operands], Any]
    in_torch: Callable[[Operands], Any]
    in_jax: Callable[[Operands], Any]
    added: tuple[str, ...] = ()
    moved: tuple[float, float] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Operands that it is differentiated by."""
        return tuple(name for name, role in self.roles.items() if role not in FIXED)

    def has_rows(self, operand: str) -> bool:
        """Whether an operand of `[rows, d]`, or a cotangent, has a part for each row."""
        return self.roles.get(operand, "full") in (*OF_ROWS, "table")

    @property
    def arrays_moved(self) -> tuple[float, float]:
        """Arrays of a row's size that each pass reads or writes at least."""
        if self.moved is not None:
            return self.moved
        operands = sum(ARRAYS.get(role, 0) for role in self.roles.values())
        results = sum(ARRAYS.get(role, 0) for role in self.results)
        # Of the summands the sum is read again, and one gradient is that of both.
        again = operands - (1 if self.added else 0)
        return operands + results, 2 * again + results
