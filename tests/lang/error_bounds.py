"""Bounds on the error of a program's results against the float64 reference, element by element.

Each value has the reference's numbers, and a bound on the distance of a kernel's numbers from them.
The bound is infinite if nothing can be promised: for a comparison of numbers that are closer than
their errors, a division by a possible zero, or an overflow that only one of the two has. Values
computed from such an element have infinite bounds too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.lang import philox, reference, roles
from bridge.lang.gelu_reference import gelu_derivative
from bridge.lang.program import REDUCTIONS, Node, Program, constant_of

Numbers = Any

# Half a unit in the last place of 1, half the smallest positive number, and the largest number.
_FORMATS = {
    "float16": (2.0**-11, 2.0**-25, 65504.0),
    "bfloat16": (2.0**-8, 2.0**-134, 3.38e38),
    "float32": (2.0**-24, 2.0**-150, 3.4e38),
    "float64": (2.0**-53, 2.0**-1074, 1.79e308),
}
_OF_REFERENCE = 2.0**-53
_NEARLY = 1 - 2.0**-9  # near the largest number one of the two may overflow alone

# Roundings of an operation in halves of a unit; others are exact, or have 2 units.
_ROUNDINGS = {"add": 1, "sub": 1, "mul": 1, "div": 1, "fma": 1, "sqrt": 1, "float": 1, "rsqrt": 2.5}
_EXACT = frozenset({"neg", "abs", "minimum", "maximum", "stop_gradient"})
_OTHERWISE = 4.0
# Bounds on the derivatives of functions that are not monotone.
_LIPSCHITZ = {"silu": 1.1, "gelu": 2.0, "abs": 1.0, "silu_slope": 0.5, "sin": 1.0, "cos": 1.0}
# Errors of functions for 16-bit results: relative, and absolute where they underflow.
_ROUGH = {"float16": (2.0**-18.5, 2.0**-45), "bfloat16": (2.0**-14.7, 2.0**-134)}


@dataclass(frozen=True)
class Bounded:
    """Numbers of the reference, and bounds of a kernel's errors: 0 or infinite unless floats."""

    value: Numbers
    error: Numbers

    @property
    def unknown(self) -> Numbers:
        return np.isinf(self.error)

    def ends(self) -> tuple[Numbers, Numbers]:
        return self.value - self.error, self.value + self.error


def _spread(bounded: Bounded, shape: tuple[int, ...]) -> Bounded:
    return Bounded(np.broadcast_to(bounded.value, shape), np.broadcast_to(bounded.error, shape))


