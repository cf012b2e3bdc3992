"""The cases: dtypes, forms, shapes, layouts and values that every quantity is compared on."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from bridge.ops.bias_gelu import FORMS, gelu_derivative
from bridge.ops.dtypes import FLOATING, promote

Array = np.ndarray
Shape = tuple[int, ...]

NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Layout:
    """How an array lies in memory: the shape of a dense array, and a view of it.

    The view is written in operations that NumPy, torch and JAX share, so that one line serves all.
    """

    name: str
    dense: Callable[[Shape], Shape]
    view: Callable[[Any, Shape], Any]


CONTIGUOUS = Layout("contiguous", lambda s: s, lambda a, s: a)
TRANSPOSED = Layout(
    "transposed", lambda s: (*s[:-2], s[-1], s[-2]), lambda a, s: a.swapaxes(-1, -2)
)
LEADING_SWAPPED = Layout(
    "leading dimensions swapped", lambda s: (s[1], s[0], *s[2:]), lambda a, s: a.swapaxes(0, 1)
)
EVERY_OTHER_ROW = Layout("every other row", lambda s: (2 * s[0], *s[1:]), lambda a, s: a[::2])
INNER_COLUMNS = Layout(
    "inner columns", lambda s: (*s[:-1], s[-1] + 3), lambda a, s: a[..., 1 : s[-1] + 1]
)
MISALIGNED = Layout("misaligned", lambda s: (int(np.prod(s)) + 1,), lambda a, s: a[1:].reshape(s))


@dataclass(frozen=True)
class Place:
    """A shape in a layout, filled with values of a kind.

    Attributes:
      values: "normal"; "wide", which also covers the tails; "special x" or "special cotangent",
        which put zeros, denormals, infinities, NaN and extremes there.
      bias: whether there is a bias.
      quick: whether the quick grid has it, and the grid of mixed dtypes.
      own: whether the frameworks' own ops are measured beside.
    """

    shape: Shape
    layout: Layout = CONTIGUOUS
    values: str = "normal"
    bias: bool = True
    quick: bool = False
    own: bool = False


PLACES = (
    Place((0, 8), quick=True),
    Place((8, 0)),
    Place((1, 1)),
    Place((17,)),
    Place((3, 5)),
    Place((31, 37)),
    Place((5, 7), bias=False),
    Place((7, 13), TRANSPOSED, quick=True),
    Place((17, 19), EVERY_OTHER_ROW),
    Place((9, 23), INNER_COLUMNS),
    Place((11, 64), MISALIGNED, quick=True),
    Place((2, 3, 29)),
    Place((3, 5, 16), LEADING_SWAPPED),
    Place((127, 9)),
    Place((128, 9)),
    Place((129, 9), quick=True),
    Place((4, 64), values="special x", quick=True),
    Place((4, 64), values="special cotangent"),
    Place((300, 257), values="wide", quick=True, own=True),
    Place((1024, 4096)),
)

MIXED = (("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "bfloat16"))


@dataclass(frozen=True)
class Case:
    """One point of the grid.

    Attributes:
      x, bias: dtype names; bias None where there is none.
      approximate: the form of gelu.
      place: shape, layout and values.
    """

    x: str
    bias: str | None
    approximate: str
    place: Place

    @property
    def result(self) -> str:
        return self.x if self.bias is None else promote(self.x, self.bias)

    @property
    def arithmetic(self) -> str:
        """The dtype the contract computes in."""
        return "float64" if "float64" in (self.x, self.bias) else "float32"

    @property
    def precision(self) -> str:
        """The dtype that the kernel aims at: 16-bit where every array is, else the arithmetic's."""
        return self.x if self.result in ("float16", "bfloat16") else self.arithmetic

    @property
    def dtypes(self) -> str:
        """How a table names the dtypes."""
        return self.x if self.bias in (None, self.x) else f"{self.x} + {self.bias}"

    def dtype_of(self, operand: str) -> str | None:
        """The dtype of an operand of `OPERANDS`."""
        if operand == "g":
            return self.result
        return self.bias if operand in ROW_OPERANDS else self.x


# x and bias; the cotangent g of the result; tangents t of x and bias; cotangents v of dx and dbias.
OPERANDS = ("x", "bias", "g", "t_x", "t_bias", "v_x", "v_bias")
ROW_OPERANDS = ("bias", "t_bias", "v_bias")


def cases(quick: bool, forms: tuple[str, ...] = tuple(FORMS)) -> Iterator[Case]:
    """Yields the grid, or a small part of it in which every dtype, form and quantity occurs."""
    for dtype, form, place in itertools.product(FLOATING, forms, PLACES):
        if place.quick or not quick:
            yield Case(dtype, dtype if place.bias else None, form, place)
    for (x, bias), form, place in itertools.product(MIXED, forms, PLACES):
        if place.bias and place.quick and (not quick or place.own):
            yield Case(x, bias, form, place)


def operands(case: Case) -> dict[str, Array | None]:
    """Returns the operands as dense NumPy arrays in the shape that the layout is a view of.

    x and g take the layout of the case, the others are contiguous.
    """
    random = np.random.default_rng(zlib.crc32(repr(case).encode()))
    shape = case.place.shape
    filled: dict[str, Array | None] = {}
    for name in OPERANDS:
        dtype = case.dtype_of(name)
        if dtype is None:
            filled[name] = None
            continue
        laid_out = case.place.layout.dense(shape) if name in ("x", "g") else shape
        size = shape[-1:] if name in ROW_OPERANDS else laid_out
        values = random.standard_normal(size)
        if name == "x":
            values = 2.0 * values
            if case.place.values == "wide":
                values[::2] = random.uniform(-16.0, 16.0, values[::2].shape)
        filled[name] = values.astype(NUMPY[dtype])
    kind = case.place.values
    if kind == "special x":
        x = filled["x"]
        assert x is not None
        # -0.0 is the bias that leaves every x as it is, -0.0 included.
        filled["bias"] = np.full(shape[-1], -0.0).astype(NUMPY[case.bias or case.x])
        x[0] = _around(shape[-1], case)
        x[1:3] = special_values(case.x, 2 * shape[-1]).reshape(2, -1)
    elif kind == "special cotangent":
        g = filled["g"]
        assert g is not None
        g[1:3] = special_values(case.result, 2 * shape[-1]).reshape(2, -1)
    return filled


def special_values(dtype: str, count: int) -> Array:
    """Zeros, denormals, extremes, infinities and NaN, both signs, repeated to fill `count`."""
    limits = ml_dtypes.finfo(NUMPY[dtype])
    least, tiny, most = map(float, (limits.smallest_subnormal, limits.tiny, limits.max))
    positive = [0.0, least, 3 * least, tiny - least, tiny, tiny * 1.5, 2.0**-20, 0.5, 1.0, 3.0]
    positive += [8.0, 40.0, most / 4, most, np.inf, np.nan]
    both = np.array([*positive, *(-value for value in positive)])
    with np.errstate(all="ignore"):
        return np.resize(both, count).astype(NUMPY[dtype])


def _around(count: int, case: Case) -> Array:
    """Neighbours of the zero of the derivative, in the dtype of x."""
    low, high = -1.0, -0.5
    for _ in range(60):
        middle = 0.5 * (low + high)
        if gelu_derivative(middle, case.approximate, 1) < 0:
            low = middle
        else:
            high = middle
    step = float(ml_dtypes.finfo(NUMPY[case.x]).eps) / 2
    return (low + step * (np.arange(count) - count // 2)).astype(NUMPY[case.x])
