"""The judge of forms whose bounds follow from an error analysis (`bridge.cli.model_ops.bounded`).

A result passes if it lies between the roundings of the true value minus and plus its bound.
Quantities without a bound, second derivatives of compositions, have the other judge.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from bridge.cli.model_ops.bounded import Arithmetic, Bounded
from bridge.cli.parity.accuracy import FORMATS, Errors, compare
from bridge.cli.parity.grid import Case, Operands
from bridge.cli.parity.judge import Judge
from bridge.cli.parity.places import Array
from bridge.cli.parity.quantities import order_of


class BoundedJudge:
    """The true values of a case, and bounds of the errors."""

    def __init__(self, case: Case, given: Operands) -> None:
        assert case.entry.compared.bounds is not None
        self.case, self._given = case, given
        exact = {
            name: array if array.dtype.kind in "biu" else array.astype(np.float64)
            for name, array in given.items()
        }
        self.bounds: Mapping[str, Bounded] = case.entry.compared.bounds(case, exact)

    @functools.cached_property
    def _others(self) -> Judge:
        return Judge(self.case, self._given)

    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        """Returns the errors of a quantity."""
        if quantity not in self.bounds:
            return self._others.errors(quantity, results)
        dtype, true = self.case.dtype_of(order_of(quantity)[1]), self.bounds[quantity]
        fmt, arithmetic = FORMATS[dtype], Arithmetic(self.case.arithmetic)
        low, high = arithmetic.interval(true, dtype)
        allowed = np.maximum(high - true.values, true.values - low)
        allowed = np.maximum(allowed, fmt.ulp(true.values) / 1024)  # no number lies so near
        unit = np.maximum(fmt.ulp(true.values), 2.0 * true.unit)
        return compare(results[quantity], true.values, unit, allowed, fmt)

    def misplaced(self, result: Array) -> int:
        """Counts hidden elements that are not +0; no result here has hidden elements."""
        return 0


def judge_of(case: Case, given: Operands) -> Judge | BoundedJudge:
    """Returns the judge of a case."""
    kind = Judge if case.entry.compared.bounds is None else BoundedJudge
    return kind(case, given)