class _Arithmetic:
    """The rules of one arithmetic type."""

    def __init__(self, dtype: str) -> None:
        self.half_unit, self.tiny, self.largest = _FORMATS[dtype]

    def rounded(self, value: Numbers, error: Numbers, magnitude: Numbers, halves: float) -> Bounded:
        """Returns a finite value after `halves` half-unit roundings at most at `magnitude`."""
        rounding = magnitude * (halves * self.half_unit + 16 * _OF_REFERENCE) + 8 * self.tiny
        error = np.where(error > 0, error * (1 + 1e-9), 0.0) + rounding
        error = np.where(magnitude + error > self.largest * _NEARLY, np.inf, error)
        return Bounded(value, np.where(np.isnan(error), np.inf, error))

    def monotone(
        self, function: Callable[..., Numbers], inputs: Sequence[Bounded], halves: float
    ) -> Bounded:
        """Returns a function that is monotone in each input, from the corners of the box."""
        value = np.asarray(function(*(x.value for x in inputs)), np.float64)
        corners = [
            np.asarray(function(*ends)) for ends in itertools.product(*(x.ends() for x in inputs))
        ]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        finite = np.isfinite(low) & np.isfinite(high) & np.isfinite(value)
        same = (low == value) & (high == value) | np.isnan(value) & np.logical_and.reduce(
            [np.isnan(corner) for corner in corners]
        )
        magnitude = np.maximum(np.abs(low), np.abs(high))
        error = np.maximum(high - value, value - low)
        if halves:
            error = self.rounded(value, error, magnitude, halves).error
        error = np.where(finite, error, np.where(same, 0.0, np.inf))
        return self.without(Bounded(value, error), inputs)

    def without(self, bounded: Bounded, inputs: Sequence[Bounded]) -> Bounded:
        """Returns the value with unknown elements where an input is unknown."""
        unknown = np.isinf(bounded.error)
        for x in inputs:
            unknown = unknown | x.unknown
        value, unknown = np.broadcast_arrays(bounded.value, unknown)
        error = np.broadcast_to(bounded.error, value.shape)
        return Bounded(value, np.where(unknown, np.inf, error))

    # ---- Operations ----

    def apply(self, node: Node, inputs: Sequence[Bounded]) -> Bounded:
        operation = node.operation
        if operation in ("lt", "le", "eq", "ne"):
            return self.compared(node, *inputs)
        if operation in ("and", "or", "not") or node.dtype == "int":
            function = reference.formula_of(node)
            value = np.asarray(function(*(x.value for x in inputs)))
            return self.without(Bounded(value, np.zeros(value.shape)), inputs)
        if operation == "where":
            condition, x, y = inputs
            value = np.where(condition.value, x.value, y.value)
            error = np.where(condition.value, x.error, y.error)
            return self.without(Bounded(value, error), [condition])
        if operation == "gauss":
            function = lambda x: np.exp(-node.static * x * x)  # noqa: E731
            x = inputs[0]
            low = np.maximum(np.abs(x.value) - x.error, 0)
            middle = Bounded(np.abs(x.value), np.where(x.error > 0, np.abs(x.value) - low, 0))
            falling = self.monotone(function, [middle], _OTHERWISE)
            rising = self.monotone(function, [Bounded(np.abs(x.value), x.error)], _OTHERWISE)
            # The reference rounds x², with an error relative to the exponent.
            own = falling.value * (4 * _OF_REFERENCE * x.value**2)
            error = np.maximum(falling.error, rising.error) + np.where(np.isfinite(own), own, 0)
            return self.without(Bounded(falling.value, error), inputs)
        if operation in _LIPSCHITZ:
            return self.smooth(node, inputs[0])
        function = reference.formula_of(node)
        halves = 0.0 if operation in _EXACT else _ROUNDINGS.get(operation, _OTHERWISE)
        if operation == "sigmoid" and node.static:
            halves = _ROUGH[node.static][0] / self.half_unit
        bounded = self.monotone(function, inputs, halves)
        if operation in ("div", "rsqrt"):
            low, high = inputs[-1].ends()
            zero = (low <= 0) & (high >= 0)
            return Bounded(bounded.value, np.where(zero, np.inf, bounded.error))
        if operation == "fma":
            # The reference rounds the product, and may overflow.
            product = np.abs(inputs[0].value * inputs[1].value)
            ends = [np.abs(x.value) + x.error for x in inputs]
            overflows = (ends[0] * ends[1] > 1e308) & (ends[0] < np.inf) & (ends[1] < np.inf)
            own = np.where(np.isfinite(product), 2 * _OF_REFERENCE * product, 0.0)
            return Bounded(bounded.value, np.where(overflows, np.inf, bounded.error + own))
        return bounded

    def compared(self, node: Node, x: Bounded, y: Bounded) -> Bounded:
        value = reference.formula_of(node)(x.value, y.value)
        if np.asarray(x.value).dtype.kind in "iu":
            return self.without(Bounded(value, np.zeros(value.shape)), [x, y])
        (low, high), (below, above) = x.ends(), y.ends()
        apart = (high < below) | (low > above) | np.isnan(x.value) | np.isnan(y.value)
        exact = (x.error == 0) & (y.error == 0)
        return self.without(Bounded(value, np.where(apart | exact, 0.0, np.inf)), [x, y])

    def smooth(self, node: Node, x: Bounded) -> Bounded:
        dtype = ""
        if node.operation == "gelu":
            kind, order, *dtypes = node.static
            value, dtype = gelu_derivative(x.value, kind, order), "".join(dtypes)
        else:
            value = reference.formula_of(node)(x.value)
            dtype = node.static or ""
        error = _LIPSCHITZ[node.operation] * x.error
        if node.operation in ("sin", "cos"):  # of an angle with an error of several turns
            error = np.where(np.isfinite(error), np.minimum(error, 2.0), error)
        if dtype:
            own = np.abs(value) * _ROUGH[dtype][0] + _ROUGH[dtype][1]
            own = own + (node.operation == "silu_slope") * 2.0**-25
            is_zero = (x.value == 0) & (value == 0)  # zero is exact
            error = error + np.where(np.isfinite(own) & ~is_zero, own, 0.0)
        if node.operation != "abs":
            rounded = self.rounded(value, error, np.abs(value) + error, _OTHERWISE).error
            error = np.where(np.isfinite(value), rounded, error)
        if node.operation == "silu":
            # The reference multiplies by a sigmoid that may be subnormal.
            error = error + np.where(np.isfinite(value), np.abs(x.value) * 2.0**-1073, 0.0)
        if node.operation == "gelu":
            # Where its derivatives cross zero, the units are those near 1.
            own = (node.static[1] > 0) * 4 * self.half_unit + 2.0**-45 * (1 + np.abs(x.value))
            error = error + np.where(np.isfinite(own) & (x.value != 0), own, 0.0)
        return self.without(Bounded(value, error), [x])

    # ---- Reductions ----

    def summed(self, x: Bounded, axis: int, depth: float) -> Bounded:
        """Returns a sum in a tree of that depth; the reference may add in sequence."""
        value = np.sum(x.value, axis=axis, keepdims=True)
        finite = np.isfinite(x.value)
        reach = np.sum(np.where(finite, np.abs(x.value) + x.error, 0), axis=axis, keepdims=True)
        error = np.sum(x.error, axis=axis, keepdims=True)
        count = x.value.shape[axis]
        rounding = reach * (depth * self.half_unit + (count + 16) * _OF_REFERENCE)
        error = error + np.where(reach > 0, rounding, 0.0) * (count > 1)
        error = np.where(np.isfinite(value) | np.isinf(error), error, 0.0)
        return Bounded(value, np.where(reach > self.largest * _NEARLY, np.inf, error))

    def rest_of_logsumexp(self, x: Bounded, largest: Bounded) -> Bounded:
        value = reference._logsumexp_rest(x.value, largest.value)
        levels = math.log2(max(x.value.shape[-1], 2))
        moved = 2 * np.max(x.error, axis=-1, keepdims=True, initial=0.0)
        own = (30 + 2 * levels) * value * self.half_unit
        own = own + (x.value.shape[-1] + 30) * _OF_REFERENCE * (1 + np.abs(largest.value))
        error = np.where(np.isfinite(largest.value), moved + own, 0.0)
        return self.without(Bounded(value, error), [largest])

    def reduced(self, operation: str, x: Bounded) -> Bounded:
        count = x.value.shape[-1]
        levels = math.log2(max(count, 2))
        if operation == "sum":
            return self.summed(x, -1, 12 + levels)
        low, high = x.ends()
        unknown = np.any(x.unknown, axis=-1, keepdims=True)
        if operation == "argmax":
            value = reference._argmax(x.value)
            if count == 0:
                return Bounded(value, np.zeros(value.shape))
            largest = np.take_along_axis(low, value, -1)
            column = np.arange(count)[None, :]
            clear = np.where(column < value, high < largest, high <= largest) | (column == value)
            # The first NaN wins, whatever else the row has.
            first = np.isnan(np.take_along_axis(x.value, value, -1))
            known = np.all(clear, axis=-1, keepdims=True) | first
            return Bounded(value, np.where(known & ~unknown, 0.0, np.inf))
        function = reference._OTHERS[operation]
        value, low, high = function(x.value), function(low), function(high)
        error = np.maximum(high - value, value - low)
        if operation == "logsumexp" and count:
            largest = np.max(np.abs(x.value), axis=-1, keepdims=True)
            own = (30 + 2 * levels) * self.half_unit + (count + 30) * _OF_REFERENCE
            own = own + 4 * _OF_REFERENCE * largest
            error = self.rounded(value, error + own, np.abs(value), _OTHERWISE).error
        same = (low == value) & (high == value) | np.isnan(value)
        error = np.where(np.isfinite(value), error, np.where(same, 0.0, np.inf))
        return Bounded(value, np.where(unknown | np.isnan(error), np.inf, error))


