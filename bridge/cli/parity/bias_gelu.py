"""bias_gelu: its grid, its calls, and the judge of its results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from bridge.cli.parity import grid
from bridge.cli.parity.accuracy import Errors, of_elements, of_sums
from bridge.cli.parity.bias_gelu_accuracy import (
    BOUNDS,
    BOUNDS_IN_WORDS,
    QUANTITIES,
    derivatives,
    product,
)
from bridge.cli.parity.grid import NUMPY, Array, Operands, rounded_sum, special_values, spread
from bridge.lang.dtypes import FLOATING, promote
from bridge.lang.functions import GELU_KINDS as FORMS
from bridge.lang.gelu_reference import gelu_derivative

__all__ = ["BOUNDS", "BOUNDS_IN_WORDS", "FORMS", "cases"]


@dataclass(frozen=True)
class Place(grid.Place):
    """A place with these kinds of values:

    - "normal";
    - "wide", which also covers the tails;
    - "special x" or "special cotangent", with zeros, denormals, infinities, NaN and extremes there.

    The quick places are also the places of mixed dtypes.
    """

    bias: bool = True


PLACES = (
    Place((0, 8), quick=True),
    Place((8, 0)),
    Place((1, 1)),
    Place((17,)),
    Place((3, 5)),
    Place((31, 37)),
    Place((5, 7), bias=False),
    Place((7, 13), grid.TRANSPOSED, quick=True),
    Place((17, 19), grid.EVERY_OTHER_ROW),
    Place((9, 23), grid.INNER_COLUMNS),
    Place((11, 64), grid.MISALIGNED, quick=True),
    Place((2, 3, 29)),
    Place((3, 5, 16), grid.LEADING_SWAPPED),
    Place((127, 9)),
    Place((128, 9)),
    Place((129, 9), quick=True),
    Place((4, 64), values="special x", quick=True),
    Place((4, 64), values="special cotangent"),
    Place((300, 257), values="wide", quick=True, own=True),
    Place((1024, 4096)),
)

MIXED = (("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "bfloat16"))

# g is the cotangent of the result; t_… are tangents of inputs, v_… cotangents of gradients.
_OPERANDS = ("x", "bias", "g", "t_x", "t_bias", "v_x", "v_bias")
_ROWS = ("bias", "t_bias", "v_bias")

# The number of elements per case that are compared with float64; bits are compared on all.
_SAMPLE = 1 << 15


def cases(quick: bool, forms: tuple[str, ...] = FORMS) -> Iterator[Case]:
    """Yields the grid, or a small part of it that has every dtype, form and quantity."""
    for dtype, form, place in itertools.product(FLOATING, forms, PLACES):
        if place.quick or not quick:
            yield Case(dtype, dtype if place.bias else None, form, place)
    for (x, bias), form, place in itertools.product(MIXED, forms, PLACES):
        if place.bias and place.quick and (not quick or place.own):
            yield Case(x, bias, form, place)


@dataclass(frozen=True)
class Case(grid.Case):
    """One point of the grid.

    Attributes:
      x, bias: dtype names; bias is None if it is absent.
      form: the form of gelu.
    """

    op = "bias_gelu"
    deviation, widest = 2.0, 16.0
    second_order = True
    hessian = True

    x: str
    bias: str | None
    form: str
    place: Place

    @property
    def split(self) -> tuple[str, ...]:
        return ("x", "g") if len(self.place.shape) > 1 else ()

    @property
    def result(self) -> str:
        return self.x if self.bias is None else promote(self.x, self.bias)

    @property
    def arithmetic(self) -> str:
        """The dtype that the contract computes in."""
        return "float64" if "float64" in (self.x, self.bias) else "float32"

    @property
    def precision(self) -> str:
        """The dtype of the kernel's accuracy: 16-bit if all arrays are, else the arithmetic's."""
        return self.x if self.result in ("float16", "bfloat16") else self.arithmetic

    @property
    def dtypes(self) -> str:
        return self.x if self.bias in (None, self.x) else f"{self.x} + {self.bias}"

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x",) if self.bias is None else ("x", "bias")

    @property
    def own(self) -> bool:
        return self.place.own and self.bias == self.x

    def dtype_of(self, operand: str) -> str | None:
        if operand == "g":
            return self.result
        return self.bias if operand in _ROWS else self.x

    def operands(self) -> Operands:
        shape = self.place.shape
        filled = self.normal(_OPERANDS, self.random())
        if self.place.values == "special x":
            x = filled["x"]
            assert x is not None
            # Adding the bias -0.0 changes no x, not even -0.0.
            filled["bias"] = np.full(shape[-1], -0.0).astype(NUMPY[self.bias or self.x])
            x[0] = self._around(shape[-1])
            x[1:3] = special_values(self.x, 2 * shape[-1]).reshape(2, -1)
        elif self.place.values == "special cotangent":
            g = filled["g"]
            assert g is not None
            g[1:3] = special_values(self.result, 2 * shape[-1]).reshape(2, -1)
        return filled

    def _around(self, count: int) -> Array:
        """Returns neighbours of the zero of the derivative, in the dtype of x."""
        low, high = -1.0, -0.5
        for _ in range(60):
            middle = 0.5 * (low + high)
            if gelu_derivative(middle, self.form, 1) < 0:
                low = middle
            else:
                high = middle
        step = float(ml_dtypes.finfo(NUMPY[self.x]).eps) / 2
        return (low + step * (np.arange(count) - count // 2)).astype(NUMPY[self.x])

    def call(self, ops: Any, p: Mapping[str, Any]) -> Any:
        return ops.bias_gelu(p["x"], p["bias"], approximate=self.form)

    def own_torch(self, p: Mapping[str, Any]) -> Any:
        import torch

        h = p["x"] if p["bias"] is None else p["x"] + p["bias"]
        if self.form == "sigmoid":
            return h * torch.sigmoid(1.702 * h)
        return torch.nn.functional.gelu(h, approximate=self.form)

    def own_jax(self, p: Mapping[str, Any]) -> Any:
        import jax

        h = p["x"] if p["bias"] is None else p["x"] + p["bias"]
        if self.form == "sigmoid":
            return h * jax.nn.sigmoid(1.702 * h)
        return jax.nn.gelu(h, approximate=self.form == "tanh")

    def judge(self, given: Operands) -> Judge:
        return Judge(self, given)


class Judge(grid.Judge):
    """The true values of a case, on a sample if the case is large."""

    def __init__(self, case: Case, given: Operands) -> None:
        self.case = case
        columns = case.place.shape[-1]
        rows = int(np.prod(case.place.shape[:-1]))
        self.flat: Operands = {}
        for name, array in given.items():
            if array is not None and name not in _ROWS:
                view = case.viewed(name, array)
                array = np.ascontiguousarray(view).reshape(rows, columns)
            self.flat[name] = array
        self.rows, self.columns = rows, columns
        few_rows = spread(rows, _SAMPLE // max(columns, 1))
        few_columns = spread(columns, _SAMPLE // max(rows, 1))
        everything = slice(None)
        self.samples = {False: (few_rows, everything), True: (everything, few_columns)}
        self.known: dict[bool, tuple[Operands, Array, dict[int, Array]]] = {}

    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        case, asked = self.case, QUANTITIES[quantity]
        rows, columns = self.samples[asked.column_sum]
        part, h, known = self._known(asked.column_sum)
        factors = []
        for pair in asked.factors:
            parts = [part[name] for name in pair]
            factors.append(rounded_sum([p for p in parts if p is not None], case.arithmetic))
        with np.errstate(all="ignore"):
            true = product(
                h,
                known[asked.order],
                case.form,
                asked,
                factors,
                case.arithmetic,
                case.precision,
            )
            dtype = case.dtype_of(asked.like)
            assert dtype is not None
            if asked.column_sum:
                return of_sums(results[quantity][columns], true, dtype, case.arithmetic)
            flat = results[quantity].reshape(self.rows, self.columns)
            return of_elements(flat[rows], true, dtype)

    def _known(self, summed: bool) -> tuple[Operands, Array, dict[int, Array]]:
        """Returns the sample of the operands, and h, gelu and its derivatives on it."""
        if summed not in self.known:
            rows, columns = self.samples[summed]
            part = {
                name: None if a is None else (a[columns] if a.ndim == 1 else a[rows][:, columns])
                for name, a in self.flat.items()
            }
            pair = [a for a in (part["x"], part["bias"]) if a is not None]
            h = rounded_sum(pair, self.case.arithmetic)
            with np.errstate(all="ignore"):
                self.known[summed] = part, h, derivatives(h, self.case.form)
        return self.known[summed]
