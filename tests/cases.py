"""Every op as called in both frameworks, and its values and derivatives in float64.

The exact results are written here from the formulas of the contract, derivatives included, without
an op's own derivative rules. Derivatives of softmax are taken at the value that the op itself
returned, because its backward pass uses only that value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.lang.gelu_reference import gelu_derivative
from bridge.lang.philox import words
from tests.frameworks import EPSILON, FORMS, Everything, numpy_dtype
from tests.softmax_reference import reference


@dataclass(frozen=True)
class Exact:
    """A result in float64, and the allowed error of arithmetic before the last rounding."""

    values: Any
    allowed: Any


@dataclass(frozen=True)
class Inputs:
    """Arrays for a case: the arguments of `everything` in tests/frameworks.py."""

    arguments: list[Any]
    cotangent: Any
    tangents: list[Any]
    directions: list[Any]


class Case:
    """A function of arrays that are all differentiated."""

    shape: tuple[int, ...]

    def argument_shapes(self) -> list[tuple[int, ...]]:
        raise NotImplementedError

    def function(self, framework: Any) -> Callable[..., Any]:
        raise NotImplementedError

    def result_dtype(self, dtypes: list[str]) -> str:
        """Returns the dtype of the result for arguments of these dtypes."""
        return dtypes[0]

    def draw(self, rng: np.random.Generator, *dtypes: str) -> Inputs:
        """Draws random arguments of one dtype, or of one dtype each."""
        shapes = self.argument_shapes()
        own = list(dtypes) if len(dtypes) > 1 else list(dtypes) * len(shapes)

        def normal(spread: float) -> list[Any]:
            drawn = [rng.standard_normal(shape) * spread for shape in shapes]
            return [
                np.asarray(array, numpy_dtype(dtype))
                for array, dtype in zip(drawn, own, strict=True)
            ]

        result = numpy_dtype(self.result_dtype(own))
        cotangent = np.asarray(rng.standard_normal(self.shape), result)
        return Inputs(normal(2.0), cotangent, normal(1.0), normal(1.0))

    def compared(self, result: Any) -> Any:
        """Returns the part of a result whose bits are the op's own."""
        return result

    def exact(self, inputs: Inputs, value: Any) -> Everything:
        """Returns all results as `Exact`; derivatives of softmax are taken at `value`."""
        raise NotImplementedError


def unit_of(*arrays: Any) -> float:
    """Returns a unit in the last place of 1.0 in the arithmetic of a call with these operands."""
    if any(array.dtype == np.float64 for array in arrays):
        # The reference has as many roundings as the op.
        return 2 * EPSILON["float64"]
    return EPSILON["float32"]


def name_of(dtype: Any) -> str:
    return str(np.dtype(dtype).name)


def wide(*arrays: Any) -> list[Any]:
    return [np.asarray(array, np.float64) for array in arrays]


def column_sums(array: Any) -> Any:
    return array.sum(axis=tuple(range(array.ndim - 1)))


@dataclass(frozen=True)
class BiasGelu(Case):
    shape: tuple[int, ...]
    form: str = "tanh"

    def __str__(self) -> str:
        return f"bias_gelu {self.form} {list(self.shape)}"

    def argument_shapes(self) -> list[tuple[int, ...]]:
        return [self.shape, self.shape[-1:]]

    def function(self, framework: Any) -> Callable[..., Any]:
        return lambda x, b: framework.ops.bias_gelu(x, b, approximate=self.form)

    def result_dtype(self, dtypes: list[str]) -> str:
        x, bias = dtypes
        if x == bias:
            return x
        return "float64" if "float64" in dtypes else "float32"

    def exact(self, inputs: Inputs, value: Any) -> Everything:
        x, bias = inputs.arguments
        unit = unit_of(x, bias)
        if x.dtype == bias.dtype and x.dtype.itemsize == 2:
            # If all arrays are 16-bit, shorter polynomials are accurate enough.
            unit = 2.0**-7 * EPSILON[name_of(x.dtype)]
        if np.float64 in (x.dtype, bias.dtype):
            # The reference loses units in the tails as the exponent grows; the C++ accuracy program
            # compares float64 with quadruple precision.
            unit *= 32

        arithmetic = np.float64 if np.float64 in (x.dtype, bias.dtype) else np.float32

        def sums(own: Any, other: Any) -> Any:
            """Returns a sum with one rounding in the arithmetic type, which is the op's input."""
            return (own.astype(arithmetic) + other.astype(arithmetic)).astype(np.float64)

        h, along, direction = sums(x, bias), sums(*inputs.tangents), sums(*inputs.directions)
        (g,) = wide(inputs.cotangent)
        first, second = gelu_derivative(h, self.form, 1), gelu_derivative(h, self.form, 2)
        y = gelu_derivative(h, self.form, 0)

        def near_zero(values: Any, scale: Any, units: float) -> Exact:
            # Near zeros of a derivative its absolute error is bounded, and the factors scale it.
            return Exact(values, units * unit * np.maximum(np.abs(values), np.abs(scale)))

        def summed(rows: Exact) -> Exact:
            return Exact(column_sums(rows.values), column_sums(rows.allowed))

        dx = near_zero(first * g, 0.25 * g, 2.5)
        curved = near_zero(second * g * direction, g * direction, 6.0)
        value_exact = Exact(y, 2.5 * unit * np.abs(y))
        return Everything(
            value_exact,
            value_exact,
            [dx, summed(dx)],
            near_zero(first * along, 0.25 * along, 4.0),
            [curved, summed(curved), near_zero(first * direction, 0.25 * direction, 4.0)],
        )


