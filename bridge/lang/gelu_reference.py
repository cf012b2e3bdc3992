"""GELU and its derivatives in float64, the reference for tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_PI = "3.14159265358979323846264338327950288"


def gelu_derivative(h: Any, form: str, order: int) -> Any:
    r"""gelu⁽ⁿ⁾(h) in float64, with small relative errors in the tails and exact limits at ±∞.

    tanh: h·σ(2√(2/π)(h + 0.044715 h³)); sigmoid: h·σ(1.702 h); none: h·Φ(h)
    (Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415). The derivatives of the
    logistic forms come from truncated Taylor series, those of the exact form from Φ′ = φ and
    dᵏ(φ·P)/dhᵏ = φ·(P′ − h·P).
    """
    h = np.asarray(h, np.float64)
    # Beyond this bound every derivative equals its limit in float64.
    bound = 500.0 if form == "sigmoid" else 40.0
    at = np.clip(h, -bound, bound)
    with np.errstate(all="ignore"):
        value = _derivative(at, form, order)
        # Near the roots of a derivative its terms cancel.
        close = (np.abs(value) < 0.0625) & (np.abs(at) < 3.0) & (order > 0)
        if close.any():
            value = np.array(value)
            value[close] = _derivative(at[close].astype(np.longdouble), form, order)
        if order == 0:
            value = np.where(h > bound, h, np.where(h < -bound, -0.0, value))
    return value


def _derivative(h: Any, form: str, order: int) -> Any:
    return _erf_derivative(h, order) if form == "none" else _logistic(h, form, order)


def _normal(h: Any) -> Any:
    """Φ, with small relative errors in its lower tail; of `longdouble` for |h| < 3 alone."""
    if h.dtype != np.longdouble:
        return 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(h * -math.sqrt(0.5))
    # Φ = 1/2 + φ·(h + h³/3 + h⁵/(3·5) + …)
    term = total = h
    for k in range(3, 121, 2):
        term = term * h * h / k
        total = total + term
    return 0.5 + _density(h) * total


def _density(h: Any) -> Any:
    return np.exp(-0.5 * h * h) / np.sqrt(2.0 * h.dtype.type(_PI))


def _erf_derivative(h: Any, order: int) -> Any:
    density = _density(h)
    if order == 0:
        return h * _normal(h)
    if order == 1:
        return _normal(h) + h * density
    polynomial = np.polynomial.Polynomial([2.0, 0.0, -1.0])
    for _ in range(order - 2):
        polynomial = polynomial.deriv() - np.polynomial.Polynomial([0.0, 1.0]) * polynomial
    return density * polynomial(h)


def _logistic(h: Any, form: str, order: int) -> Any:
    number = h.dtype.type
    if form == "sigmoid":
        a, b = number("1.702"), number(0.0)
    else:
        a, b = 2.0 * np.sqrt(2.0 / number(_PI)), number("0.044715")
    # `inner` has the Taylor coefficients of the argument around h, `sigma` those of s =
    # σ(argument), which follow from s′ = q·argument′ with q = s(1 − s).
    inner = [a * (h + b * h**3), a * (1.0 + 3.0 * b * h * h), a * 3.0 * b * h, a * b + 0.0 * h]
    small = np.exp(-np.abs(inner[0]))
    high, low = 1.0 / (1.0 + small), small / (1.0 + small)
    sigma = [np.where(inner[0] >= 0, high, low)]
    rest = [np.where(inner[0] >= 0, low, high)]  # 1 − σ, without cancellation
    for k in range(1, order + 1):
        q = [sum(sigma[i] * rest[j - i] for i in range(j + 1)) for j in range(k)]
        term = sum(j * inner[j] * q[k - j] for j in range(1, min(k, 3) + 1)) / k
        sigma.append(term)
        rest.append(-term)
    lower = sigma[order - 1] if order > 0 else 0.0
    return math.factorial(order) * (h * sigma[order] + lower)
