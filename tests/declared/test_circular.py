"""bl.sin and bl.cos: huge numbers, numbers next to multiples of π/2, derivatives, and bits."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import bridge
from bridge import lang as bl
from tests.frameworks import FRAMEWORKS

# The floats and doubles that lie next to a multiple of π/2, relative to their size.
WORST = {"float32": 16367173.0 * 2.0**72, "float64": 6381956970095103.0 * 2.0**797}
DIGITS = {"float32": 24, "float64": 53}
BOUNDS = {"float32": (2.0**127, -149), "float64": (2.0**1023, -1074)}


@bridge.op
def both(x: bridge.Full) -> Any:
    return bl.sin(x), bl.cos(x)


@bridge.op
def product(x: bridge.Full) -> Any:
    return bl.sin(x) * bl.cos(2.0 * x)


def _numbers(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Returns numbers of every size, and numbers next to multiples of π/4."""
    largest, least = BOUNDS[dtype]
    exponents = rng.integers(least, int(math.log2(largest)), 400)
    x = np.ldexp(rng.uniform(1.0, 2.0, 400), exponents)
    near = rng.integers(0, 10**6, 400) * (math.pi / 4)
    x = np.concatenate([x, near, [WORST[dtype], largest, np.ldexp(1.0, least), 0.0]])
    return (x * rng.choice([-1.0, 1.0], x.shape)).astype(dtype).reshape(4, -1)


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
@pytest.mark.parametrize("dtype", DIGITS)
def test_every_size(own: Any, dtype: str, rng: np.random.Generator) -> None:
    x = _numbers(dtype, rng)
    for i, exactly in enumerate((mp.sin, mp.cos)):
        found = own.call(lambda x, i=i: both(x)[i], x)
        assert found.dtype == x.dtype
        with mp.workprec(2500):  # 2^1023 needs as many bits before the point
            for number, y in zip(x.ravel().tolist(), found.ravel().tolist(), strict=True):
                exact = exactly(mp.mpf(number))
                least = BOUNDS[dtype][1]
                unit = mp.ldexp(1, max(mp.mag(exact) - DIGITS[dtype], least) if exact else least)
                assert abs(y - exact) <= unit, (number, y)
                assert exact or math.copysign(1.0, y) == math.copysign(1.0, number)


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinities_and_nan(own: Any, dtype: str) -> None:
    x = np.array([[np.inf, -np.inf, np.nan]], dtype)
    for i in (0, 1):
        assert np.isnan(own.call(lambda x, i=i: both(x)[i], x)).all()


def test_bits_of_both_frameworks(rng: np.random.Generator) -> None:
    for dtype in DIGITS:
        x = _numbers(dtype, rng)
        for i in (0, 1):
            first, second = (own.call(lambda x, i=i: both(x)[i], x) for own in FRAMEWORKS)
            np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
def test_derivatives(own: Any, rng: np.random.Generator) -> None:
    x, g = rng.normal(size=(2, 3, 7)) * 5
    _, found = own.vjp(product, [x], g)
    right = np.cos(x) * np.cos(2 * x) - 2 * np.sin(x) * np.sin(2 * x)
    np.testing.assert_allclose(found, right * g, rtol=1e-13, atol=1e-13)
