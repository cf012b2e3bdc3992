"""True values of softmax and its derivatives, and the errors that a kernel may have.

A derivative is judged from the framework's own y, because the framework computed it from that y; y
itself is judged separately. An error of an operand (the first derivative, in the second) is carried
through the formula, as far as the formula is linear in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.parity import grid
from bridge.cli.parity.accuracy import FORMATS, Errors, Truth, of_elements

Array = np.ndarray

# All bounds of the op, by dtype. The arithmetic is float64 for float64 and float32 for the others;
# its numbers near 1 are `unit` apart. An element y is off by at most (relative + |scale·x −
# max|)·unit·y before any rounding to 16 bits, plus the smallest number. In 16 bits an exponential
# with fewer terms is accurate enough. The float64 reference rounds scale·x too, which costs up to
# |scale·x| units more if the arithmetic is float64.
#
# A derivative scale·(u∘v − u⟨v,w⟩ − …) rounds every product and every sum within it by half a unit:
# `steps` of them for an element. ⟨a,b⟩ has one rounding for the product and one for each addition
# of the tree (32 rows of 32 lanes, then chunks of 1024), relative to ⟨|a|,|b|⟩.
BOUNDS: dict[str, Any] = {
    "relative": {"float16": 48.0, "bfloat16": 256.0, "float32": 2.0, "float64": 4.0},
    "unit": {"float32": 2.0**-23, "float64": 2.0**-52},
    "steps": 5,
    "chunk": 1024,
    "chunk_additions": 10,
}
BOUNDS_IN_WORDS = (
    "Bounds on the relative error of a value before its last rounding: "
    "(c + |scale·x − max|)·2⁻²³, c = {float32:g} for float32, {float16:g} for float16, "
    "{bfloat16:g} for bfloat16; in float64 (c + |scale·x − max|)·2⁻⁵², c = {float64:g}. A "
    "derivative may be off by the rounding of each of its operations.".format(**BOUNDS["relative"])
)


@dataclass(frozen=True)
class Approximate:
    """Values, their errors to first order, and their natural unit of error."""

    values: Array
    error: Array | float = 0.0
    unit: Array | float = 0.0


def arithmetic_of(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def value(x: Array, mask: Array | None, scale: float, causal: bool, dtype: str) -> Truth:
    """Returns softmax(scale·x) of the visible elements."""
    arithmetic = arithmetic_of(dtype)
    unit = BOUNDS["unit"][arithmetic]
    y = reference(x, mask, scale, causal)
    with np.errstate(all="ignore"):
        largest = np.max(y, axis=-1, keepdims=True, initial=0.0)
        below = np.where(y > 0, np.log(largest) - np.log(y), 0.0)  # max − scale·x
        relative = BOUNDS["relative"][dtype] + below
        if arithmetic == "float64":
            size = np.where(y > 0, np.abs(scale * np.asarray(x, np.float64)), 0.0)
            relative = relative + size + np.max(size, axis=-1, keepdims=True, initial=0.0)
        allowed = relative * unit * y + FORMATS[arithmetic].least
    return Truth(y, FORMATS[arithmetic].ulp(y), allowed)


def jacobian(y: Array, v: Approximate, scale: float, causal: bool, arithmetic: str) -> Truth:
    """Returns scale·(y∘v − y⟨v,y⟩), where v may have errors; exactly 0 where y is 0."""
    u, size = np.abs(y), np.abs(v.values)
    visible = visible_columns(np.shape(y), causal) & (y != 0.0)
    values = derivative_reference((y, v.values, y), (True, True, False, False), scale, visible)
    with np.errstate(all="ignore"):
        present = u > 0
        error, size = np.where(present, v.error, 0.0), np.where(present, size, 0.0)
        dot = _sum(u * size)
        dot_error = _dot_rounding(y.shape[-1], arithmetic) * dot + _sum(u * error)
        rounding = 0.5 * BOUNDS["unit"][arithmetic] * BOUNDS["steps"]
        allowed = u * (dot_error + error + rounding * (size + dot))
        carried = np.where(present, v.unit, 0.0)
        unit = np.where(present, FORMATS[arithmetic].ulp(size + dot) + carried, 0.0)
        unit = u * (unit + _sum(u * carried))
    return _scaled(values, unit, allowed, u, scale, arithmetic)


def towards_y(y: Array, g: Array, h: Array, scale: float, causal: bool, arithmetic: str) -> Truth:
    """Returns scale·(h∘g − h⟨g,y⟩ − g⟨h,y⟩), the gradient of ⟨h, jacobian(y)·g⟩ towards y."""
    visible = visible_columns(np.shape(y), causal)
    values = derivative_reference((h, g, y), (True, True, True, False), scale, visible)
    with np.errstate(all="ignore"):
        y, g, h = np.abs(y), np.abs(g), np.abs(h)
        with_g, with_h = _sum(g * y), _sum(h * y)
        sizes = h * g + h * with_g + g * with_h
        rounding = 0.5 * BOUNDS["unit"][arithmetic] * BOUNDS["steps"]
        dots = _dot_rounding(y.shape[-1], arithmetic) * (h * with_g + g * with_h)
        allowed = dots + rounding * sizes
    return _scaled(values, FORMATS[arithmetic].ulp(sizes), allowed, h + g, scale, arithmetic)


def visible_columns(shape: tuple[int, ...], causal: bool) -> Array:
    """Returns booleans that broadcast to `shape`, True for elements that the causal rule shows."""
    if not causal:
        return np.ones((1,) * len(shape), bool)
    rows, columns = shape[-2:]
    return np.arange(columns) <= np.arange(rows)[:, None] + (columns - rows)


def reference(x: Array, mask: Array | None, scale: float, causal: bool) -> Array:
    """Returns softmax(scale·x) of the visible elements in float64, 0 for the others."""
    shape = np.shape(x)
    visible = np.broadcast_to(visible_columns(shape, causal), shape)
    if mask is not None:
        visible = visible & (np.broadcast_to(np.asarray(mask), shape) == 0)
    with np.errstate(all="ignore"):
        z = np.where(visible, scale * np.asarray(x, np.float64), -np.inf)
        largest = np.max(z, axis=-1, keepdims=True, initial=-np.inf)
        shift = np.where(largest == -np.inf, 0.0, largest)
        e = np.where(visible, np.exp(z - shift), 0.0)
        total = _sum(e)
        return np.where(visible & (total != 0.0), e / total, 0.0)


def derivative_reference(
    operands: tuple[Array, Array, Array], terms: tuple[bool, ...], scale: float, visible: Array
) -> Array:
    """Returns scale·(u∘v − u⟨v,w⟩ − v⟨u,w⟩ − w⟨u,v⟩), the terms that are asked for."""
    u, v, w = (np.where(visible, each, 0.0) for each in operands)
    product, *factors = terms
    with np.errstate(all="ignore"):
        total = u * v if product else np.zeros(np.shape(u))
        for factor, others, is_asked in zip(
            (u, v, w), ((v, w), (u, w), (u, v)), factors, strict=True
        ):
            if is_asked:
                total = total - factor * _sum(others[0] * others[1])
        return np.where(visible, scale * total, 0.0)


def _scaled(
    values: Array, unit: Array, allowed: Array, factor: Array, scale: float, arithmetic: str
) -> Truth:
    """Returns the truth with errors times scale, plus earlier underflows."""
    least = FORMATS[arithmetic].least * max(1.0, abs(scale))
    with np.errstate(all="ignore"):
        underflow = least * (4.0 + values.shape[-1] * np.where(np.isfinite(factor), factor, 0.0))
        if arithmetic == "float64":
            allowed = 2.0 * allowed  # the reference has as many roundings
        return Truth(values, abs(scale) * unit, abs(scale) * allowed + underflow)


def _sum(values: Array) -> Array:
    return values.sum(axis=-1, keepdims=True)


def _dot_rounding(columns: int, arithmetic: str) -> float:
    """Returns the error of ⟨a,b⟩ relative to ⟨|a|,|b|⟩."""
    chunks = max(1, math.ceil(columns / BOUNDS["chunk"]))
    additions = BOUNDS["chunk_additions"] + math.ceil(math.log2(chunks))
    return 0.5 * BOUNDS["unit"][arithmetic] * (additions + 1)


class Judge(grid.Judge):
    """The true values of a case; a derivative is judged from the measured value."""

    def __init__(
        self, dtype: str, shape: grid.Shape, scale: float, causal: bool, given: grid.Operands
    ) -> None:
        self.dtype, self.shape, self.given = dtype, shape, given
        self.scale, self.causal = scale, causal
        self.arithmetic = arithmetic_of(dtype)

    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        with np.errstate(all="ignore"):
            return of_elements(results[quantity], self._truth(quantity, results), self.dtype)

    def _truth(self, quantity: str, results: Mapping[str, Array]) -> Truth:
        p, how = self.given, (self.scale, self.causal)
        x = p["x"]
        assert x is not None
        if quantity == "forward":
            return value(x, p["mask"], *how, self.dtype)
        y = results["forward"].astype(np.float64)

        def given(name: str) -> Array:
            array = p[name]
            assert array is not None
            return array.astype(np.float64)

        direction = {"dx": "g", "jvp": "t_x", "d2g": "v_x"}
        if quantity in direction:
            return jacobian(y, Approximate(given(direction[quantity])), *how, self.arithmetic)
        inner = towards_y(y, given("g"), given("v_x"), *how, self.arithmetic)
        ulp = FORMATS[self.dtype].ulp(inner.values)
        error = inner.allowed + (0.5 * ulp if FORMATS[self.dtype].bits < 24 else 0.0)
        v = Approximate(inner.values, error, np.maximum(inner.unit, ulp))
        return jacobian(y, v, *how, self.arithmetic)

    def misplaced(self, result: Array) -> int:
        """Counts hidden elements that are not +0."""
        hidden = np.zeros(self.shape, bool)
        if self.causal:
            hidden |= ~visible_columns(self.shape, True)
        if (mask := self.given["mask"]) is not None:
            hidden |= np.broadcast_to(mask != 0, self.shape)
        bits = np.ascontiguousarray(result).view(f"u{result.itemsize}")
        return int(np.count_nonzero(bits[hidden]))
