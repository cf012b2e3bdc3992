"""The ops of the catalogue: their grid, and the judge of their results.

The true results are torch's results for the same expression in float64. The allowed effect of
roundings is measured too: the numbers of each operand are changed by half a unit, at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from bridge.cli.catalogue import COMPARED
from bridge.cli.entries import ARRAYS, FACTORS, OF_ROWS, Entry, draw, shape_of
from bridge.cli.parity import grid
from bridge.cli.parity.accuracy import FORMATS, Errors, Truth, of_elements
from bridge.cli.parity.grid import NUMPY, Array, Operands
from bridge.lang.dtypes import FLOATING, promote

FORMS = tuple(COMPARED)

# All bounds of the ops:
# - `moved`: a multiple of the largest change in the row when operands change by half a unit;
# - `ulp` and `least`: units of the arithmetic at the true value, and of its smallest number, for
#   later roundings;
# - `of_one`: units at the number of a row of one column, whose differences are 0;
# - `of_factor`: smallest numbers of the dtype, for the factors of logits: the gradient of logits is
#   rounded to the dtype before it reaches them;
# - ROUGH: a fraction of the true value, for functions with 16-bit accuracy.
BOUNDS: dict[str, Any] = {"moved": 8.0, "ulp": 4.0, "least": 16.0, "of_one": 16.0, "of_factor": 1.0}
ROUGH = {"bfloat16": 2.0**-14.5, "float16": 2.0**-18}
BOUNDS_IN_WORDS = (
    "Bounds: eight times the largest change of a number in the same row when each number of each "
    "operand changes by half a unit of the arithmetic, at random; plus four units, in bfloat16 "
    "2^-14.5 and in float16 2^-18 of the result, and its rounding. A sum with a residual is "
    "rounded to its dtype before it is used, and so is its gradient. The matrix product of logits "
    "is exact; gradients of its factors may be off by one more smallest number of their dtype."
)


@dataclass(frozen=True)
class Place(grid.Place):
    """A place with "normal" or "special x" values: zeros, denormals and NaN in x.

    Attributes:
      quick: True if the quick grid may use it; it has one such place for each form and dtype.
    """


PLACES = (
    Place((161, 129), quick=True, own=True),
    Place((1,)),
    Place((17,)),
    Place((0, 8)),
    Place((8, 0)),
    Place((1, 1)),
    Place((7, 13), grid.TRANSPOSED, quick=True),
    Place((17, 19), grid.EVERY_OTHER_ROW),
    Place((9, 23), grid.INNER_COLUMNS),
    Place((11, 64), grid.MISALIGNED),
    Place((3, 5, 16), grid.LEADING_SWAPPED),
    Place((2, 65, 29)),
    Place((8, 64), values="special x", quick=True),
    Place((4, 4100)),
)

# The first dtype is for operands of the rows' size, the second for weights, biases and row weights.
_MIXED = ("bfloat16", "float32")


def cases(quick: bool, forms: tuple[str, ...] = FORMS) -> Iterator[Case]:
    """Yields the grid, or a small part of it that has every dtype, form and quantity."""
    ordinary, others = ([p for p in PLACES if p.own is own] for own in (True, False))
    unusual = [place for place in others if place.quick] or ordinary
    for i, form in enumerate(forms):
        roles = {*COMPARED[form].roles.values()}
        pairs: list[tuple[str, str]] = [(dtype, dtype) for dtype in FLOATING]
        if roles & {"row", "per row", "sink"}:
            pairs.append(_MIXED)
        chosen = [*itertools.product(pairs, PLACES)]
        if quick:  # ordinary values in two dtypes, and one other place in one of the other dtypes
            usual = [pair for pair in pairs if pair[0] == pair[1] in ("float32", "bfloat16")]
            rest = [pair for pair in pairs if pair not in usual]
            one = rest[i % len(rest)], unusual[i // 2 % len(unusual)]
            chosen = [*itertools.product(usual, ordinary or unusual), one]
        for (x, of_others), place in chosen:
            # A label needs a column, and torch's tangent of a sum over no columns is NaN.
            has_number = "label" in roles or "per row" in COMPARED[form].results
            is_left_out = place.shape[-1] == 0 and has_number
            # Matrix products of special values are not exact.
            is_left_out |= place.values != "normal" and not roles.isdisjoint(FACTORS)
            if not is_left_out:
                yield Case(form, x, of_others, place)


@dataclass(frozen=True)
class Case(grid.Case):
    """One point of the grid.

    Attributes:
      form: the name of the entry.
      x: the dtype of operands of the rows' size, and of tables.
      others: the dtype of the other floating operands.
    """

    op = "catalogue"

    form: str
    x: str
    others: str
    place: Place

    @property
    def entry(self) -> Entry:
        return COMPARED[self.form]

    @property
    def dtypes(self) -> str:
        return self.x if self.x == self.others else f"{self.x} + {self.others}"

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.entry.inputs

    def compared(self, result: Array) -> Array:
        # A framework's own product may give a sum of zeros either sign.
        is_product = any(role in FACTORS for role in self.entry.roles.values())
        return result + result.dtype.type(0) if is_product else result

    @property
    def own(self) -> bool:
        # In float64 the frameworks' own ops are the reference.
        return self.place.own and self.x == self.others != "float64"

    @property
    def arithmetic(self) -> str:
        """The dtype that the contract computes in."""
        return "float64" if self.x == "float64" else "float32"

    @property
    def split(self) -> tuple[str, ...]:
        if len(self.place.shape) == 1:
            return ()
        is_cut = len(self.place.shape) == 2  # a table of positions, with the rows
        roles = (*OF_ROWS, "table") if is_cut else OF_ROWS
        return tuple(name for name in (*self.entry.roles, "g") if self.role_of(name) in roles)

    def role_of(self, operand: str) -> str:
        if operand == "g":  # two results are compared side by side
            return "packed" if len(self.entry.results) > 1 else self.entry.results[0]
        return self.entry.roles[operand.removeprefix("t_")]

    def has_rows(self, operand: str, shape: tuple[int, ...]) -> bool:
        return self.role_of(operand) in OF_ROWS

    def dtype_of(self, operand: str) -> str | None:
        role = self.role_of(operand)
        if operand == "g":
            if role in ARRAYS:
                floating = [name for name in self.inputs if self.role_of(name) != "sink"]
                return promote(*(self.dtype_of(name) or "" for name in floating))
            return self.arithmetic
        return self.others if role in ("row", "per row", "sink") else self.x

    def operands(self) -> Operands:
        random, filled = self.random(), Operands()
        for name in (*self.entry.roles, "g", *(f"t_{name}" for name in self.inputs)):
            dtype = NUMPY[self.dtype_of(name) or ""]
            array = draw(self.role_of(name), self.place.shape, dtype, random)
            if self._is_laid_out(name):
                array = np.resize(array, self.place.layout.dense(array.shape))
            filled[name] = array
        if self.place.values == "special x":
            x = filled["x"]
            assert x is not None
            x[1:3] = _special_values(self.x, 2 * x.shape[-1]).reshape(2, -1)
            # In a row with hidden elements a NaN spreads in the plain form, while the op has 0.
            if len(self.entry.results) == 1 and "mask" not in self.entry.roles.values():
                x[4, 5] = np.nan
        return filled

    def _is_laid_out(self, name: str) -> bool:
        return not name.startswith("t_") and self.role_of(name) in ARRAYS

    def viewed(self, name: str, array: Any) -> Any:
        if not self._is_laid_out(name):
            return array
        return self.place.layout.view(array, shape_of(self.role_of(name), self.place.shape))

    def call(self, ops: Any, p: Mapping[str, Any]) -> Any:
        return _side_by_side(self.entry.call(ops, p))

    def own_torch(self, p: Mapping[str, Any]) -> Any:
        return _side_by_side(self.entry.in_torch(p))

    def own_jax(self, p: Mapping[str, Any]) -> Any:
        return _side_by_side(self.entry.in_jax(p))

    def judge(self, given: Operands) -> Judge:
        return Judge(self, given)


def _side_by_side(results: Any) -> Any:
    if not isinstance(results, tuple):
        return results
    if hasattr(results[0], "astype"):
        import jax.numpy as jnp

        return jnp.concatenate(results, -1)
    import torch

    return torch.cat(results, -1)


def _special_values(dtype: str, count: int) -> Array:
    """Returns zeros, denormals and small numbers of both signs; their squares do not overflow."""
    limits = ml_dtypes.finfo(NUMPY[dtype])
    least, tiny = float(limits.smallest_subnormal), float(limits.tiny)
    positive = [0.0, least, 3 * least, tiny - least, tiny, tiny * 1.5, 2.0**-20, 0.5, 1.0, 3.0]
    return np.resize(np.array([*positive, *(-v for v in positive)]), count).astype(NUMPY[dtype])


class Judge(grid.Judge):
    """The true values of a case: its expression in float64."""

    def __init__(self, case: Case, given: Operands) -> None:
        self.case = case
        exact = {name: self._exact(name, array) for name, array in case.all_viewed(given).items()}
        if case.entry.added:
            # The rounding of the sum is a part of the op's definition.
            first, second = case.entry.added
            dtype = NUMPY[promote(case.dtype_of(first) or "", case.dtype_of(second) or "")]
            exact[first] = (exact[first] + exact[second]).astype(dtype).astype(np.float64)
            exact[second] = np.zeros_like(exact[second])
        self.true = self._quantities(exact)
        random = np.random.default_rng(0)
        once, again = (self._moved(exact, random) for _ in range(2))
        self.moved = {name: np.fmax(once[name], again[name]) for name in self.true}
        self.of_one = 0.0
        if case.place.shape[-1:] == (1,):
            largest = max(np.nanmax(np.abs(array), initial=1.0) for array in exact.values())
            self.of_one = float(FORMATS[case.arithmetic].ulp(np.asarray(largest)))

    def _moved(self, exact: Mapping[str, Array], random: np.random.Generator) -> dict[str, Array]:
        """Returns the change of each result when each number changes by half a unit.

        Operands change one after another, because the changes of two operands may cancel.
        """
        moved = {name: np.zeros_like(values) for name, values in self.true.items()}
        for operand, part in self._parts(exact):
            array = exact[operand].copy()
            array[part] *= 1 + self._half_unit() * random.choice([-1.0, 1.0], array[part].shape)
            for name, values in self._quantities({**exact, operand: array}).items():
                with np.errstate(invalid="ignore"):
                    moved[name] += np.abs(values - self.true[name])
        return moved

    def _exact(self, name: str, array: Any) -> Array:
        return array if array.dtype.kind in "bi" else array.astype(np.float64)

    def _parts(self, operands: Mapping[str, Array]) -> Iterator[tuple[str, Any]]:
        """Yields names of floating operands, with a slice for each part that is one operand."""
        d = self.case.place.shape[-1]
        for name, array in operands.items():
            if array.dtype == np.float64:
                is_packed = self.case.role_of(name) == "packed"
                halves = (..., slice(d)), (..., slice(d, None))
                yield from ((name, part) for part in (halves if is_packed else (...,)))

    def _half_unit(self) -> float:
        """Returns half a unit of the arithmetic, or of the dtype that sums are rounded to."""
        if self.case.arithmetic == "float64":
            return float(np.finfo(np.float64).eps)  # half of it would change nothing
        bits = FORMATS[self.case.x if self.case.entry.added else "float32"].bits
        return 2.0**-bits

    def _quantities(self, operands: Mapping[str, Array]) -> dict[str, Array]:
        import torch

        from bridge.cli.parity import in_torch

        tensors = {name: torch.from_numpy(np.array(a, order="C")) for name, a in operands.items()}
        found = in_torch.quantities(self.case.own_torch, self.case, tensors)
        return {name: in_torch.to_numpy(value) for name, value in found.items()}

    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        case = self.case
        fmt, true, moved = FORMATS[case.arithmetic], self.true[quantity], self.moved[quantity]
        operand = "g" if quantity in ("forward", "jvp") else quantity.removeprefix("d")
        with np.errstate(all="ignore"):
            most = np.fmax.reduce(moved, -1, keepdims=True, initial=0.0) if moved.ndim else moved
            allowed = BOUNDS["moved"] * most + BOUNDS["ulp"] * fmt.ulp(true)
            allowed += BOUNDS["least"] * fmt.least + BOUNDS["of_one"] * self.of_one
            dtype = case.dtype_of(operand) or ""
            allowed += ROUGH.get(dtype, 0.0) * np.abs(true)
            if case.role_of(operand) in FACTORS:
                allowed += BOUNDS["of_factor"] * FORMATS[dtype].least
            if case.arithmetic == "float64":  # the reference has as many roundings
                allowed *= 2.0
            return of_elements(results[quantity], Truth(true, moved + self.of_one, allowed), dtype)