@dataclass(frozen=True)
class Softmax(Case):
    """Any of the three functions; `mask` is the shape of a mask with about a third of True."""

    shape: tuple[int, ...]
    mask: tuple[int, ...] | None = None
    causal: bool = False
    scale: float = 1.0
    mask_dtype: str = "bool"

    def __str__(self) -> str:
        kind = "causal softmax" if self.causal else "softmax"
        mask = "" if self.mask is None else f" {self.mask_dtype}{list(self.mask)}"
        return f"{kind} {list(self.shape)}{mask} {self.scale}"

    def argument_shapes(self) -> list[tuple[int, ...]]:
        return [self.shape]

    def hidden(self) -> Any:
        """Returns the mask; if it has several rows, the first hides all of its columns."""
        assert self.mask is not None
        rng = np.random.default_rng(len(str(self)))
        mask = np.asarray(rng.random(self.mask) < 0.35)
        if mask.size > 1 and mask.shape[-1] != mask.size:
            mask.reshape(-1, mask.shape[-1])[0] = True
        if self.mask_dtype == "bool":
            return mask
        # Every non-zero byte hides, whichever bits are set.
        return np.asarray(mask * rng.choice([1, 2, 16, 128, 254, 255], self.mask), np.uint8)

    def function(self, framework: Any) -> Callable[..., Any]:
        if self.causal:
            return lambda x: framework.ops.scaled_causal_softmax(x, self.scale)
        if self.mask is None:
            return lambda x: framework.ops.scaled_softmax(x, self.scale)
        mask = self.hidden()
        return lambda x: framework.ops.scaled_masked_softmax(x, framework.array(mask), self.scale)

    def visible(self) -> Any:
        everything = np.ones(self.shape, bool)
        if self.causal:
            rows, columns = self.shape[-2:]
            return everything & np.tri(rows, columns, columns - rows, dtype=bool)
        return everything if self.mask is None else everything & (self.hidden() == 0)

    def exact(self, inputs: Inputs, value: Any) -> Everything:
        (x,) = inputs.arguments
        dtype, unit = name_of(x.dtype), unit_of(x)
        mask = None if self.mask is None else self.hidden()
        y, g, t, v = wide(value, inputs.cotangent, inputs.tangents[0], inputs.directions[0])

        def dot(a: Any, b: Any) -> Any:
            return np.where(y == 0, 0.0, a * b).sum(-1, keepdims=True)

        def jacobian(v: Any) -> Any:
            """Returns scale·y·(v − ⟨v, y⟩); elements with y = 0 give and get nothing."""
            return np.where(y == 0, 0.0, self.scale * y * (v - dot(v, y)))

        def size(v: Any) -> Any:
            return np.where(y == 0, 0.0, abs(self.scale) * y * (np.abs(v) + dot(np.abs(v), y)))

        def along(v: Any) -> Exact:
            return Exact(jacobian(v), 8 * unit * size(v))

        # ⟨v, jacobian(g)⟩ as a function of y, and then of x.
        towards_y = self.scale * (v * g - v * dot(g, y) - g * dot(v, y))
        of_y = abs(self.scale) * (
            np.abs(v * g) + np.abs(v) * dot(np.abs(g), y) + np.abs(g) * dot(np.abs(v), y)
        )
        rounded = EPSILON[dtype] * np.abs(towards_y) + 8 * unit * of_y
        curved = Exact(jacobian(towards_y), size(rounded) + 8 * unit * size(of_y))
        exact_value = Exact(reference(x, mask, self.scale, self.causal), self._allowed(x, unit))
        second = [curved, along(v)]
        return Everything(exact_value, exact_value, [along(g)], along(t), second)

    def _allowed(self, x: Any, unit: float) -> Any:
        """Returns (2 + |scale·x − max|)·2⁻²³·y, or more for shorter polynomials in 16 bits."""
        z = np.where(self.visible(), self.scale * x.astype(np.float64), -np.inf)
        largest = z.max(axis=-1, keepdims=True, initial=-np.inf)
        below = np.where(np.isfinite(z) & np.isfinite(largest), largest - z, 0.0)
        e = np.where(z == -np.inf, 0.0, np.exp(-below))
        total = np.maximum(e.sum(-1, keepdims=True), 1.0)
        short = 2.0**-7 * EPSILON[name_of(x.dtype)] if x.dtype.itemsize == 2 else 0.0
        return ((2.0 + below) * unit + short) * e / total


