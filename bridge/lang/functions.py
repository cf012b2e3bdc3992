"""The functions of declarations, named as in NumPy where NumPy has them."""

from __future__ import annotations

import numbers
from typing import Any, Literal

from bridge.lang import applied, philox, reductions
from bridge.lang.applied import *  # noqa: F403
from bridge.lang.applied import apply, column, stop_gradient, where
from bridge.lang.errors import refuse
from bridge.lang.program import COLUMNS, FULL
from bridge.lang.reductions import *  # noqa: F403
from bridge.lang.returned import check_dtype, column_sum, halves, like, pairs, stored
from bridge.lang.values import Value, Visible, builder_of

__all__ = [
    "abs",
    "binade",
    "clip",
    "column_sum",
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
    "maximum",
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
    "stored",
    "straight_through",
    "tanh",
    "visible",
]
__all__ += applied.__all__
__all__ += reductions.__all__

GELU_KINDS = ("tanh", "none", "sigmoid")


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


def straight_through(near: Any, x: Any) -> Value:
    """The value `near`, with the derivatives of x: the straight-through estimate of a rounding."""
    return apply("straight_through", stop_gradient(near), x)


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
