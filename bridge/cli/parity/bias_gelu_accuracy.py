"""True values of bias-GELU and its derivatives, and the errors that a kernel may have.

A result is gelu⁽ⁿ⁾(h)·∏ fᵢ, or a sum of such products over rows. h = x + bias and each fᵢ (a
cotangent, or the sum of two tangents) are rounded to the arithmetic's dtype, as the contract says,
before the reference sees them: the measured error is the kernel's own. A second derivative in
reverse mode over reverse mode computes ∏ fᵢ first, also by the contract: if it is beyond the
arithmetic's range, the result is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.parity.accuracy import FORMATS, Truth
from bridge.lang.gelu_reference import gelu_derivative

Array = np.ndarray

# All bounds of the op, by the precision of the call: a 16-bit type if every array has it, else the
# arithmetic's dtype. `gelu_ulp` bounds the error of gelu⁽ⁿ⁾(h) for n = 0, 1, 2, in ULP of that
# type, before any rounding to it. If |h| is in `zeros`, an interval around a zero of gelu⁽ⁿ⁾, an
# error of `zero_error` passes too. Each product then rounds once (half an ULP of the arithmetic).
# The float64 reference has an error of `reference_ulp`, and of `exponent_ulp` times the argument of
# exp; both are allowed if the arithmetic is float64.
BOUNDS: dict[str, Any] = {
    "gelu_ulp": {
        "float16": (0.0125, 0.0125, 0.5),
        "bfloat16": (0.0125, 0.0125, 0.5),
        "float32": (2.0, 2.0, 4.0),
        "float64": (4.0, 4.0, 8.0),
    },
    "zeros": ((0.0, 0.0), (0.5, 1.0), (0.9, 1.95)),
    "zero_error": {
        "float16": (0.0, 2.0**-24, 2.0**-23),
        "bfloat16": (0.0, 2.0**-24, 2.0**-23),
        "float32": (0.0, 2.0**-24, 2.0**-23),
        "float64": (0.0, 2.0**-52, 2.0**-51),
    },
    "product_ulp": 0.5,
    "reference_ulp": 12.0,
    "exponent_ulp": 6.0,
}
BOUNDS_IN_WORDS = "Bounds on gelu, gelu′, gelu″ before their last rounding, ULP: {}.".format(
    "; ".join(
        f"{dtype} {', '.join(f'{ulp:.3g}' for ulp in ulps)}"
        for dtype, ulps in BOUNDS["gelu_ulp"].items()
    )
)


@dataclass(frozen=True)
class Quantity:
    """A derivative as a product gelu⁽ⁿ⁾(x + bias)·∏ (f + f_row), or its sum over rows.

    Attributes:
      order: n.
      factors: the pairs of factors, by names of operands.
      column_sum: True if the product is summed over rows.
      like: the operand whose dtype the result has; "g" has the dtype of the op's result.
      factors_first: True if ∏ (f + f_row) is rounded to the arithmetic's dtype.
    """

    order: int
    factors: tuple[tuple[str, ...], ...]
    column_sum: bool
    like: str
    factors_first: bool = False


_T, _V = ("t_x", "t_bias"), ("v_x", "v_bias")

QUANTITIES = {
    "forward": Quantity(0, (), False, "g"),
    "dx": Quantity(1, (("g",),), False, "x"),
    "dbias": Quantity(1, (("g",),), True, "bias"),
    "jvp": Quantity(1, (_T,), False, "g"),
    "d2x": Quantity(2, (("g",), _V), False, "x", factors_first=True),
    "d2bias": Quantity(2, (("g",), _V), True, "bias", factors_first=True),
    "d2g": Quantity(1, (_V,), False, "g"),
    "hvp_x": Quantity(2, (("g",), _T), False, "x"),
    "hvp_bias": Quantity(2, (("g",), _T), True, "bias"),
}


def derivatives(h: Array, form: str) -> dict[int, Array]:
    """Returns gelu, gelu′ and gelu″ at h in float64."""
    return {order: gelu_derivative(h, form, order) for order in (0, 1, 2)}


def product(
    h: Array,
    derivative: Array,
    form: str,
    quantity: Quantity,
    factors: Sequence[Array],
    arithmetic: str,
    precision: str,
) -> Truth:
    """Returns derivative·∏ factors with the errors that a kernel of this precision may have."""
    fmt = FORMATS[arithmetic]
    h = np.asarray(h, np.float64)
    order, values = quantity.order, derivative
    together, magnitude, at_least_one = (np.ones_like(h) for _ in range(3))
    for factor in factors:
        size = np.abs(np.asarray(factor, np.float64))
        values = values * np.asarray(factor, np.float64)
        together = together * np.asarray(factor, np.float64)
        magnitude = magnitude * size
        at_least_one = at_least_one * np.maximum(size, 1.0)
    rounded = together.astype(arithmetic).astype(np.float64)
    if quantity.factors_first:
        values = np.where(np.isinf(rounded), derivative * rounded, values)
    low, high = BOUNDS["zeros"][order]
    near_zero = (low <= np.abs(h)) & (np.abs(h) <= high)
    zero_error = np.where(near_zero, BOUNDS["zero_error"][precision][order], 0.0)
    unit = magnitude * np.maximum(fmt.ulp(derivative), zero_error)
    error = BOUNDS["gelu_ulp"][precision][order] * FORMATS[precision].ulp(derivative)
    if arithmetic == "float64":
        of_reference = BOUNDS["reference_ulp"] + BOUNDS["exponent_ulp"] * _exponent(h, form)
        error = error + of_reference * fmt.ulp(derivative)
        zero_error = zero_error * (1.0 + BOUNDS["reference_ulp"])
    allowed = magnitude * np.maximum(error, zero_error)
    rounding = BOUNDS["product_ulp"] * fmt.ulp(values)
    # If a partial product underflows, it is off by the smallest number, times the later factors.
    underflow = fmt.least * at_least_one if factors else 0.0
    return Truth(values, unit, allowed + len(factors) * rounding + underflow)


def _exponent(h: Array, form: str) -> Array:
    """Returns the reference's argument of exp; its rounding is an error of that many ULP."""
    a = np.minimum(np.abs(h), 40.0)
    if form == "none":
        return 0.5 * a * a
    return 1.702 * a if form == "sigmoid" else 1.6 * (a + 0.044715 * a**3)
