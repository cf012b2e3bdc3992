"""bias_gelu where its derivative is 0: only an infinite cotangent may change the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bridge.lang.gelu_reference import gelu_derivative
from tests.frameworks import DTYPES, FORMS, FRAMEWORKS, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7976e308}


@each
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_derivative_at_minus_infinity_is_zero(
    own: Any, dtype: str, form: str, has_bias: bool
) -> None:
    """Each row has three columns: x of −∞, of the least number, and of −1000."""
    columns = np.array([-np.inf, -LARGEST[dtype], -1000.0]).astype(numpy_dtype(dtype))
    cotangents = (LARGEST[dtype], -LARGEST[dtype], np.inf, -np.inf)
    g = np.repeat(np.array(cotangents)[:, None], 3, axis=1).astype(numpy_dtype(dtype))
    x = np.broadcast_to(columns, g.shape).copy()
    operands = [x, np.zeros(3, x.dtype)] if has_bias else [x]
    _, *gradients = own.vjp(lambda *given: own.ops.bias_gelu(*given, approximate=form), operands, g)
    dx = gradients[0].astype(np.float64)
    np.testing.assert_array_equal(dx[:2], np.zeros((2, 3)))
    assert np.all(np.isnan(dx[2:])), dx
    if has_bias:
        assert np.all(np.isnan(gradients[1].astype(np.float64)))


@each
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_derivative_before_it_underflows_is_not_zero(own: Any, dtype: str, form: str) -> None:
    """The derivative is a small number of float32 there; a large cotangent makes it visible."""
    least = {"tanh": -10.0, "none": -13.5, "sigmoid": -58.0}[form]
    x = np.array([least]).astype(numpy_dtype(dtype))
    g = np.array([3e38 if dtype != "float16" else 65504.0]).astype(numpy_dtype(dtype))
    _, dx = own.vjp(lambda x: own.ops.bias_gelu(x, approximate=form), [x], g)
    exact = gelu_derivative(x.astype(np.float64), form, 1) * g.astype(np.float64)
    if dtype == "float16":  # too small for the dtype
        exact = np.zeros(1)
    rough = 1e-2 if dtype == "bfloat16" else 1e-3  # of a subnormal derivative
    np.testing.assert_allclose(dx.astype(np.float64), exact, rtol=rough)


@each
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives_overflow_with_the_product_of_the_cotangents(
    own: Any, form: str, dtype: str
) -> None:
    """(c·g)·gelu″(h), in this order: c·g beyond the range of float32 is infinite."""
    x, c, g = (np.array([v]).astype(numpy_dtype(dtype)) for v in (-2.5, 1.5, 3e38))
    (dx, *_) = own.grad_of_vjp(lambda x: own.ops.bias_gelu(x, approximate=form), [x], g, [c])
    assert np.isinf(float(dx[0]))
    smaller = (g.astype(np.float64) / 2).astype(g.dtype)
    (dx, *_) = own.grad_of_vjp(lambda x: own.ops.bias_gelu(x, approximate=form), [x], smaller, [c])
    assert np.isfinite(float(dx[0]))