def bounds_of(
    program: Program, operands: Sequence[Numbers], arithmetic: str, dtypes: Sequence[str]
) -> list[Bounded]:
    """Returns the reference's results, with bounds of a kernel's errors.

    Args:
      program, operands: as in `evaluate`.
      arithmetic: the type in which the kernel computes.
      dtypes: the dtypes of the results.
    """
    space = reference._space(program, operands)
    rows, columns = math.prod(space[:-1]), space[-1]
    loaded = [
        reference._loaded(operand.role, operand.dtype, np.asarray(array), space)
        for operand, array in zip(program.operands, operands, strict=True)
    ]
    rules = _Arithmetic(arithmetic)
    values: list[Bounded] = []
    with np.errstate(all="ignore"):
        for node in program.nodes:
            inputs = [values[i] for i in node.inputs]
            values.append(_of_node(rules, node, inputs, loaded, rows, columns))
        return [
            _of_result(rules, result, [values[i] for i in result.nodes], space, dtype)
            for result, dtype in zip(program.results, dtypes, strict=True)
        ]


def _of_node(
    rules: _Arithmetic,
    node: Node,
    inputs: Sequence[Bounded],
    loaded: Sequence[Sequence[Numbers]],
    rows: int,
    columns: int,
) -> Bounded:
    operation = node.operation
    if operation == "operand":
        position, half = node.static
        value = loaded[position][half]
    elif operation == "constant":
        value = np.asarray(constant_of(node))
        if node.dtype == "float" and np.isfinite(value):
            return rules.rounded(
                value, np.zeros(()), np.abs(value), float(value != np.float32(value))
            )
    elif operation == "column":
        value = np.arange(columns)[None, :]
    elif operation == "columns":
        value = np.asarray(columns, np.int64 if node.dtype == "int" else np.float64)
    elif operation == "keep":
        index = np.arange(rows * columns, dtype=np.uint64)
        words = philox.words(int(inputs[0].value), int(inputs[1].value), index)
        value = (words >= node.static).reshape(rows, columns)
    elif operation == "logsumexp_rest":
        return rules.rest_of_logsumexp(_spread(inputs[0], (rows, columns)), inputs[1])
    elif operation in REDUCTIONS:
        return rules.reduced(operation, _spread(inputs[0], (rows, columns)))
    elif operation == "float":
        number = inputs[0].value.astype(np.float64)
        bounded = rules.rounded(number, np.zeros(number.shape), np.abs(number), 1.0)
        return rules.without(bounded, inputs)
    else:
        return rules.apply(node, inputs)
    return Bounded(value, np.zeros(np.shape(value)))


