"""bias_dropout_add: its grid, its calls, its bounds and the judge of its results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.catalogue.bias_dropout_add import bias_dropout_add
from bridge.cli.parity import grid
from bridge.cli.parity.accuracy import FORMATS, Errors, Truth, of_elements, of_sums
from bridge.cli.parity.grid import NUMPY, Array, Operands, special_values
from bridge.lang.dtypes import FLOATING

# Probabilities of dropping an element; "inference" is training=False.
FORMS = ("p=0.1", "p=0.5", "p=0", "p=1", "inference")

# All bounds of the op. t = keep·factor·(x + bias) rounds the sum, factor and the product, and
# residual + t rounds once more. Each rounding is half an ULP of the arithmetic.
BOUNDS: dict[str, Any] = {"roundings_of_t": 3, "roundings_of_y": 1}
BOUNDS_IN_WORDS = (
    "Bounds: three roundings for the elements that are kept and one for the sum with the "
    "residual, in the arithmetic's dtype, then the rounding of the result; the sum of a bias "
    "gradient rounds at each addition. Dropped elements and the residual's gradient are exact."
)


@dataclass(frozen=True)
class Place(grid.Place):
    """A place with "normal" or "special x" values: zeros, denormals, infinities, NaN and extremes.

    Attributes:
      forms: the forms that run on it.
      bias, residual: True if the operand is present.
      seed, offset: integers; with `as_arrays` they are passed as 0-dimensional arrays.
      once: True to run in float32 alone.
    """

    forms: tuple[str, ...] = ("p=0.1",)
    bias: bool = True
    residual: bool = True
    seed: int = 1234
    offset: int = 0
    as_arrays: bool = False
    once: bool = False

    @property
    def label(self) -> str:
        parts = ["" if self.bias else "no bias", "" if self.residual else "no residual"]
        if (self.seed, self.offset) != (1234, 0):
            kind = "array " if self.as_arrays else ""
            parts.append(f"{kind}seed {self.seed}, offset {self.offset}")
        return ", ".join([super().label, *filter(None, parts)])


PLACES = (
    *(Place((n,)) for n in (1, 2, 3, 4, 5, 15, 16, 17, 4097)),
    Place((), bias=False),
    Place((0, 8), quick=True),
    Place((8, 0)),
    Place((1, 1), forms=FORMS),
    *(
        Place((5, 7), forms=FORMS, bias=bias, residual=residual, quick=not (bias or residual))
        for bias, residual in itertools.product((True, False), repeat=2)
    ),
    *(Place((3, 11), seed=seed) for seed in (0, -7, 2**63 + 11, 2**64 - 1)),
    Place((3, 11), seed=2**40 + 3, offset=5),
    Place((3, 11), offset=2**63 + 1),
    Place((3, 11), seed=-(2**62), offset=2**33, as_arrays=True, quick=True),
    Place((7, 13), grid.TRANSPOSED, quick=True),
    Place((17, 19), grid.EVERY_OTHER_ROW),
    Place((9, 23), grid.INNER_COLUMNS),
    Place((11, 64), grid.MISALIGNED),
    Place((2, 3, 29)),
    Place((3, 5, 16), grid.LEADING_SWAPPED),
    Place((127, 9)),
    Place((128, 9)),
    Place((129, 9), residual=False, quick=True),
    Place((6, 64), values="special x", forms=FORMS),
    Place((6, 64), values="special x", residual=False, quick=True),
    Place((300, 257), forms=FORMS, quick=True),
    Place((700, 1030), once=True),
)

# The dtypes of x, bias and residual.
MIXED = (
    ("bfloat16", "float32", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "bfloat16", "float16"),
    ("float16", "bfloat16", "float32"),
    ("float32", "float64", "float32"),
)

_OPERANDS = ("x", "bias", "residual", "g", "t_x", "t_bias", "t_residual")


def cases(quick: bool, forms: tuple[str, ...] = FORMS) -> Iterator[Case]:
    """Yields the grid, or a small part of it that has every dtype, form and quantity."""
    alike = [(dtype, dtype, dtype) for dtype in FLOATING]
    for dtypes, form, place in itertools.product((*alike, *MIXED), forms, PLACES):
        if form not in place.forms or (quick and not place.quick):
            continue
        if dtypes in MIXED and (form != "p=0.1" or not (place.bias and place.quick)):
            continue
        if dtypes[0] == "float32" or not place.once:
            x, bias, residual = dtypes
            yield Case(
                x, bias if place.bias else None, residual if place.residual else None, form, place
            )


@dataclass(frozen=True)
class Case(grid.Case):
    """One point of the grid.

    Attributes:
      x, bias, residual: dtype names; None if the operand is absent.
      form: the drop probability, or "inference".
    """

    op = "bias_dropout_add"
    laid_out = ("x", "g", "residual")

    x: str
    bias: str | None
    residual: str | None
    form: str
    place: Place

    @property
    def result(self) -> str:
        return self.residual or self.x

    @property
    def arithmetic(self) -> str:
        """The dtype that the contract computes in."""
        return "float64" if "float64" in (self.x, self.bias, self.residual) else "float32"

    @property
    def dtypes(self) -> str:
        present = [dtype for dtype in (self.x, self.bias, self.residual) if dtype is not None]
        return self.x if len(set(present)) == 1 else " + ".join(present)

    @property
    def inputs(self) -> tuple[str, ...]:
        present = {"x": self.x, "bias": self.bias, "residual": self.residual}
        return tuple(name for name, dtype in present.items() if dtype is not None)

    @property
    def how(self) -> dict[str, Any]:
        if self.form == "inference":
            return {"p": 0.5, "training": False}
        return {"p": float(self.form.removeprefix("p=")), "training": True}

    def dtype_of(self, operand: str) -> str | None:
        if operand == "g":
            return self.result
        of = {"x": self.x, "bias": self.bias, "residual": self.residual}
        return of[operand.removeprefix("t_")]

    def operands(self) -> Operands:
        shape = self.place.shape
        filled = self.normal(_OPERANDS, self.random())
        if self.place.values == "special x":
            x = filled["x"]
            assert x is not None
            x[1:4] = special_values(self.x, 3 * shape[-1]).reshape(3, -1)
            if self.bias is not None:  # adding -0.0 changes no x, not even -0.0
                filled["bias"] = np.full(shape[-1], -0.0).astype(NUMPY[self.bias])
        if self.place.as_arrays:
            filled["seed"], filled["offset"] = self.integers
        return filled

    @property
    def integers(self) -> tuple[Array, Array]:
        """The seed and the offset in the form of the definition."""
        both = (self.place.seed, self.place.offset)
        seed, offset = (np.array(value % 2**64, np.uint64).astype(np.int64) for value in both)
        return seed, offset

    def call(self, ops: Any, p: Mapping[str, Any]) -> Any:
        seed, offset = p.get("seed", self.place.seed), p.get("offset", self.place.offset)
        return ops.bias_dropout_add(
            p["x"], p["bias"], p["residual"], seed=seed, offset=offset, **self.how
        )

    def judge(self, given: Operands) -> Judge:
        return Judge(self, given)


class Judge(grid.Judge):
    """The true values of a case."""

    def __init__(self, case: Case, given: Operands) -> None:
        self.case, self.given = case, case.all_viewed(given)

    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        case, p, got = self.case, self.given, results[quantity]
        with np.errstate(all="ignore"):
            if quantity == "dresidual":  # equals the cotangent
                exact = np.asarray(p["g"], np.float64)
                return of_elements(got, Truth(exact, 0 * exact, 0 * exact), case.result)
            if quantity == "dbias":
                return of_sums(got, self._rows("g"), str(case.bias), case.arithmetic)
            operands = {
                "forward": ("x", "bias", "residual"),
                "jvp": ("t_x", "t_bias", "t_residual"),
                "dx": ("g", None, None),
            }
            dtype = case.x if quantity == "dx" else case.result
            true = self._truth(*operands[quantity])
            if FORMATS[dtype].bits >= 24 and dtype != case.arithmetic:
                rounding = 0.5 * FORMATS[dtype].ulp(true.values)
                true = Truth(true.values, true.unit, true.allowed + rounding)
            return of_elements(got, true, dtype)

    def _truth(self, x: str, bias: str | None, residual: str | None) -> Truth:
        """Returns residual + keep·factor·(x + bias) for operands given by name."""
        fmt = FORMATS[self.case.arithmetic]
        added = None if bias is None else self.given[bias]
        rest = None if residual is None else self.given[residual]
        how = self.case.how
        operands = (self.given[x], added, None, *self.case.integers)
        t = bias_dropout_add.reference(*operands, p=how["p"] if how["training"] else 0.0)
        r = 0.0 if rest is None else np.asarray(rest, np.float64)
        y = t + r
        roundings = BOUNDS["roundings_of_t"] * np.abs(t) + BOUNDS["roundings_of_y"] * np.abs(y)
        allowed = roundings * 2.0**-fmt.bits + fmt.least
        if self.case.arithmetic == "float64":  # the reference has as many roundings
            allowed = 2.0 * allowed
        return Truth(y, fmt.ulp(np.abs(t) + np.abs(r)), np.where(t == 0, 0.0, allowed))

    def _rows(self, name: str) -> Truth:
        """Returns the same for one operand alone, as rows that are summed."""
        true, shape = self._truth(name, None, None), self.case.place.shape
        parts = (true.values, true.unit, true.allowed)
        return Truth(*(part.reshape(math.prod(shape[:-1]), shape[-1]) for part in parts))
