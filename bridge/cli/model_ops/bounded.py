"""Arithmetic on float64 numbers with a bound of the error that bridge's arithmetic may have.

Each operation here stands for one of bridge's, which rounds in float32 (float64 for float64). It
returns the value of the exact operation and a bound of the distance to bridge's result: the bounds
of the operands, carried through, and its own roundings. The bound of a sum is relative to the sum
of the absolute values of its terms, so terms that cancel need no other bound.

A rounding to 16 bits is monotone: a number between v − e and v + e has a result between the results
of both. So a bound shrinks to 0 where both agree, and is one unit of 16 bits elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.entries import rounded
from bridge.cli.frozen_random import Array
from bridge.lang.dtypes import DTYPES
from bridge.lang.trees import CHUNK_COLUMNS, CHUNK_ROWS, LEAF_ROWS
from bridge.ops.product import LEAF

NUMPY = {"float16": np.float16, "float32": np.float32, "float64": np.float64}


@dataclass(frozen=True)
class Bounded:
    """Values, and bounds of the errors of bridge's numbers for them.

    Attributes:
      unit: one rounding's part of the bound, the unit in which errors are told.
    """

    values: Array
    error: Array
    unit: Array

    @property
    def size(self) -> Array:
        """The largest absolute value of bridge's numbers."""
        return np.abs(self.values) + self.error

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def turned(self) -> Bounded:
        """The transposed matrices."""
        return self.as_view(lambda x: x.swapaxes(-1, -2))

    def as_view(self, view: Any) -> Bounded:
        """Applies a function that moves elements."""
        return Bounded(view(self.values), view(self.error), view(self.unit))

    def where(self, kept: Array) -> Bounded:
        """Replaces elements by exact zeros where `kept` is False."""
        return self.as_view(lambda x: np.where(kept, x, 0.0))


def exact(values: Array) -> Bounded:
    values = np.asarray(values, np.float64)
    return Bounded(values, np.zeros(values.shape), np.zeros(values.shape))


class Arithmetic:
    """The operations of a dtype of arithmetic, float32 or float64."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        # Half a unit; in float64 the reference has as many roundings itself.
        self.u = 2.0**-24 if dtype == "float32" else 2.0**-52
        self.least = 2.0**-149 if dtype == "float32" else 2.0**-1074

    def _made(self, values: Any, carried: Any, size: Any, roundings: float) -> Bounded:
        """Returns values with the carried bound and that of roundings of numbers up to `size`."""
        one = self.u * size * 1.001 + self.least
        with np.errstate(invalid="ignore"):
            return Bounded(values, carried + roundings * one, np.maximum(one, carried / 8))

    def product(self, a: Bounded, b: Bounded) -> Bounded:
        return self.sums_of_products(np.matmul, a, b, a.shape[-1])

    def sums_of_products(
        self, function: Callable[[Array, Array], Array], a: Bounded, b: Bounded, terms: int
    ) -> Bounded:
        """Returns a function of a and b, linear in both, whose results are sums of products.

        Leaves of 256 terms are chains, so a term has at most 256 roundings there. Each level of
        the tree above has one more.
        """
        roundings = min(terms, LEAF) + levels(terms, LEAF)
        # |(a + α)(b + β) − ab| ≤ |a||β| + |α|(|b| + |β|)
        carried = function(np.abs(a.values), b.error) + function(a.error, b.size)
        return self._made(
            function(a.values, b.values), carried, function(a.size, b.size), roundings
        )

    def column_sum(self, x: Bounded) -> Bounded:
        """Returns the sum over rows `[..., rows, d]`: chains of 16 rows, and a tree."""
        rows = x.shape[-2]
        roundings = min(rows, LEAF_ROWS) + levels(CHUNK_ROWS, LEAF_ROWS) + levels(rows, CHUNK_ROWS)
        return self._made(x.values.sum(-2), x.error.sum(-2), x.size.sum(-2), roundings)

    def row_sum(self, x: Bounded) -> Bounded:
        """Returns the sum `[..., 1]` of rows: a tree of 10 levels over 1,024, and one above."""
        total, error, size = (each.sum(-1, keepdims=True) for each in (x.values, x.error, x.size))
        return self._made(total, error, size, 10 + levels(x.shape[-1], CHUNK_COLUMNS))

    def add(self, x: Bounded, y: Bounded) -> Bounded:
        values = x.values + y.values
        carried = x.error + y.error
        return self._made(values, carried, np.abs(values) + carried, 1)

    def subtract(self, x: Bounded, y: Bounded) -> Bounded:
        return self.add(x, Bounded(-y.values, y.error, y.unit))

    def times(self, x: Bounded, y: Bounded) -> Bounded:
        carried = np.abs(x.values) * y.error + x.error * y.size
        return self._made(x.values * y.values, carried, x.size * y.size, 1)

    def scaled(self, x: Bounded, factor: float) -> Bounded:
        """Returns x times a number, which is rounded to the arithmetic's dtype."""
        return self._made(x.values * factor, x.error * abs(factor), x.size * abs(factor), 2)

    def over(self, x: Bounded, y: Bounded) -> Bounded:
        """Returns x / y, for y above its bound."""
        values = x.values / y.values
        carried = (x.error + np.abs(values) * y.error) / (np.abs(y.values) - y.error)
        return self._made(values, carried, np.abs(values) + carried, 1)

    def root(self, x: Bounded) -> Bounded:
        values = np.sqrt(x.values)
        below = np.sqrt(np.maximum(x.values - x.error, 0.0))
        carried = values - below
        return self._made(values, carried, values + carried, 1)

    def is_narrower(self, dtype: str) -> bool:
        return DTYPES[dtype].bytes < DTYPES[self.dtype].bytes

    def interval(self, x: Bounded, dtype: str) -> tuple[Array, Array]:
        """Returns the least and the largest number of a dtype that bridge may round x to."""
        low, high = x.values - x.error, x.values + x.error
        if self.is_narrower(dtype):
            return rounded_to(low, dtype), rounded_to(high, dtype)
        return low, high

    def rounded(self, x: Bounded, dtype: str) -> Bounded:
        """Rounds to a dtype; nothing happens if it is not narrower than the arithmetic."""
        if not self.is_narrower(dtype):
            return x
        (low, high), values = self.interval(x, dtype), rounded_to(x.values, dtype)
        return Bounded(values, np.maximum(high - values, values - low), x.unit)


def levels(terms: int, leaf: int) -> int:
    """Returns the levels of a binary tree over leaves of so many terms."""
    return max(math.ceil(terms / leaf) - 1, 0).bit_length()


def rounded_to(values: Array, dtype: str) -> Array:
    """Rounds float64 numbers to a dtype, and returns float64 again."""
    if dtype == "bfloat16":
        import ml_dtypes

        return rounded(values, ml_dtypes.bfloat16).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(values, NUMPY[dtype]).astype(np.float64)


def no_own(_: Any) -> Any:
    """Stands for the frameworks' own function in a form that is judged by its bounds alone.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError("the form is compared with its bounds alone")