def _of_result(
    rules: _Arithmetic, result: Any, values: list[Bounded], space: tuple[int, ...], dtype: str
) -> Bounded:
    rows, columns = math.prod(space[:-1]), space[-1]
    if result.role is roles.PerRow:
        found = _spread(values[0], (rows, 1))
        shape = space[:-1]
    else:
        whole = [_spread(value, (rows, columns)) for value in values]
        found, shape = whole[0], space
        if result.role is roles.Row:
            found, shape = rules.summed(found, 0, 20 + math.log2(max(rows, 2))), (columns,)
        if result.role is roles.Halves:
            shape = (*space[:-1], 2 * columns)
            found = Bounded(*(np.concatenate(part, axis=1) for part in _parts(whole)))
        if result.role is roles.Pairs:
            shape = (*space[:-1], 2 * columns)
            found = Bounded(*(np.stack(part, axis=-1) for part in _parts(whole)))
    stored = _Arithmetic(dtype).rounded(found.value, found.error, np.abs(found.value), 1.0)
    error = np.where(np.isfinite(found.value), stored.error, found.error)
    return Bounded(found.value.reshape(shape), error.reshape(shape))


def _parts(whole: Sequence[Bounded]) -> list[list[Numbers]]:
    return [[each.value for each in whole], [each.error for each in whole]]


def misses(bounded: Bounded, found: Numbers) -> Numbers:
    """Returns a mask of the elements whose error exceeds its bound."""
    found = np.asarray(found).astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.abs(found - bounded.value) <= bounded.error
    same = (found == bounded.value) | (np.isnan(found) & np.isnan(bounded.value))
    return ~(close | same | bounded.unknown)
