"""Values and derivatives are the float64 reference's, to the accuracy that docs/numerics.md states.

The reference is taken at h = x + bias as the contract computes it (one addition in the arithmetic
type), so that what is measured is the op and not the conditioning of the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bridge.ops.bias_gelu import gelu_derivative
from tests.frameworks import DTYPES, EPSILON, FORMS, numpy_dtype

SHAPES = [(0, 8), (3, 0), (1, 1), (1,), (7,), (5, 3), (127, 33), (2, 65, 17), (129, 64), (300, 1)]


def draw(rng: np.random.Generator, shape: Any, dtype: str, spread: float = 3.0) -> Any:
    return (rng.standard_normal(shape) * spread).astype(numpy_dtype(dtype))


def preactivation(x: Any, bias: Any, dtype: str) -> Any:
    """h as the kernel sees it: exact inputs, one addition in the arithmetic type."""
    arithmetic = np.float64 if dtype == "float64" else np.float32
    return (x.astype(arithmetic) + bias.astype(arithmetic)).astype(np.float64)


def assert_close(actual: Any, expected: Any, dtype: str, floor: float = 0.0, ulps: float = 2.5):
    """Within `ulps` units of the expected value's last place (and of the floor's)."""
    assert actual.dtype == numpy_dtype(dtype)
    assert actual.shape == expected.shape
    unit = EPSILON[dtype] * np.maximum(np.abs(expected), max(floor, 1e-30))
    if dtype == "float64":
        # The reference is float64 itself and loses units in the tails as the exponent grows; the
        # C++ accuracy program measures float64 against quadruple precision.
        ulps *= 64
    if dtype == "float16":
        unit = np.maximum(unit, 2.0**-24)
    error = np.abs(actual.astype(np.float64) - expected)
    assert np.all(error <= ulps * unit), f"worst {np.max(error / unit):.2f} units"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_and_gradients(framework: Any, rng: Any, dtype: str, form: str, shape: Any) -> None:
    x, bias = draw(rng, shape, dtype), draw(rng, shape[-1:], dtype, 1.0)
    g = draw(rng, shape, dtype, 1.0)
    value, dx, dbias = framework.vjp(
        lambda x, b: framework.ops.bias_gelu(x, b, approximate=form), (x, bias), g
    )
    h, g64 = preactivation(x, bias, dtype), g.astype(np.float64)
    assert_close(value, gelu_derivative(h, form, 0), dtype)
    exact = gelu_derivative(h, form, 1) * g64
    # Around its zero the derivative is known absolutely, and the cotangent scales that.
    assert_close(dx, exact, dtype, floor=0.25 * np.max(np.abs(g64), initial=0.0))
    rows = tuple(range(len(shape) - 1))
    magnitude = np.max(np.abs(exact).sum(axis=rows), initial=0.0)
    assert_close(dbias, exact.sum(axis=rows), dtype, floor=magnitude, ulps=4.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_tangent(framework: Any, rng: Any, dtype: str, form: str) -> None:
    shape = (37, 19)
    x, bias = draw(rng, shape, dtype), draw(rng, shape[-1:], dtype, 1.0)
    tx, tb = draw(rng, shape, dtype, 1.0), draw(rng, shape[-1:], dtype, 1.0)
    value, tangent = framework.jvp(
        lambda x, b: framework.ops.bias_gelu(x, b, approximate=form), (x, bias), (tx, tb)
    )
    h = preactivation(x, bias, dtype)
    direction = preactivation(tx, tb, dtype)
    assert_close(value, gelu_derivative(h, form, 0), dtype)
    scale = 0.25 * np.max(np.abs(direction))
    assert_close(tangent, gelu_derivative(h, form, 1) * direction, dtype, floor=scale)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_second_order(framework: Any, rng: Any, dtype: str, form: str) -> None:
    shape = (41, 13)
    x, bias = draw(rng, shape, dtype), draw(rng, shape[-1:], dtype, 1.0)
    g = draw(rng, shape, dtype, 1.0)
    vx, vb = draw(rng, shape, dtype, 1.0), draw(rng, shape[-1:], dtype, 1.0)
    dx, dbias, dg = framework.grad_of_vjp(
        lambda x, b: framework.ops.bias_gelu(x, b, approximate=form), (x, bias), g, (vx, vb)
    )
    h, g64 = preactivation(x, bias, dtype), g.astype(np.float64)
    direction = preactivation(vx, vb, dtype)
    curved = gelu_derivative(h, form, 2) * g64 * direction
    scale = np.max(np.abs(g64 * direction))
    assert_close(dx, curved, dtype, floor=scale, ulps=4.0)
    assert_close(dbias, curved.sum(axis=0), dtype, floor=np.abs(curved).sum(), ulps=4.0)
    straight = gelu_derivative(h, form, 1) * direction
    assert_close(dg, straight, dtype, floor=np.max(np.abs(direction)), ulps=4.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_limits(framework: Any, dtype: str, form: str) -> None:
    top = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.79e308}
    x = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, top[dtype], -top[dtype], 300.0, -600.0, 800.0, -1e3]
    ).astype(numpy_dtype(dtype))
    g = np.ones_like(x)
    value, dx = framework.vjp(lambda x: framework.ops.bias_gelu(x, approximate=form), (x,), g)
    value, dx = value.astype(np.float64), dx.astype(np.float64)
    large = x.astype(np.float64)
    expected = [0.0, -0.0, np.inf, -0.0, np.nan, large[5], -0.0, 300.0, -0.0, 800.0, -0.0]
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(np.signbit(value[:4]), [False, True, False, True])
    assert np.all(np.signbit(value[[6, 8, 10]]))
    np.testing.assert_array_equal(dx, [0.5, 0.5, 1, 0, np.nan, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("x_dtype", "bias_dtype", "result"),
    [
        ("bfloat16", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float32", "float16", "float32"),
        ("float64", "bfloat16", "float64"),
        ("bfloat16", "float64", "float64"),
    ],
)
def test_mixed_dtypes(framework: Any, rng: Any, x_dtype: str, bias_dtype: str, result: str) -> None:
    x, bias = draw(rng, (150, 9), x_dtype), draw(rng, (9,), bias_dtype, 1.0)
    g = draw(rng, (150, 9), result, 1.0)
    value, dx, dbias = framework.vjp(framework.ops.bias_gelu, (x, bias), g)
    h = preactivation(x, bias, result)
    assert_close(value, gelu_derivative(h, "tanh", 0), result)
    exact = gelu_derivative(h, "tanh", 1) * g.astype(np.float64)
    assert_close(dx, exact, x_dtype, floor=0.25 * np.max(np.abs(g)).astype(np.float64))
    total = np.max(np.abs(exact).sum(axis=0))
    assert_close(dbias, exact.sum(axis=0), bias_dtype, floor=total, ulps=4.0)
