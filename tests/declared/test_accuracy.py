"""The functions of `bridge.lang` in declared ops, against float64 and extended precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import special

import bridge
import bridge.torch
from bridge import lang as bl
from tests.frameworks import FRAMEWORKS, numpy_dtype

TORCH = FRAMEWORKS[0]

# Digits, and the exponents of the smallest and the largest normal numbers.
FORMATS = {"float16": (11, -14, 15), "bfloat16": (8, -126, 127), "float32": (24, -126, 127)}


def sigmoid(x: Any) -> Any:
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1.0) / (1 + power)


def times(x: Any, part: Any) -> Any:
    """Returns x times a part that vanishes faster than x grows."""
    return np.where(x == -np.inf, -0.0, x * part)


# Each function in a declaration, on float64 arrays, and in extended precision.
FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "exp": (bl.exp, np.exp, mp.exp),
    "exp2": (bl.exp2, np.exp2, lambda x: mp.power(2, x)),
    "expm1": (bl.expm1, np.expm1, mp.expm1),
    "log": (bl.log, np.log, mp.log),
    "log1p": (bl.log1p, np.log1p, mp.log1p),
    "tanh": (bl.tanh, np.tanh, mp.tanh),
    "sigmoid": (bl.sigmoid, sigmoid, lambda x: 1 / (1 + mp.exp(-x))),
    "silu": (bl.silu, lambda x: times(x, sigmoid(x)), lambda x: x / (1 + mp.exp(-x))),
    "softplus": (
        bl.softplus,
        lambda x: np.logaddexp(x, 0.0),
        lambda x: mp.log1p(mp.exp(x)),
    ),
    "erf": (bl.erf, special.erf, mp.erf),
    "gelu tanh": (
        partial(bl.gelu, kind="tanh"),
        lambda x: times(x, sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: x / (1 + mp.exp(-mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3))),
    ),
    "gelu none": (
        partial(bl.gelu, kind="none"),
        lambda x: times(x, special.ndtr(x)),
        lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    ),
    "gelu sigmoid": (
        partial(bl.gelu, kind="sigmoid"),
        lambda x: times(x, sigmoid(1.702 * x)),
        lambda x: x / (1 + mp.exp(-mp.mpf("1.702") * x)),
    ),
    "sin": (bl.sin, np.sin, mp.sin),
    "cos": (bl.cos, np.cos, mp.cos),
    "sqrt": (bl.sqrt, np.sqrt, mp.sqrt),
    "rsqrt": (bl.rsqrt, lambda x: 1 / np.sqrt(x), lambda x: 1 / mp.sqrt(x)),
}
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")


@bridge.op
def every_function(x: bridge.Full) -> Any:
    return tuple(function(x) for function, _, _ in FUNCTIONS.values())


@bridge.op
def quotient(x: bridge.Full, y: bridge.Full) -> Any:
    return x / y


def units_off(found: Any, exact: Any, dtype: str) -> float:
    """Returns the largest error of the results, in units in the last place of the exact ones.

    It is infinite if only one of the two is NaN, or if signs differ.
    """
    digits, lowest, highest = FORMATS[dtype]
    signs = np.signbit(found) == np.signbit(exact)
    missing = np.isnan(found) & np.isnan(exact)
    # An infinity counts as the number after the largest.
    found, exact = (
        np.clip(a, -(2.0 ** (highest + 1)), 2.0 ** (highest + 1)) for a in (found, exact)
    )
    exponent = np.where(exact == 0, lowest, np.maximum(np.frexp(exact)[1] - 1, lowest))
    units = np.abs(found - exact) / 2.0 ** (exponent - digits + 1)
    return float(np.where(missing, 0, np.where(signs & (units >= 0), units, np.inf)).max())


def hold(x: np.ndarray, dtype: str, most: float) -> None:
    worst = {}
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        for name, found in zip(FUNCTIONS, every_function(TORCH.array(x)), strict=True):
            right = FUNCTIONS[name][1](wide)
            worst[name] = units_off(TORCH.numpy(found).astype(np.float64), right, dtype)
    assert {name: units for name, units in worst.items() if units > most} == {}, worst


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_every_16_bit_number(dtype: str) -> None:
    hold(np.arange(1 << 16).astype(np.uint16).view(numpy_dtype(dtype)), dtype, 0.51)


def test_functions_in_float32() -> None:
    """`make exhaustive` tests every float32: tests/accuracy."""
    hold(np.arange(0, 1 << 32, 4099).astype(np.uint32).view(np.float32), "float32", 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_in_float64(name: str, rng: np.random.Generator) -> None:
    x = rng.normal(size=300) * 10.0 ** rng.uniform(-4, 2, 300)
    if name in POSITIVE:
        x = abs(x)
    found = every_function(TORCH.array(x))[list(FUNCTIONS).index(name)]
    with mp.workprec(160):
        for number, y in zip(x, found.tolist(), strict=True):
            exact = FUNCTIONS[name][2](mp.mpf(float(number)))
            unit = mp.ldexp(1, max(mp.mag(exact) - 1, -1022) - 52)
            assert abs(y - exact) <= 2 * unit, number


@pytest.mark.parametrize("dtype", FORMATS)
def test_division_is_correctly_rounded(dtype: str, rng: np.random.Generator) -> None:
    size = 4 if dtype == "float32" else 2
    x, y = (
        rng.integers(0, 1 << 8 * size, 1 << 18).astype(f"u{size}").view(numpy_dtype(dtype))
        for _ in range(2)
    )
    found = TORCH.numpy(quotient(TORCH.array(x), TORCH.array(y)))
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) / y.astype(np.float64)
        assert units_off(found.astype(np.float64), exact, dtype) <= 0.5 + 2.0**-14
