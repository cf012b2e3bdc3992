"""The judge of results, for every entry of the catalogue.

The true results are those of the same expression in float64. The allowed effect of roundings is
measured too: the numbers of each operand are changed by half a unit, at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import ARRAYS, FACTORS, ROWS
from bridge.cli.parity.accuracy import FORMATS, Errors, Truth, of_elements
from bridge.cli.parity.grid import Case, Operands
from bridge.cli.parity.places import NUMPY, Array
from bridge.cli.parity.quantities import order_of
from bridge.lang.dtypes import promote

# All bounds of the ops:
# - `moved`: a multiple of the largest change in the row (of the number itself, if the entry has a
#   widest x) when operands change by half a unit; second derivatives have 16-bit units in 16 bits;
# - `ulp` and `least`: units of the arithmetic at the true value, and of its smallest number, for
#   later roundings;
# - `of_one`: units at the number of a row of one column, whose differences are 0;
# - `of_factor`: smallest numbers of the dtype, for the factors of logits: the gradient of logits is
#   rounded to the dtype before it reaches them;
# - `narrow_ulp`: units of a 16-bit result, for functions with 16-bit accuracy.
BOUNDS: dict[str, Any] = {"moved": 8.0, "ulp": 4.0, "least": 16.0, "of_one": 16.0, "of_factor": 1.0}
BOUNDS["narrow_ulp"] = 0.0125
BOUNDS_IN_WORDS = (
    "Bounds: eight times the largest change of a number in the same row (in bias_gelu, softmax and "
    "bias_dropout_add: of the number itself) when each number of each operand changes by half a "
    "unit of the arithmetic, at random; plus four units, 0.0125 units of a result in 16 bits, and "
    "its rounding. Second derivatives have the units of their dtype. A sum with "
    "a residual is rounded to its dtype before it is used, and so is its gradient. The derivatives "
    "of softmax are taken at the value that it returned. The matrix product of logits is exact; "
    "gradients of its factors may be off by one more smallest number of their dtype. Products, "
    "attention, embedding, losses by bridge's products, optimizers, convolutions, pools, "
    "interpolation and running statistics have bounds of an error analysis: the roundings of the "
    "contract one after the other, a sum's relative to the sum of the absolute values of its "
    "terms; a result in 16 bits must be the rounding of a number within them."
)

Truths = tuple[dict[str, Array], dict[str, Array]]  # true values, and their allowed changes


class Judge:
    """The true values of a case: its expression in float64."""

    def __init__(self, case: Case, given: Operands) -> None:
        self.case, self.given = case, case.all_viewed(given)
        exact = {name: self._exact(array) for name, array in self.given.items()}
        if case.entry.added:
            # The rounding of the sum is a part of the op's definition.
            first, second = case.entry.added
            dtype = NUMPY[promote(case.dtype_of(first), case.dtype_of(second))]
            exact[first] = (exact[first] + exact[second]).astype(dtype).astype(np.float64)
            exact[second] = np.zeros_like(exact[second])
        self.exact = exact
        self.of_operands = self._truths(exact)
        self.at: tuple[Array, Truths] | None = None  # a value, and the truths at it
        self.of_one = 0.0
        if case.place.shape[-1:] == (1,):
            floating = [array for array in exact.values() if array.dtype == np.float64]
            largest = max(np.nanmax(np.abs(array), initial=1.0) for array in floating)
            self.of_one = float(FORMATS[case.arithmetic].ulp(np.asarray(largest)))

    def _truths_of(self, quantity: str, results: Mapping[str, Array]) -> Truths:
        if quantity == "forward" or not self.case.entry.compared.at_value:
            return self.of_operands
        y = results["forward"]
        if self.at is None or self.at[0] is not y:
            self.at = y, self._truths({**self.exact, "y": self._exact(y)})
        return self.at[1]

    def _truths(self, exact: Mapping[str, Array]) -> Truths:
        true, random = self._quantities(exact), np.random.default_rng(0)
        # A number that is judged by itself needs more tries than a row, whose largest counts.
        tries = range(4 if self.case.entry.compared.widest else 2)
        found = [self._moved(exact, true, random) for _ in tries]
        return true, {name: np.fmax.reduce([each[name] for each in found]) for name in true}

    def _moved(
        self, exact: Mapping[str, Array], true: Mapping[str, Array], random: np.random.Generator
    ) -> dict[str, Array]:
        """Returns the change of each result when each number changes by half a unit.

        Operands change one after another, because the changes of two operands may cancel.
        """
        moved = {name: np.zeros_like(values) for name, values in true.items()}
        for operand, part in self._parts(exact):
            array = exact[operand].copy()
            with np.errstate(over="ignore"):
                array[part] *= 1 + self._half_unit() * random.choice([-1.0, 1.0], array[part].shape)
            for name, values in self._quantities({**exact, operand: array}).items():
                with np.errstate(invalid="ignore"):
                    moved[name] += np.abs(values - true[name])
        return moved

    def _exact(self, array: Any) -> Array:
        return array if array.dtype.kind in "biu" else array.astype(np.float64)

    def _parts(self, operands: Mapping[str, Array]) -> Iterator[tuple[str, Any]]:
        """Yields names of floating operands, with a slice for each part that is one operand."""
        for name, array in operands.items():
            if array.dtype == np.float64:
                is_packed = name != "y" and self.case.role_of(name) == "packed"
                d = self.case.place.shape[-1] if is_packed else 0
                halves = (..., slice(d)), (..., slice(d, None))
                yield from ((name, part) for part in (halves if is_packed else (...,)))

    def _half_unit(self) -> float:
        """Returns half a unit of the arithmetic, or of the dtype that sums are rounded to."""
        if self.case.arithmetic == "float64":
            # Less may be lost in the next rounding of the reference.
            return 2.0 * float(np.finfo(np.float64).eps)
        bits = FORMATS[self.case.x if self.case.entry.added else "float32"].bits
        return 2.0**-bits

    def _quantities(self, operands: Mapping[str, Array]) -> dict[str, Array]:
        import torch

        from bridge.cli.parity import in_torch

        tensors = {name: torch.from_numpy(np.array(a, order="C")) for name, a in operands.items()}
        found = in_torch.quantities(self.case.exact, self.case, tensors)
        return {name: in_torch.to_numpy(value) for name, value in found.items()}

    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        """Returns the errors of a quantity; the value that it is taken at is in `results`."""
        case, fmt = self.case, FORMATS[self.case.arithmetic]
        true, moved = (found[quantity] for found in self._truths_of(quantity, results))
        moved = np.fmax(moved, 0.0)  # a change from infinity to infinity is NaN
        order, operand = order_of(quantity)
        role, dtype = case.role_of(operand), case.dtype_of(operand)
        if order in ("d2", "hvp_"):
            bits = FORMATS[dtype].bits
            if case.entry.compared.bounds is not None:  # steps have the dtype of x
                bits = min(bits, FORMATS[case.x].bits)
            moved = moved * 2.0 ** max(0, 24 - bits)
        with np.errstate(all="ignore"):
            most, size = moved, np.abs(true)
            if moved.ndim and (role not in ARRAYS or not case.entry.compared.widest):
                most = np.fmax.reduce(moved, -1, keepdims=True, initial=0.0)
            if role in ROWS:  # a sum over rows, whose terms may cancel
                size = np.max(size, -1, keepdims=True, initial=0.0, where=np.isfinite(size))
            allowed = BOUNDS["moved"] * most + BOUNDS["ulp"] * fmt.ulp(true)
            allowed += BOUNDS["least"] * fmt.least + BOUNDS["of_one"] * self.of_one
            if FORMATS[dtype].bits < 24:
                allowed += BOUNDS["narrow_ulp"] * FORMATS[dtype].ulp(size)
            if role in FACTORS:
                allowed += BOUNDS["of_factor"] * FORMATS[dtype].least
            if case.arithmetic == "float64":  # the reference has as many roundings
                allowed *= 2.0
            return of_elements(results[quantity], Truth(true, moved + self.of_one, allowed), dtype)

    def misplaced(self, result: Array) -> int:
        """Counts hidden elements that are not +0."""
        mask = self.given.get("mask")
        if mask is None or result.shape != self.case.place.shape:
            return 0
        bits = np.ascontiguousarray(result).view(f"u{result.itemsize}")
        return int(np.count_nonzero(bits[np.broadcast_to(mask != 0, result.shape)]))
