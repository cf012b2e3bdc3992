"""Fits the polynomials of cpp/math/elementary.h and prints them as C++ tables with their errors.

Run: python scripts/fit_elementary.py
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
from fit_gelu import chebyshev_fit, emit, largest_error, rounded, rounded_fit, split


def logarithm(z: mp.mpf) -> mp.mpf:
    """(log(1 + f) - 2 s) / (s z) for s = f / (2 + f) and z = s^2."""
    s = mp.sqrt(z)
    return 2 * (mp.atanh(s) / s - 1) / z if z else mp.mpf(2) / 3


def hyperbolic_tangent(w: mp.mpf) -> mp.mpf:
    """(tanh(x) / x - 1) / w for w = x^2."""
    x = mp.sqrt(w)
    return (mp.tanh(x) / x - 1) / w if w else -mp.mpf(1) / 3


def error_function(w: mp.mpf) -> mp.mpf:
    """(erf(x) / x - 2 / sqrt(pi)) / w for w = x^2."""
    x = mp.sqrt(w)
    first = 2 / mp.sqrt(mp.pi)
    return (mp.erf(x) / x - first) / w if w else -first / 3


def sine(w: mp.mpf) -> mp.mpf:
    """(sin(x) / x - 1) / w for w = x^2."""
    x = mp.sqrt(w)
    return (mp.sin(x) / x - 1) / w if w else -mp.mpf(1) / 6


def cosine(w: mp.mpf) -> mp.mpf:
    """(cos(x) - 1 + w / 2) / w^2 for w = x^2."""
    return (mp.cos(mp.sqrt(w)) - 1 + w / 2) / w**2 if w else mp.mpf(1) / 24


def turns() -> None:
    """Prints the bits of 2 / pi in words of 32 and of 64 bits."""
    with mp.workprec(1400):
        for bits, count in ((32, 6), (64, 18)):
            rest = 2 / mp.pi
            print("//", bits, "bits")
            for _ in range(count):
                rest *= 2**bits
                print(f"0x{int(rest):0{bits // 4}X}u,")
                rest -= int(rest)


def fit(
    name: str,
    function: Callable,
    allowed: Callable,
    high: float,
    degree: int,
    kind: type,
) -> None:
    if kind is np.float32:
        c = rounded_fit(function, allowed, 0.0, high, degree)
    else:
        c = [rounded(x, kind) for x in chebyshev_fit(function, 0.0, high, degree)]
    error = largest_error(function, c, 0.0, high, allowed)
    emit(f"{name}, degree {degree}, of the function", c, error, kind)


def main() -> None:
    for kind, bits, zero in ((np.float32, 24, 13), (np.float64, 53, 12)):
        print("//", kind.__name__)
        split("log2(e)", 1 / mp.log(2), bits, kind)
        split(
            "log(2), high with zeros for 8 (11) bits of an exponent", mp.log(2), bits - zero, kind
        )
        split("2 / sqrt(pi)", 2 / mp.sqrt(mp.pi), bits, kind)
        split("pi / 2", mp.pi / 2, bits, kind)
    turns()
    # What a polynomial may lack: that share of the function that it is a part of.
    log_allowed = lambda z: 2 / max(z, mp.mpf("1e-4"))  # noqa: E731
    tanh_allowed = lambda w: mp.tanh(mp.sqrt(w)) / mp.sqrt(w) / max(w, mp.mpf("1e-4"))  # noqa: E731
    erf_allowed = lambda w: mp.erf(mp.sqrt(w)) / mp.sqrt(w) / max(w, mp.mpf("1e-4"))  # noqa: E731
    for degree, kind in ((3, np.float32), (6, np.float64)):
        fit("logarithm", logarithm, log_allowed, 0.02944, degree, kind)
    for degree, kind in ((5, np.float32), (13, np.float64)):
        fit("tanh below 0.625", hyperbolic_tangent, tanh_allowed, 0.390625, degree, kind)
    for degree, kind in ((7, np.float32), (15, np.float64)):
        fit("erf below 1", error_function, erf_allowed, 1.0, degree, kind)
    high = float((mp.pi / 4) ** 2 * 1.0001)
    sin_allowed = lambda w: mp.sin(mp.sqrt(w)) / mp.sqrt(w) / max(w, mp.mpf("1e-4"))  # noqa: E731
    cos_allowed = lambda w: mp.cos(mp.sqrt(w)) / max(w, mp.mpf("1e-3")) ** 2  # noqa: E731
    for degree, kind in ((3, np.float32), (5, np.float64)):
        fit("sin up to pi/4", sine, sin_allowed, high, degree, kind)
    for degree, kind in ((2, np.float32), (5, np.float64)):
        fit("cos up to pi/4", cosine, cos_allowed, high, degree, kind)


if __name__ == "__main__":
    main()
