"""How far a result is from float64, in ULP, and how far it may be.

A result is gelu⁽ⁿ⁾(h)·∏ fᵢ or a sum of such over rows. h = x + bias and each fᵢ (a cotangent, or
the sum of two tangents) are rounded to the arithmetic's dtype, as the contract says, before the
reference sees them: what is measured is what the kernel adds to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.ops import BIAS_GELU, BiasGeluParams

Array = np.ndarray


@dataclass(frozen=True)
class Format:
    """An IEEE format: bits of the significand, the smallest and largest exponent."""

    bits: int
    lowest: int
    highest: int

    def ulp(self, values: Array) -> Array:
        """The distance between neighbouring numbers at `values`."""
        exponent = np.where(values == 0, self.lowest, np.frexp(values)[1] - 1)
        return np.ldexp(1.0, np.clip(exponent, self.lowest, self.highest) - self.bits + 1)


FORMATS = {
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}

# The bounds, all of them, by the precision of the call: a 16-bit type where every array has it,
# else the arithmetic's dtype. `gelu_ulp` bounds gelu⁽ⁿ⁾(h) for n = 0, 1, 2, in ULP of that type,
# before any rounding to it; where |h| is in `zeros`, about a zero of gelu⁽ⁿ⁾, an error of
# `zero_error` passes too. Each product then rounds once (half an ULP of the arithmetic), a result
# narrower than the arithmetic once more (half an ULP of its own); a sum of columns rounds once per
# addition of its tree, relative to the sum of the absolute values. The float64 reference itself is
# off by `reference_ulp`, and by `exponent_ulp` times what it takes exp of: allowed where the
# arithmetic is float64 too.
BOUNDS: dict[str, Any] = {
    "gelu_ulp": {
        "float16": (2.0**-10, 2.0**-10, 0.5),
        "bfloat16": (2.0**-10, 2.0**-10, 0.5),
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
    "result_ulp": 0.5,
    "reference_ulp": 12.0,
    "exponent_ulp": 6.0,
    "chunk_rows": 128,
    "lane_rows": 16,
}


@dataclass(frozen=True)
class Errors:
    """Largest error of a result.

    Attributes:
      ulp: in ULP of the result's dtype at the true value (for sums: at the sum of absolute values);
        where the arithmetic's own ULP, carried through the product, is larger, in that.
      of_bound: as a fraction of what the bounds allow there; above 1 fails.
      wrong: how many elements are not finite where the true value is, or the other way round.
    """

    ulp: float
    of_bound: float
    wrong: int

    @property
    def passed(self) -> bool:
        return self.wrong == 0 and self.of_bound <= 1.0


@dataclass(frozen=True)
class Product:
    """True values of gelu⁽ⁿ⁾(h)·∏ fᵢ, their natural unit of error and the error allowed.

    Attributes:
      values, unit, allowed: float64, alike in shape; `allowed` without the rounding of the result.
    """

    values: Array
    unit: Array
    allowed: Array


def derivatives(h: Array, form: str) -> dict[int, Array]:
    """Returns gelu, gelu′ and gelu″ at h in float64."""
    return {
        order: BIAS_GELU.reference((h, None), BiasGeluParams(form, order=order))[0]
        for order in (0, 1, 2)
    }


def product(
    h: Array,
    derivative: Array,
    form: str,
    order: int,
    factors: Sequence[Array],
    arithmetic: str,
    precision: str,
) -> Product:
    """Returns derivative·∏ factors with what a kernel of this precision may make of it."""
    fmt = FORMATS[arithmetic]
    h = np.asarray(h, np.float64)
    values = derivative
    magnitude, at_least_one = np.ones_like(h), np.ones_like(h)
    for factor in factors:
        size = np.abs(np.asarray(factor, np.float64))
        values = values * np.asarray(factor, np.float64)
        magnitude = magnitude * size
        at_least_one = at_least_one * np.maximum(size, 1.0)
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
    # A product that underflows on the way is off by the smallest number, times what follows.
    underflow = math.ldexp(1.0, fmt.lowest - fmt.bits + 1) * at_least_one if factors else 0.0
    return Product(values, unit, allowed + len(factors) * rounding + underflow)


def _exponent(h: Array, form: str) -> Array:
    """What the float64 reference takes exp of; its rounding is an error of that many ULP."""
    a = np.minimum(np.abs(h), 40.0)
    if form == "none":
        return 0.5 * a * a
    return 1.702 * a if form == "sigmoid" else 1.6 * (a + 0.044715 * a**3)


def of_elements(got: Array, true: Product, dtype: str) -> Errors:
    """Errors of an array of results in `dtype`."""
    fmt = FORMATS[dtype]
    rounding = BOUNDS["result_ulp"] * fmt.ulp(true.values) if fmt.bits < 24 else 0.0
    unit = np.maximum(fmt.ulp(true.values), true.unit)
    return _compare(got, true.values, unit, true.allowed + rounding, fmt)


def of_sums(got: Array, terms: Product, dtype: str, arithmetic: str) -> Errors:
    """Errors of column sums over the first axis of `terms`, in `dtype`."""
    fmt, inner = FORMATS[dtype], FORMATS[arithmetic]
    rows = terms.values.shape[0]
    chunks = max(1, math.ceil(rows / BOUNDS["chunk_rows"]))
    additions = min(rows, BOUNDS["lane_rows"]) + 3 + math.ceil(math.log2(chunks))
    with np.errstate(all="ignore"):
        true, size = terms.values.sum(axis=0), np.abs(terms.values).sum(axis=0)
    allowed = terms.allowed.sum(axis=0) + additions * np.ldexp(size, -inner.bits)
    allowed = allowed + BOUNDS["result_ulp"] * fmt.ulp(true)
    if arithmetic == "float64":  # the reference adds in float64 too
        allowed = allowed + np.ldexp(size, -inner.bits) * max(1, rows)
    # Where the absolute values overflow the arithmetic, partial sums may: nothing is promised.
    defined = ~(size > np.ldexp(1.0, inner.highest))
    unit = np.maximum(fmt.ulp(size), terms.unit.sum(axis=0))
    return _compare(got[defined], true[defined], unit[defined], allowed[defined], fmt)


def _compare(got: Array, true: Array, unit: Array, allowed: Array, fmt: Format) -> Errors:
    got = np.asarray(got, np.float64)
    beyond = np.ldexp(1.0, fmt.highest) * 2.0  # what an overflow stands for; inf for float64
    with np.errstate(all="ignore"):
        finite = np.isfinite(true) & ~np.isnan(got)
        same = (np.isnan(true) & np.isnan(got)) | (np.isinf(true) & (got == true))
        overflow = beyond - np.ldexp(1.0, fmt.highest - fmt.bits)  # from here on rounds to inf
        same |= np.isinf(got) & (np.sign(got) == np.sign(true)) & (np.abs(true) >= overflow)
        got = np.where(np.isinf(got), np.copysign(beyond, got), got)
        error = np.where(finite & ~same, np.abs(got - true), 0.0)
        lost = ~np.isfinite(error) | (~finite & ~same)
        # An infinity for a number that is not at the border of the range is wrong, not far.
        lost |= finite & ~same & (np.abs(got) >= beyond) & (error > allowed)
        error = np.where(lost, 0.0, error)
        off = error > 0
        ulp = np.where(off, error / unit, 0.0)
        of_bound = np.where(off, error / allowed, 0.0)
    return Errors(
        float(np.max(ulp, initial=0.0)),
        float(np.max(of_bound, initial=0.0)),
        int(np.count_nonzero(lost)),
    )