@dataclass(frozen=True)
class BiasDropoutAdd(Case):
    shape: tuple[int, ...]
    p: float = 0.1
    bias: bool = True
    residual: bool = True
    seed: int = 20_231_117
    offset: int = 0
    training: bool = True

    def __str__(self) -> str:
        parts = (
            " bias" * self.bias + " residual" * self.residual + " inference" * (not self.training)
        )
        where = f" seed {self.seed}" * (self.seed != 20_231_117) + f" +{self.offset}"
        return f"dropout {list(self.shape)} p={self.p}{parts}{where}"

    def argument_shapes(self) -> list[tuple[int, ...]]:
        return [self.shape, *[self.shape[-1:]] * self.bias, *[self.shape] * self.residual]

    def function(self, framework: Any) -> Callable[..., Any]:
        options = {
            "p": self.p,
            "seed": self.seed,
            "offset": self.offset,
            "training": self.training,
        }

        def call(x: Any, *rest: Any) -> Any:
            bias, residual = self._named(rest)
            return framework.ops.bias_dropout_add(x, bias, residual, **options)

        return call

    def _named(self, rest: Any) -> tuple[Any, Any]:
        rest = list(rest)
        bias = rest.pop(0) if self.bias else None
        return bias, rest.pop(0) if self.residual else None

    def result_dtype(self, dtypes: list[str]) -> str:
        return dtypes[-1] if self.residual else dtypes[0]

    def kept(self) -> Any:
        """Returns the mask of kept elements: the threshold has 32 bits."""
        place = np.arange(math.prod(self.shape), dtype=np.uint64)
        drawn = words(self.seed % 2**64, self.offset % 2**64, place)
        return (drawn >= round(self.p * 2.0**32)).reshape(self.shape)

    def exact(self, inputs: Inputs, value: Any) -> Everything:
        unit = unit_of(*inputs.arguments)
        (g,) = wide(inputs.cotangent)
        drops = self.training and self.p > 0
        keep = self.kept() if drops else np.ones(self.shape, bool)
        factor = 1.0 / (1.0 - self.p) if drops and self.p < 1 else 1.0

        def dropped(h: Any) -> Any:
            return np.where(keep, h * factor, 0.0)

        def apply(operands: list[Any], roundings: float = 0.0) -> Exact:
            x, *rest = wide(*operands)
            bias, residual = self._named(rest)
            h = x if bias is None else x + bias
            t = dropped(h)
            y = t if residual is None else residual + t
            # Without drops the cotangent is passed on: x's part and the bias's arrive separately.
            summands = np.abs(t) if drops or bias is None else np.abs(x) + np.abs(bias)
            error = unit * (3 * np.abs(t) + np.abs(y)) + roundings * (summands + np.abs(y))
            return Exact(y, np.where(keep, error, 0.0))

        value_exact = apply(inputs.arguments)
        dx = dropped(g)
        gradients = [Exact(dx, 2 * unit * np.abs(dx))]
        if self.bias:
            gradients.append(Exact(column_sums(dx), 4 * unit * column_sums(np.abs(dx))))
        if self.residual:
            gradients.append(Exact(g, 0 * g))
        # The op is linear. For the cotangent, the framework adds the parts from x and bias to the
        # part from the residual: one more rounding.
        zeros = [Exact(np.zeros(a.shape), np.zeros(a.shape)) for a in inputs.arguments]
        extra = EPSILON[name_of(inputs.cotangent.dtype)] if self.residual else 0.0
        again = apply(inputs.directions, extra)
        return Everything(
            value_exact, value_exact, gradients, apply(inputs.tangents), [*zeros, again]
        )


GELU = (
    *(BiasGelu(shape) for shape in [(0, 8), (3, 0), (1, 1), (1,), (5, 3), (300, 1)]),
    *(BiasGelu(shape, form) for form in FORMS for shape in [(7,), (127, 33), (2, 65, 17)]),
)

