"""The functions of declarations, named as in NumPy where NumPy has them."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from bridge.lang import philox
from bridge.lang.errors import refuse
from bridge.lang.program import COLUMNS, FULL
from bridge.lang.refusals import Unusable
from bridge.lang.returned import check_dtype, column_sum, halves, like, pairs, stored
from bridge.lang.roles import BLOCKS
from bridge.lang.values import Value, Visible, builder_of

__all__ = [
    "abs",
    "argmax",
    "argmin",
    "binade",
    "block_max",
    "block_sum",
    "clip",
    "column",
    "column_sum",
    "columns",
    "cos",
    "dropout_keep",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "fma",
    "gelu",
    "halves",
    "like",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "logsumexp_parts",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "pairs",
    "relu",
    "rounded",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "stop_gradient",
    "stored",
    "straight_through",
    "sum",
    "tanh",
    "visible",
    "where",
]

GELU_KINDS = ("tanh", "none", "sigmoid")


def apply(operation: str, *arguments: Any, static: Any = None) -> Value:
    """Applies an operation, given by its name."""
    for argument in arguments:
        if isinstance(argument, Unusable):
            argument.refused()
    return builder_of(*arguments).apply(operation, *arguments, static=static)


def parameter(number: float, name: str) -> Value:
    """A number that may differ from call to call of the same kernel."""
    return builder_of().parameter(number, name)


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


def where(condition: Any, x: Any, y: Any) -> Value:
    """x where the condition holds, else y; the operand not chosen gets a gradient of 0.

    This holds even if its derivative is infinite there, such as the derivative of log at 0. An
    operand that is NaN there may still give NaN.
    """
    return apply("where", condition, x, y)


def abs(x: Any) -> Value:
    """|x|; its derivative is the sign of x, 0 at 0."""
    return apply("abs", x)


def minimum(x: Any, y: Any) -> Value:
    """The smaller of two values, x if they are equal; NaN if either is NaN.

    The gradient goes to the operand that is returned.
    """
    return apply("minimum", x, y)


def maximum(x: Any, y: Any) -> Value:
    """The larger of two values, x if they are equal; NaN if either is NaN.

    The gradient goes to the operand that is returned.
    """
    return apply("maximum", x, y)


def clip(x: Any, low: Any = None, high: Any = None) -> Value:
    """x, at least `low` and at most `high`; a bound of None is open, and NaN stays NaN.

    It is `high` where the bounds cross, as in NumPy. The gradient goes to x where x is returned,
    so also at a bound, and to the bound elsewhere.

    Raises:
      DeclarationError: if both bounds are None.
    """
    if low is None and high is None:
        raise refuse("clip has neither low nor high: give a bound")
    bounded = x if low is None else maximum(x, low)
    return bounded if high is None else minimum(bounded, high)


def relu(x: Any) -> Value:
    """max(x, 0), with derivative 0 at 0; NaN stays NaN."""
    return where(builder_of(x).value(x) <= 0.0, 0.0, x)


def fma(x: Any, y: Any, z: Any) -> Value:
    """x·y + z, rounded once."""
    return apply("fma", x, y, z)


def sqrt(x: Any) -> Value:
    """√x, correctly rounded; NaN below 0."""
    return apply("sqrt", x)


def rsqrt(x: Any) -> Value:
    """1/√x; ∞ at 0."""
    return apply("rsqrt", x)


def exp(x: Any) -> Value:
    """e^x."""
    return apply("exp", x)


def exp2(x: Any) -> Value:
    """2^x."""
    return apply("exp2", x)


def expm1(x: Any) -> Value:
    """e^x − 1, accurate also for small x."""
    return apply("expm1", x)


def log(x: Any) -> Value:
    """The natural logarithm; −∞ at 0, NaN below."""
    return apply("log", x)


def log1p(x: Any) -> Value:
    """log(1 + x), accurate also for small x."""
    return apply("log1p", x)


def tanh(x: Any) -> Value:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def sin(x: Any) -> Value:
    """The sine of x in radians, accurate also for huge x; NaN at ±∞."""
    return apply("sin", x)


def cos(x: Any) -> Value:
    """The cosine of x in radians, accurate also for huge x; NaN at ±∞."""
    return apply("cos", x)


def sigmoid(x: Any) -> Value:
    """1/(1 + e^−x)."""
    return apply("sigmoid", x)


def silu(x: Any) -> Value:
    """x·sigmoid(x); −0 at −∞."""
    return apply("silu", x)


def softplus(x: Any) -> Value:
    """log(1 + e^x)."""
    return apply("softplus", x)


def erf(x: Any) -> Value:
    """The error function."""
    return apply("erf", x)


def gauss(x: Any, *, halved: bool = False) -> Value:
    """e^(−x²), or e^(−x²/2), with x² not rounded in between."""
    return apply("gauss", x, static=0.5 if halved else 1.0)


def gelu(x: Any, kind: Literal["tanh", "none", "sigmoid"] = "tanh") -> Value:
    """GELU; the kinds are those of `approximate` in bias_gelu: "none" is x·Φ(x)."""
    if kind not in GELU_KINDS:
        raise refuse(f"gelu has no kind {kind!r}: one of {', '.join(map(repr, GELU_KINDS))}")
    return apply("gelu", x, static=(kind, 0))


def binade(x: Any) -> Value:
    """The largest power of two up to |x|, by the exponent alone; 0 at 0, ∞ at ±∞, derivative 0."""
    return apply("binade", x)


def rounded(x: Any, dtype: str) -> Value:
    """x rounded to the nearest number of a floating dtype, ties to even.

    Tangents and cotangents are rounded too: they have the same bits as if the op ended here, stored
    the value in that dtype, and another op read it. An 8-bit dtype is an exception: a number beyond
    its largest one becomes that, as in `stored`, and tangents and cotangents pass unchanged, which
    is the straight-through estimate.
    """
    check_dtype("rounded", dtype)
    return apply("rounded", x, static=dtype) if dtype != "float64" else x + -0.0


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


def stop_gradient(x: Any) -> Value:
    """x, treated as a constant by all derivatives."""
    return apply("stop_gradient", x)


def straight_through(near: Any, x: Any) -> Value:
    """The value `near`, with the derivatives of x: the straight-through estimate of a rounding."""
    return apply("straight_through", stop_gradient(near), x)


def column() -> Value:
    """The index of the column, an integer, from 0."""
    return builder_of().node("column", axes=COLUMNS, dtype="int")


def columns() -> Value:
    """The number of columns of a row, an integer."""
    builder = builder_of()
    if builder.length is not None:
        return builder.length
    return builder.node("columns", axes=0, dtype="int")


def visible(x: Any, *, first: Any = None, last: Any = None) -> Value:
    """x in the columns from `first` to `last`, both included; the other columns are hidden.

    A hidden column does not count: a reduction along the row is the one of a row without it, and
    `column_sum` leaves the element out. Results computed from x are hidden there too. A hidden
    element of a result is 0, and so is the gradient towards a hidden element of x, even if that
    element is NaN or infinite. Of several visible values only the common columns are visible.

    Args:
      x: a value, or a number.
      first, last: integers, or integer values with one number for all or for each row, such as a
        `PerRow[int]`. None leaves that side of the row open. A row without visible columns has the
        reductions of an empty row.

    Raises:
      DeclarationError: if both sides are open, or if a side is no integer or differs by column.
    """
    if first is None and last is None:
        raise refuse("visible has neither first nor last: give the first or the last column")
    builder = builder_of(x, first, last)
    extent = x.extent if isinstance(x, Visible) else None
    for name, side in (("first", first), ("last", last)):
        if side is None:
            continue
        side = builder.value(side)
        if side.kind != "int" or side.axes & COLUMNS:
            kind = "differs from column to column" if side.axes & COLUMNS else f"is {side!r}"
            raise refuse(f"{name} {kind}, expected an integer or integers such as a PerRow[int]")
        within = column() <= side if name == "last" else column() >= side
        extent = within if extent is None else extent & within
    assert extent is not None
    inside = builder.apply("where", extent, builder.floating(builder.value(x)), 0.0)
    return Visible(builder, inside.number, extent)


def dropout_keep(p: float, seed: Any, offset: Any = 0) -> Value:
    """A truth value at every place, false with probability p, drawn by Philox (docs/numerics.md).

    Args:
      p: a number in [0, 1].
      seed, offset: Integer operands, or numbers.
    """
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0 <= p <= 1:
        raise refuse(f"p is {p!r}, expected a number in [0, 1]")
    builder = builder_of(seed, offset)
    if builder.length is not None:
        raise refuse(
            "dropout_keep counts the places of one array, and segments are rows of several: draw "
            "in another op, on the tokens"
        )
    values = [builder.value(_signed(seed)), builder.value(_signed(offset))]
    for name, value in zip(("seed", "offset"), values, strict=True):
        if value.kind != "int" or value.axes:
            raise refuse(f"{name} is no bridge.Integer and no integer number")
    threshold = philox.threshold_of(float(p))
    if threshold == 0:
        return builder.constant(True)
    return builder.node(
        "keep", tuple(value.number for value in values), threshold, axes=FULL, dtype="bool"
    )


def _signed(number: Any) -> Any:
    """Converts an unsigned 64-bit number to the signed one with the same bits."""
    if isinstance(number, int) and 1 << 63 <= number < 1 << 64:
        return number - (1 << 64)
    return number
