"""Softmax of rows with one more logit each, the sink, that has no column of its own."""

from __future__ import annotations

import math
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared
from bridge.catalogue.softmax import check_softmax
from bridge.lang.dtypes import FLOATING
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import LARGEST_FLOAT32

LARGEST = {"float32": LARGEST_FLOAT32, "float64": math.inf}
DIGITS = {"float32": 24, "float64": 53}


def _where_shown(hidden: Any, value: Any, otherwise: float) -> Any:
    return value if hidden is None else bl.where(hidden, otherwise, value)


def _hidden(mask: Any, last: Any) -> Any:
    """Combines the mask with the causal rule: True for columns after `last`; None if neither."""
    if last is None:
        return mask
    behind = bl.column() > last
    return behind if mask is None else mask | behind


def _largest(x: Any, hidden: Any, scale: float) -> tuple[Any, Any]:
    """Returns x/2, with the sign of scale, and its maximum in the row: differences cannot overflow.

    The softmax does not depend on the number subtracted, so the maximum has no derivative.
    """
    key = x * math.copysign(0.5, scale)
    return key, bl.stop_gradient(bl.max(_where_shown(hidden, key, -math.inf)))


def _difference(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns x − y rounded, and the rounding error."""
    rounded = x - y
    back = rounded - x
    return rounded, (x - (rounded - back)) - (y + back)


def _times(x: Any, lacks: Any, scale: float, digits: int) -> tuple[Any, Any]:
    """Returns (x + lacks)·scale rounded, and the rounding error, including that of the scale."""
    fraction, exponent = math.frexp(scale)
    if fraction in (0.0, 0.5):  # a power of two
        return x * scale, lacks * scale
    leading = math.ldexp(round(math.ldexp(fraction, digits)), exponent - digits)
    product, rest = x * leading, lacks * leading
    if leading != scale:
        rest = bl.fma(x, scale - leading, rest)
    return product, bl.fma(x, leading, -product) + rest


def _exp(x: Any, lacks: Any) -> Any:
    """exp(x + lacks); `lacks` is NaN beside an infinite x."""
    power = bl.exp(x)
    return bl.fma(power, bl.where(power == 0.0, 0.0, lacks), power)


def _powers(key: Any, largest: Any, hidden: Any, scale: float, digits: int) -> Any:
    """exp(scale·x − its maximum): the difference comes first and is exactly 0 for the maximum."""
    base = bl.where(largest == -math.inf, 0.0, largest)
    if digits == 0:
        return bl.exp(_where_shown(hidden, 2.0 * ((key - base) * abs(scale)), -math.inf))
    exponent, lacks = _times(*_difference(key, base), abs(scale), digits)
    return _exp(_where_shown(hidden, 2.0 * exponent, -math.inf), 2.0 * lacks)


def _weights(largest: Any, sink: Any, scale: float, digits: int) -> tuple[Any, Any]:
    """exp(maximum − m) and exp(sink − m), with m the larger one of the maximum and the sink."""
    product, rest = _times(largest, 0.0, abs(scale), digits or 24)
    maximum = bl.where(largest == -math.inf, -math.inf, 2.0 * product)
    # An infinite sink makes its row NaN, as an infinite element does.
    sink = bl.where(sink == math.inf, math.nan, sink)
    above, lacks = _difference(maximum, sink)
    above, lacks = bl.where(sink == -math.inf, math.inf, above), lacks + 2.0 * rest
    # If they are equal, only one of them gets the derivative; a NaN goes to one.
    is_above = above > 0.0
    of_row = _exp(bl.where(is_above, 0.0, above), bl.where(is_above, 0.0, lacks))
    of_sink = _exp(bl.where(is_above, -above, 0.0), bl.where(is_above, -lacks, 0.0))
    return of_row, of_sink


def _total(powers: Any, of_row: Any, of_sink: Any) -> Any:
    """Returns the denominator; 1 in a row without elements, whose results are 0."""
    total = bl.sum(powers) * of_row + of_sink
    return bl.where(total == 0.0, 1.0, total)


def _vjp(
    x: Any, sink: Any, mask: Any, last: Any, y: Any, g: Any, *, scale: float, digits: int
) -> Any:
    hidden = _hidden(mask, last)
    key, largest = _largest(x, hidden, scale)
    of_row, of_sink = _weights(largest, sink, scale, digits)
    share = of_sink / _total(_powers(key, largest, hidden, scale, digits), of_row, of_sink)
    mean = bl.sum(bl.where(y == 0.0, -0.0, y * g))
    dx = bl.where(y == 0.0, 0.0, y * (g - mean) * scale)
    return dx, bl.where(share == 0.0, 0.0, -(share * mean))


@declared()
def sink_gradients(
    x: bl.Full,
    sink: bl.PerRow,
    y: bl.Full,
    g: bl.Full,
    mask: bl.Mask | None = None,
    last: bl.PerRow[int] | None = None,
    *,
    scale: float = 1.0,
    digits: int = 24,
):
    dx, dsink = _vjp(x, sink, mask, last, y, g, scale=scale, digits=digits)
    return bl.like(dx, x), bl.like(dsink, sink)  # type: ignore[arg-type]


@declared(keep=("largest", "total"), vjp=_vjp)
def softmax_with_sink(
    x: bl.Full,
    sink: bl.PerRow,
    mask: bl.Mask | None = None,
    last: bl.PerRow[int] | None = None,
    *,
    scale: float = 1.0,
    digits: int = 24,
):
    hidden = _hidden(mask, last)
    key, largest = _largest(x, hidden, scale)
    powers = _powers(key, largest, hidden, scale, digits)
    of_row, of_sink = _weights(largest, sink, scale, digits)
    total = _total(powers, of_row, of_sink)
    y = _where_shown(hidden, powers * (of_row / total), 0.0)
    return bl.like(y, x)  # type: ignore[arg-type]


@declared()
def spread(rows: bl.Full, sink: bl.Table):
    """Spreads the sink to rows; the gradient is summed in the arithmetic type, in our order."""
    return sink


class SoftmaxWithSink:
    """Softmax beside a sink in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.softmax, self.spread = arrays.entry(softmax_with_sink), arrays.entry(spread)

    def run(
        self,
        function: str,
        x: Any,
        mask: Any,
        scale: Any,
        sink: Any,
        causal: bool,
        argument: str = "sink",
        out: Any = None,
    ) -> Any:
        """Checks the arrays' shapes and dtypes, and calls the op; `argument` is the sink's name.

        Raises:
          TypeError, ValueError: as `check_softmax`, and for a sink of another dtype, or of a shape
            that neither has one entry for each head nor broadcasts.
        """
        spec_of = self.arrays.spec_of
        of_x, of_sink = spec_of(x), spec_of(sink)
        of_mask = None if mask is None else spec_of(mask)
        scale = check_softmax(function, of_x, of_mask, scale, causal=causal)
        if of_sink.dtype not in FLOATING:
            raise TypeError(
                f"{function}: {argument} has dtype {of_sink.dtype}, expected one of "
                f"{', '.join(FLOATING)}"
            )
        rows = of_x.shape[:-1]
        if len(of_sink.shape) == 1 and len(rows) > 1:  # one for each head
            sink = sink[:, None, None]
        if not spec_of(sink).broadcasts_to((*rows, 1)):
            heads = f"[{rows[-2]}], one for each head, or " if len(rows) > 1 else ""
            raise ValueError(
                f"{function}: {argument} has shape {list(of_sink.shape)}, expected {heads}one that "
                f"broadcasts to {[*rows, 1]}: x has shape {list(of_x.shape)}"
            )
        wide = "float64" if "float64" in (of_x.dtype, of_sink.dtype) else "float32"
        of_rows = self.of_rows(x, sink.reshape(tuple(sink.shape[:-1]) or (1,)), rows, wide)
        scale = max(-LARGEST[wide], min(scale, LARGEST[wide]))
        last = self.arrays.last_columns(x) if causal else None
        digits = DIGITS[wide] if of_x.dtype in DIGITS else 0
        return self.softmax.run((x, of_rows, mask, last), out, scale, digits)

    def of_rows(self, like: Any, table: Any, rows: tuple[int, ...], dtype: str) -> Any:
        """Returns the sinks of rows `[*rows]`, on the device of `like`.

        Args:
          table: the sinks, of a shape that broadcasts to the rows.
        """
        zeros = self.arrays.zeros(like, rows or (1,), dtype)
        return self.spread.run((zeros, table), None).reshape(rows)
