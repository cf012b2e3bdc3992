"""Fits the polynomials of cpp/math and prints them as C++ tables with their errors.

Every table is a near-minimax polynomial: the Chebyshev interpolant computed with mpmath, rewritten
in powers of its variable and rounded to the working precision. The printed error is the error of
the rounded coefficients, evaluated exactly; rounding during the evaluation adds to it.

Run: python scripts/fit_gelu.py
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 60


def chebyshev_fit(function: Callable, low: float, high: float, degree: int) -> list[mp.mpf]:
    """Returns coefficients of the Chebyshev interpolant on [low, high], lowest power of x first."""
    count = degree + 1
    nodes = [mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    values = [function(low + (high - low) * (x + 1) / 2) for x in nodes]
    series = [
        (2 if j else 1)
        * mp.fsum(values[i] * mp.cos(mp.pi * j * (2 * i + 1) / (2 * count)) for i in range(count))
        / count
        for j in range(count)
    ]
    # Convert the Chebyshev series to powers of y in [-1, 1], then of x by y = scale * x + shift.
    powers = [mp.mpf(0)] * count
    previous, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    for j, weight in enumerate(series):
        basis = previous if j == 0 else current
        for i, c in enumerate(basis):
            powers[i] += weight * c
        if j > 0:
            following = [mp.mpf(0), *(2 * c for c in current)]
            for i, c in enumerate(previous):
                following[i] -= c
            previous, current = current, following
    scale, shift = 2 / (mp.mpf(high) - low), -(mp.mpf(high) + low) / (mp.mpf(high) - low)
    result = [powers[-1]]
    for c in reversed(powers[:-1]):  # Horner's rule on polynomials in x
        raised = [mp.mpf(0)] * (len(result) + 1)
        for i, r in enumerate(result):
            raised[i + 1] += r * scale
            raised[i] += r * shift
        raised[0] += c
        result = raised
    return result


def rounded(value: mp.mpf, kind: type) -> float:
    """Returns `value` rounded to float32 or float64, as a Python float."""
    return float(kind(mp.nstr(value, 40))) if kind is np.float64 else round_to_float32(value)


def round_to_float32(value: mp.mpf) -> float:
    """Rounds once, directly from the multiprecision value."""
    mantissa, exponent = mp.frexp(value)
    return float(mp.ldexp(mp.nint(mp.ldexp(mantissa, 24)), int(exponent) - 24))


def rounded_fit(
    function: Callable, relative_to: Callable, low: float, high: float, degree: int
) -> list[float]:
    """Returns float32 coefficients of a near-minimax fit of function / relative_to.

    The coefficient with the coarsest spacing is rounded first and the others are fitted again, so
    that they compensate most of its rounding error. The fit is least squares on Chebyshev nodes, in
    float64.
    """
    nodes = [low + (high - low) * (1 + mp.cos(mp.pi * (2 * i + 1) / 800)) / 2 for i in range(400)]
    x = np.array([float(t) for t in nodes])
    weight = np.array([float(1 / relative_to(t)) for t in nodes])
    target = np.array([float(function(t)) for t in nodes]) * weight
    basis = np.stack([x**i for i in range(degree + 1)], axis=1) * weight[:, None]
    free = list(range(degree + 1))
    result = [0.0] * (degree + 1)
    while free:
        fitted = np.linalg.lstsq(basis[:, free], target, rcond=None)[0]
        coarsest = max(
            range(len(free)),
            key=lambda j: np.spacing(np.float32(abs(fitted[j]))) * max(-low, high) ** free[j],
        )
        index = free.pop(coarsest)
        result[index] = float(np.float32(fitted[coarsest]))
        target = target - basis[:, index] * result[index]
    return result


def largest_error(
    function: Callable, coefficients: list[float], low: float, high: float, relative_to: Callable
) -> float:
    """Returns log2 of the largest |p - f| / relative_to on a grid."""
    worst = mp.mpf(0)
    for i in range(2001):
        x = low + (mp.mpf(high) - low) * i / 2000
        if x == 0:
            continue
        p = mp.polyval([mp.mpf(c) for c in reversed(coefficients)], x)
        worst = max(worst, abs((p - function(x)) / relative_to(x)))
    return float(mp.log(worst, 2))


def emit(name: str, coefficients: list[float], error: float, kind: type) -> None:
    suffix = "f" if kind is np.float32 else ""
    print(f"// {name}: largest error 2^{error:.1f}")
    for c in coefficients:
        print(f"    {c.hex()}{suffix},")


def exp2_minus_one_over_f(f: mp.mpf) -> mp.mpf:
    """Returns (2^f - 1) / f."""
    return mp.expm1(f * mp.log(2)) / f if f else mp.log(2)


def half_erfcx(a: mp.mpf) -> mp.mpf:
    """Returns R(a) = exp(a^2/2) * Q(a), where Q is the upper tail of the normal distribution."""
    if a > 60:  # asymptotic series; not reached by the fits
        raise ValueError(a)
    return mp.exp(a * a / 2) * mp.erfc(a / mp.sqrt(2)) / 2


def fit_exp2(degree: int, kind: type) -> None:
    def share(f: mp.mpf) -> mp.mpf:
        return mp.mpf(2) ** f / max(abs(f), mp.mpf("1e-3"))

    if kind is np.float32:
        c = rounded_fit(exp2_minus_one_over_f, share, -0.5, 0.5, degree)
    else:
        c = [rounded(x, kind) for x in chebyshev_fit(exp2_minus_one_over_f, -0.5, 0.5, degree)]
    error = largest_error(exp2_minus_one_over_f, c, -0.5, 0.5, share)
    emit(f"(2^f - 1) / f on [-1/2, 1/2], degree {degree}, relative to 2^f", c, error, kind)


def fit_tail(
    slope: float,
    offset: float,
    scale: float,
    shift: float,
    top: float,
    degree: int,
    kind: type,
) -> None:
    """Fits R(a) (slope a + offset) - 1 in powers of t = scale a / (slope a + offset) + shift.

    Errors next to a = 0, where the value is h/2, a tie between two denormals, have 16 times the
    weight.
    """

    def argument(t: mp.mpf) -> mp.mpf:
        q = (t - shift) / mp.mpf(scale)
        return q * offset / (1 - q * slope)

    def correction(t: mp.mpf) -> mp.mpf:
        a = argument(t)
        return half_erfcx(a) * (slope * a + offset) - 1

    def allowed(t: mp.mpf) -> mp.mpf:
        a = argument(t)
        weight = 16 if kind is np.float32 and a < mp.mpf(1) / 64 else 1
        return (1 + correction(t)) / weight

    low = mp.mpf(shift)
    high = mp.mpf(scale) * top / (slope * mp.mpf(top) + offset) + shift
    if kind is np.float32:
        c = rounded_fit(correction, allowed, low, high, degree)
    else:
        c = [rounded(x, kind) for x in chebyshev_fit(correction, low, high, degree)]
    error = largest_error(correction, c, low, high, allowed)
    emit(f"tail correction, t in [{float(low)}, {float(high)}], degree {degree}", c, error, kind)


def split(name: str, value: mp.mpf, bits: int, kind: type) -> None:
    """Prints `value` as high + low, where high has `bits` significant bits."""
    mantissa, exponent = mp.frexp(value)
    high = mp.ldexp(mp.nint(mp.ldexp(mantissa, bits)), int(exponent) - bits)
    suffix = "f" if kind is np.float32 else ""
    low = rounded(value - high, kind)
    print(f"// {name}: {float(high).hex()}{suffix}, {low.hex()}{suffix}")


def main() -> None:
    log2e = 1 / mp.log(2)
    cubic = 2 * mp.sqrt(2 / mp.pi)
    for kind, bits in ((np.float32, 24), (np.float64, 53)):
        print("//", kind.__name__)
        split("log2(e)/2", log2e / 2, bits, kind)
        split("log2(e) 2 sqrt(2/pi)", cubic * log2e, bits - 5, kind)
        split("log2(e) 2 sqrt(2/pi) 0.044715", cubic * log2e * mp.mpf("0.044715"), bits, kind)
        split("2 sqrt(2/pi)", cubic, bits - 6, kind)
        split("2 sqrt(2/pi) 3 0.044715", cubic * 3 * mp.mpf("0.044715"), bits, kind)
        split("1.702 log2(e)", log2e * mp.mpf("1.702"), bits, kind)
        split("1.702", mp.mpf("1.702"), bits, kind)
        split("1/sqrt(2 pi)", 1 / mp.sqrt(2 * mp.pi), bits, kind)
    fit_exp2(5, np.float32)
    fit_exp2(12, np.float64)
    for shift in (-0.4609375, -0.25):
        fit_tail(1.375, 2.8125, 1.375, shift, 15.0, 11, np.float32)
    fit_tail(2.0, 3.0, 4.0, -1.0, 39.5, 31, np.float64)


if __name__ == "__main__":
    main()
