"""The functions of declarations that combine the numbers of a row, or of a block of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from bridge.lang.applied import apply, column, columns, stop_gradient, where
from bridge.lang.errors import refuse
from bridge.lang.roles import BLOCKS
from bridge.lang.values import Value, Visible, builder_of

__all__ = [
    "argmax",
    "argmin",
    "block_max",
    "block_sum",
    "log_softmax",
    "logsumexp",
    "logsumexp_parts",
    "max",
    "mean",
    "min",
    "sum",
]

_T = TypeVar("_T")


def _along_the_row(function: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Wraps a row reduction: an axis raises an error that says what to write instead."""

    @functools.wraps(function)
    def along(x: Any, *others: Any, **keywords: Any) -> _T:
        if others or keywords:
            raise refuse(
                f"{function.__name__} goes along the row and takes no axis: write "
                f"bl.{function.__name__}(x), which broadcasts as it is; bl.maximum(x, y) is the "
                "larger one of two values, bl.column_sum(x) a sum over the rows"
            )
        return function(x)

    return along


@_along_the_row
def sum(x: Any) -> Value:
    """The sum along the row, in the tree of docs/numerics.md; −0.0 for an empty row."""
    return apply("sum", x)


@_along_the_row
def mean(x: Any) -> Value:
    """The mean along the row: the sum divided by the number of columns, or of the visible ones."""
    if isinstance(x, Visible) and not x.builder.is_within(x.extent):
        return sum(x) / sum(where(x.extent, 1.0, 0.0))
    return sum(x) / columns()


@_along_the_row
def max(x: Any) -> Value:
    """The largest number of the row, NaN if one is NaN; −∞ for an empty row.

    The gradient goes to one place, the first of the largest numbers.
    """
    return apply("max", x)


def block_max(x: Any, n: int) -> Value:
    """The largest number of each block of n columns, NaN if one is NaN; n is 16, 32, 64 or 128.

    n divides the columns of a row. The number stands in each column of its block; a result of such
    numbers is a `PerBlock[n]`. The gradient goes to the first of the largest numbers.
    """
    return apply("block_max", x, static=_block("block_max", n))


def block_sum(x: Any, n: int) -> Value:
    """The sum of each block of n columns, with the bits of `sum` of a row of n columns.

    n is 16, 32, 64 or 128 and divides the columns of a row; see `block_max` for the result.
    """
    return apply("block_sum", x, static=_block("block_sum", n))


def block_argmax(x: Any, n: int) -> Value:
    """The column of each block's largest number, the first on ties: for derivatives."""
    return apply("block_argmax", x, static=n)


def in_first_columns(x: Value, n: int) -> Value:
    """x in the first column of each block of n columns, -0.0 in the others."""
    return where(column() == block_argmax(0.0, n), x, -0.0)


def _block(function: str, n: Any) -> int:
    if builder_of().length is not None:
        raise refuse(f"{function} needs rows of a multiple of n columns, and segments have any")
    if isinstance(n, bool) or n not in BLOCKS:
        expected = ", ".join(map(str, BLOCKS))
        raise refuse(f"{function} has no blocks of {n!r} columns: one of {expected}")
    return int(n)


@_along_the_row
def min(x: Any) -> Value:
    """The smallest number of the row, NaN if one is NaN; ∞ for an empty row.

    The gradient goes to one place, the first of the smallest numbers.
    """
    return -max(-builder_of(x).value(x))


@_along_the_row
def argmin(x: Any) -> Value:
    """The column of the row's smallest number, an integer: the first on ties, or the first NaN."""
    return argmax(-builder_of(x).value(x))


@_along_the_row
def argmax(x: Any) -> Value:
    """The column of the row's largest number, an integer: the first on ties, or the first NaN."""
    return apply("argmax", x)


@_along_the_row
def logsumexp(x: Any) -> Value:
    """log Σ e^x along the row, without overflow; −∞ for an empty row and for a row of −∞."""
    # Derivatives read the two parts, which have digits that their rounded sum lacks.
    return apply("logsumexp", x, *logsumexp_parts(x))


@_along_the_row
def logsumexp_parts(x: Any) -> tuple[Value, Value]:
    """Two numbers for each row with the sum `logsumexp(x)`: max x and log Σ e^(x − max x).

    y − logsumexp(x) loses digits if the sum is large; (y − first) − second keeps them. The
    derivative of the second part is the one of the sum, and the first part counts as a constant.
    Where max x is infinite, the second part is 0.
    """
    largest = stop_gradient(max(x))
    return largest, apply("logsumexp_rest", x, largest)


def beyond_largest(largest: Value, rest: Value) -> Value:
    """The second part of `logsumexp_parts`; NaN in a row of −∞, where the log of softmax is NaN.

    NaN enters by a factor and not by `where`, so the gradient of such a row is NaN too, in every
    column. Otherwise a loss of NaN would have the gradient −1 in the label's column.
    """
    return rest * where(largest == -math.inf, math.nan, 1.0)


@_along_the_row
def log_softmax(x: Any) -> Value:
    """x − log Σ e^x along the row, without the rounding of a large sum; its exp is softmax(x)."""
    largest, rest = logsumexp_parts(x)
    return (x - largest) - beyond_largest(largest, rest)
