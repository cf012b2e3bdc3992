"""Errors of results against float64 in ULP, and their bounds: the part that all ops share.

The judge provides true values and the errors of the arithmetic. This module adds the rounding to a
narrower dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.lang.dtypes import DTYPES, FLOATING

Array = np.ndarray


@dataclass(frozen=True)
class Format:
    """An IEEE format: bits of the significand, and the smallest and largest exponent."""

    bits: int
    lowest: int
    highest: int

    def ulp(self, values: Array) -> Array:
        """Returns the distance between neighbouring numbers at `values`."""
        exponent = np.where(values == 0, self.lowest, np.frexp(values)[1] - 1)
        return np.ldexp(1.0, np.clip(exponent, self.lowest, self.highest) - self.bits + 1)

    @property
    def least(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.lowest - self.bits + 1)


FORMATS = {
    name: Format(d.bits, d.least + d.bits - 1, d.beyond - 1)
    for name, d in DTYPES.items()
    if name in FLOATING
}

# A result narrower than the arithmetic has one more rounding, half an ULP of its own dtype.
BOUNDS: dict[str, Any] = {"result_ulp": 0.5}


@dataclass(frozen=True)
class Errors:
    """The largest errors of a result.

    Attributes:
      ulp: in ULP of the result's dtype at the true value, or in ULP of the arithmetic, carried
        through the computation, if that is larger.
      of_bound: as a fraction of the bound at the same element; above 1 fails.
      wrong: the number of elements that are finite where the true value is not or the reverse, or
        that differ from bits promised by the contract.
    """

    ulp: float
    of_bound: float
    wrong: int

    @property
    def passed(self) -> bool:
        return self.wrong == 0 and self.of_bound <= 1.0


@dataclass(frozen=True)
class Truth:
    """True values, their natural unit of error, and the allowed error.

    Attributes:
      values, unit, allowed: float64 arrays of one shape; `allowed` excludes the rounding of the
        result.
    """

    values: Array
    unit: Array
    allowed: Array


def of_elements(got: Array, true: Truth, dtype: str) -> Errors:
    """Returns the errors of an array of results in `dtype`."""
    fmt = FORMATS[dtype]
    rounding = BOUNDS["result_ulp"] * fmt.ulp(true.values) if fmt.bits < 24 else 0.0
    unit = np.maximum(fmt.ulp(true.values), true.unit)
    return compare(got, true.values, unit, true.allowed + rounding, fmt)


def compare(got: Array, true: Array, unit: Array, allowed: Array, fmt: Format) -> Errors:
    """Returns the errors of `got` against `true`; `allowed` is the largest permitted error."""
    got = np.asarray(got, np.float64)
    beyond = float(np.ldexp(1.0, fmt.highest)) * 2.0  # the value of an overflow; inf for float64
    with np.errstate(all="ignore"):
        finite = np.isfinite(true) & ~np.isnan(got)
        same = (np.isnan(true) & np.isnan(got)) | (np.isinf(true) & (got == true))
        overflow = beyond - np.ldexp(1.0, fmt.highest - fmt.bits)  # larger values round to inf
        same |= np.isinf(got) & (np.sign(got) == np.sign(true)) & (np.abs(true) >= overflow)
        got = np.where(np.isinf(got), np.copysign(beyond, got), got)
        error = np.where(finite & ~same, np.abs(got - true), 0.0)
        lost = ~np.isfinite(error) | (~finite & ~same)
        # An infinity in place of a number well inside the range is wrong, not just inaccurate.
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