SOFTMAXES = (
    Softmax((4,)),
    Softmax((1, 1), scale=-3.0),
    Softmax((5, 1), scale=0.5),
    Softmax((0, 5)),
    Softmax((3, 0)),
    Softmax((3, 5, 33), scale=-0.7),
    Softmax((2, 3, 4, 70), scale=0.125),
    Softmax((2, 4, 6), scale=0.0),
    Softmax((7,), (7,), scale=2.0),
    Softmax((7,), (), mask_dtype="uint8"),
    Softmax((5, 1), (5, 1), scale=0.5),
    Softmax((2, 3, 4, 35), (2, 3, 4, 35), scale=0.3),
    Softmax((2, 3, 4, 35), (2, 1, 4, 35), scale=0.3, mask_dtype="uint8"),
    Softmax((2, 3, 4, 35), (2, 1, 1, 35), scale=-1.3),
    Softmax((2, 3, 4, 35), (2, 1, 4, 1), mask_dtype="uint8"),
    Softmax((2, 3, 4, 35), (1, 3, 1, 1)),
    Softmax((2, 3, 4, 35), (4, 35), scale=0.3),
    Softmax((2, 3, 4, 35), (3, 1, 35), mask_dtype="uint8"),
    Softmax((2, 3, 4, 5), (2, 1, 4, 5), scale=0.3, mask_dtype="uint8"),
    Softmax((2, 3, 4, 5), (1, 3, 4, 1), scale=0.3),
    Softmax((2, 0, 5), (5,)),
    Softmax((1, 1), causal=True),
    Softmax((2, 6, 6), causal=True, scale=0.5),
    Softmax((3, 8), causal=True, scale=-0.5),
    Softmax((2, 8, 3), causal=True, scale=0.5),
    Softmax((9, 1), causal=True),
    Softmax((1, 40), causal=True),
    Softmax((2, 40, 41), causal=True, scale=2.0),
    Softmax((3, 50, 37), causal=True, scale=2.0),
    Softmax((0, 3), causal=True),
)

DROPOUTS = (
    BiasDropoutAdd((5, 3), 0.0),
    BiasDropoutAdd((5, 3), 0.5),
    BiasDropoutAdd((5, 3), 1.0),
    BiasDropoutAdd((5, 3), 0.5, training=False),
    BiasDropoutAdd((1,), 0.3),
    BiasDropoutAdd((17,), 0.3, bias=False),
    BiasDropoutAdd((6, 1), 0.3, residual=False),
    BiasDropoutAdd((0, 8), 0.3),
    BiasDropoutAdd((3, 0), 0.3, residual=False),
    # Enough elements that a probability of 8 bits would keep others.
    BiasDropoutAdd((61, 67), 0.1),
    BiasDropoutAdd((61, 67), 1 / 512, bias=False, residual=False),
    BiasDropoutAdd((2, 65, 17), 0.9, residual=False, offset=3),
    BiasDropoutAdd((2, 65, 17), 0.0, bias=False),
    BiasDropoutAdd((2, 65, 17), 1.0, residual=False),
    BiasDropoutAdd((129, 64), 0.5, residual=False, seed=-5),
    BiasDropoutAdd((33, 100), 0.25, bias=False, seed=2**64 - 1, offset=2**63 + 1),
)

CASES: tuple[Case, ...] = (*GELU, *SOFTMAXES, *DROPOUTS)

# Dtypes of x, bias and residual that the contract allows to differ.
MIXED: tuple[tuple[Case, tuple[str, ...]], ...] = (
    (BiasGelu((150, 9)), ("bfloat16", "float32")),
    (BiasGelu((150, 9)), ("float16", "bfloat16")),
    (BiasGelu((150, 9)), ("float32", "float16")),
    (BiasGelu((150, 9)), ("float64", "bfloat16")),
    (BiasGelu((150, 9)), ("bfloat16", "float64")),
    (BiasDropoutAdd((150, 9), 0.3, residual=False), ("bfloat16", "float32")),
    (BiasDropoutAdd((150, 9), 0.3, residual=False), ("float32", "float16")),
    (BiasDropoutAdd((150, 9), 0.3, residual=False), ("float16", "float64")),
    (BiasDropoutAdd((150, 9), 0.3, bias=False), ("bfloat16", "float32")),
    (BiasDropoutAdd((150, 9), 0.3, bias=False), ("float32", "bfloat16")),
    (BiasDropoutAdd((150, 9), 0.3), ("bfloat16", "float32", "bfloat16")),
    (BiasDropoutAdd((150, 9), 0.3), ("float32", "float16", "bfloat16")),
    (BiasDropoutAdd((150, 9), 0.3), ("float16", "bfloat16", "float64")),
    (BiasDropoutAdd((150, 9), 0.0), ("bfloat16", "bfloat16", "float32")),
    (BiasDropoutAdd((150, 9), 1.0), ("bfloat16", "bfloat16", "float32")),
)
