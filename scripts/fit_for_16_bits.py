"""Fits the constants for 16 bits and prints them as C++ tables with their errors.

They belong to cpp/math/*_for_16_bits.h, log_sum.h and exponential.h. Every polynomial is
near-minimax: a weighted least-squares fit, whose weights are raised where the error is largest. Its
coefficients are rounded one after another, and the others are fitted again.

Run: python scripts/fit_for_16_bits.py
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import mpmath as mp
import numpy as np

Array = np.ndarray
mp.mp.dps = 40


@dataclass(frozen=True)
class Type:
    """A 16-bit type and the computation of 2^v for it.

    Attributes:
      name: the type.
      least: log2 of the values that are too small to matter.
      normal: log2 of its smallest normal number.
      whole_bits: the bits of the whole part of v in GELU, and in softmax.
      degree: the degree of the polynomial for the fraction, 4 or 5.
      logarithms: form, order, degree and centre of GELU's logarithms, and the lift of each, which
        makes v positive. The lift is chosen such that a bound exists (`bound_of`).
    """

    name: str
    least: int
    normal: int
    whole_bits: tuple[int, int]
    degree: int
    logarithms: tuple[tuple[str, int, int, float, int], ...]


TYPES = (
    Type("bfloat16", -134, -126, (8, 8), 4, (("erf", 0, 10, 7.0, 30), ("erf", 1, 12, 6.0, 30))),
    Type(
        "float16",
        -33,
        -14,
        (6, 6),
        5,
        (("erf", 0, 9, 3.0, -67), ("erf", 1, 9, 3.0, -66), ("tanh", 1, 12, 2.0, -66)),
    ),
)


def float32(value: float) -> float:
    return float(np.float32(value))


def nodes(low: float, high: float, count: int = 400) -> Array:
    return low + (high - low) * (1 - np.cos(np.pi * (np.arange(count) + 0.5) / count)) / 2


def minimax(columns: Array, target: Array, turns: int = 60) -> Array:
    """Returns an x that makes the largest |columns x - target| small."""
    weight, best, least = np.full(len(target), 1 / len(target)), columns[0], np.inf
    for _ in range(turns):
        root = np.sqrt(weight)
        found = np.linalg.lstsq(columns * root[:, None], target * root, rcond=None)[0]
        error = np.abs(columns @ found - target)
        if error.max() < least:
            best, least = found, error.max()
        weight = weight * (error / error.max() + 1e-12)
        weight /= weight.sum()
    return best


def emit(name: str, *values: float) -> None:
    print(f"  {name}: " + ", ".join(f"{value.hex()}f" for value in values))


def in_units(error: float) -> str:
    return f"2^{np.log2(error):.1f}"


# ---- 2^x for x from 1 to 2 ----


def power_at(x: Array, coefficients: list[float]) -> Array:
    """Evaluates the function math::detail::power_of_fraction in exact arithmetic."""
    a, b, c = coefficients[:3]
    z = (x * x + a) ** 2 + (b * x + c)
    return z if len(coefficients) == 3 else z * x + coefficients[3]


def fit_power(
    degree: int,
    low: float,
    high: float,
    rate: float,
    factor: float | None,
    exact_at: float | None = None,
) -> tuple[list[float], float, float]:
    """Returns coefficients for factor 2^(rate x) on [low, high], the factor and the error.

    The error is 0 at exact_at, if given.
    """
    x = nodes(low, high)
    wanted = 2.0 ** (rate * x)
    powers = {4: (2, 1, 0), 5: (3, 2, 1, 0)}[degree]
    columns = [x**i for i in powers]
    if factor is None:
        columns.append(-wanted)
    matrix = np.stack(columns, axis=1) / wanted[:, None]
    target = -(x**degree) / wanted
    if factor is not None:
        target = target + factor
    size = np.abs(target).max()
    scale = np.abs(matrix).max(axis=0)
    if exact_at is not None:  # a row with so much weight that the others do not move it
        wanted_there = 2.0 ** (rate * exact_at)
        row = np.array([*(exact_at**i for i in powers), -wanted_there]) / wanted_there
        matrix = np.concatenate([matrix, 1e4 * row[None]])
        target = np.append(target, -1e4 * exact_at**degree / wanted_there)
    turns = 150 if exact_at is None else 1
    found = minimax(matrix / scale, target / size, turns) * size / scale
    if factor is None:
        factor = float(found[-1])
    a = float32(found[0] / 2)
    b = float32(found[1])
    coefficients = [a, b, float32(found[2] - a * a), *(float32(f) for f in found[3:4])]
    if degree == 4:
        coefficients = coefficients[:3]
    error = np.abs(power_at(x, coefficients) / (factor * wanted) - 1).max()
    return coefficients, factor, float(error)


def fit_fixed(kind: Type) -> tuple[list[float], float]:
    """Fits for x = (1 + fraction) / 8, so that a power whose bits are all 0 is exact."""
    _, factor, _ = fit_power(kind.degree, 1 / 8, 1 / 4, 8.0, None)
    step = 2.0 ** -(23 - kind.whole_bits[1])
    at = round((np.log2(2.0**-5 / factor) - 1) / step) * step  # the fraction of that power
    factor = 2.0**-5 / 2.0 ** (1 + at)
    coefficients, factor, error = fit_power(kind.degree, 1 / 8, 1 / 4, 8.0, factor)
    # The last coefficient makes float arithmetic exact there.
    x = np.float32((1 + at) / 8)

    def value(last: float) -> float:
        def fma(p: float, q: float, r: float) -> float:
            return float32(p * q + r)

        a, b, c = (*coefficients[:-1], last)[:3]
        y = fma(float(x), float(x), a)
        z = fma(y, y, fma(float(x), b, c))
        return z if kind.degree == 4 else fma(z, float(x), last)

    last = coefficients[-1]
    hits = [
        moved
        for i in range(-4000, 4001)
        if value(moved := float32(last * (1 + i * 2.0**-24))) == 2.0**-5
    ]
    coefficients[-1] = hits[len(hits) // 2]
    x_all = nodes(1 / 8, 1 / 4)
    error = float(np.abs(power_at(x_all, coefficients) / (factor * 2.0 ** (8 * x_all)) - 1).max())
    emit(f"2^x, {in_units(error)}", *coefficients)
    emit("its least, 2 + k and fraction", 2 + (2 + at) * 2.0 ** (1 - kind.whole_bits[1]))
    return coefficients, factor


# ---- 2^x for x from -1/2 to 1/2, up to a factor ----


def fit_power_up_to_a_factor(degree: int) -> None:
    """Fits the function of math::detail::LogSumPowerOf16Bits and Exp2TableFor16Bits."""
    x = nodes(-0.5, 0.5, 3000)
    wanted = 2.0**x
    value, fitted = np.ones_like(x), []
    for power in range(1, degree + 1):
        columns = np.stack([*(x**i for i in range(power, degree + 1)), -wanted], axis=1)
        found = minimax(columns / wanted[:, None], -value / wanted, 300)
        fitted.append(float32(found[0]))
        value = value + fitted[-1] * x**power
    least, largest = (value / wanted).min(), (value / wanted).max()
    emit(f"2^x, {in_units((largest - least) / (largest + least))}", *fitted)
    of_x = np.log(2) * float(1 / mp.log(2) - mp.mpf(float32(1 / np.log(2))))
    emit("lost, lost of x", float32(-np.log((largest + least) / 2)), float32(of_x))


# ---- the reciprocal ----

SEED = 0x7EF311C3


def seed_products() -> tuple[float, float]:
    """Returns the least and the largest product of a number and its seed."""
    d = np.linspace(1, 2, 200_001, dtype=np.float32)
    seed = (np.uint32(SEED) - d.view(np.uint32)).view(np.float32)
    product = d.astype(np.float64) * seed.astype(np.float64)
    return float(product.min()), float(product.max())


def chebyshev(count: int, centre: float, radius: float) -> np.polynomial.Polynomial:
    """Returns T_count over the interval."""
    series = np.polynomial.Chebyshev.basis(
        count, domain=np.array([centre - radius, centre + radius])
    )
    return series.convert(kind=np.polynomial.Polynomial)


# ---- GELU ----


def logistic(form: str, a: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """Returns w(a) and its derivative."""
    if form == "sigmoid":
        rate = mp.mpf("1.702")
        return rate * a, rate
    rate, cubic = 2 * mp.sqrt(2 / mp.pi), mp.mpf("0.044715")
    return rate * (a + cubic * a**3), rate * (1 + 3 * cubic * a * a)


def tail(form: str, a: mp.mpf) -> mp.mpf:
    """Returns the share of -a: gelu(-a) = -a tail(a)."""
    if form == "erf":
        return mp.erfc(a / mp.sqrt(2)) / 2
    return 1 / (1 + mp.exp(logistic(form, a)[0]))


def slope(form: str, a: mp.mpf) -> mp.mpf:
    """Returns gelu'(-a)."""
    if form == "erf":
        return tail(form, a) - a * mp.npdf(a)
    w, rise = logistic(form, a)
    s = mp.exp(-w)
    return s * (1 + s - a * rise) / (1 + s) ** 2


def zero_of(form: str) -> mp.mpf:
    return mp.findroot(lambda a: slope(form, a), mp.mpf("0.7518"))


def line_through(zero: mp.mpf, scale: float) -> tuple[float, float]:
    """Returns c0 and c1 near scale, such that c0 - c1 a is 0 as near to `zero` as floats allow."""
    best, found = mp.mpf(1), (0.0, 0.0)
    c1 = np.float32(scale)
    for _ in range(20_000):
        c0 = float32(float(zero * float(c1)))
        error = abs(mp.mpf(c0) / mp.mpf(float(c1)) - zero)
        if error < best:
            best, found = error, (c0, float(c1))
        c1 = np.nextafter(c1, np.float32(4 * scale))
    print(f"  zero {mp.nstr(zero, 20)}, the line's is off by {mp.nstr(best, 3)}")
    return found


def fit_logarithm(
    kind: Type,
    form: str,
    order: int,
    degree: int,
    centre: float,
    lift: int,
    power: tuple[list[float], float],
) -> None:
    """Fits 2 + v / 2^(whole_bits - 1) in powers of a - centre; 2^v 2^-lift is share(a)."""
    fraction, factor = power
    zero = zero_of(form) if order else mp.mpf(0)
    line = line_through(zero, 1.0) if order else (0.0, 0.0)

    def size(a: mp.mpf) -> mp.mpf:
        return abs(slope(form, a)) if order else a * tail(form, a)

    def share(a: mp.mpf) -> mp.mpf:
        if not order:
            return tail(form, a)
        if abs(a - zero) < mp.mpf("1e-12"):
            return -mp.diff(lambda t: slope(form, t), zero) / mp.mpf(line[1])
        return slope(form, a) / (mp.mpf(line[0]) - mp.mpf(line[1]) * a)

    end = next(a for a in itertools.count(2.0, 0.01) if mp.log(size(mp.mpf(a)), 2) < kind.least)
    a = nodes(0, end)
    logs = np.array([float(mp.log(share(mp.mpf(x)), 2)) for x in a])
    sizes = np.array([float(mp.log(size(mp.mpf(x)), 2)) for x in a])
    relevance = np.where((sizes < kind.normal) & (a > 1.5), 2.0 ** (sizes - kind.normal), 1.0)
    unit = 2.0 ** (1 - kind.whole_bits[0])
    wanted = 2 + (logs + 123 + lift - np.log2(factor)) * unit
    half = end / 2
    columns = np.stack([((a - centre) / half) ** i for i in range(degree + 1)], axis=1)
    found = minimax(columns * relevance[:, None], wanted * relevance)
    coefficients = [float32(c / half**i) for i, c in enumerate(found)]
    value = np.polynomial.Polynomial(coefficients)
    error = np.abs(value(a - centre) - wanted) / unit * relevance * np.log(2)
    x = end
    while value(x - centre) > 2 + 3.01 * unit and value(x + 0.01 - centre) < value(x - centre):
        x += 0.01
    least = (value(x - centre) - 2) / unit
    print(f"  to {end:.2f}: {in_units(float(error.max()))}; v is {least:.2f} at {x:.2f}")
    emit(f"{form} order {order}", *coefficients)
    if order:
        emit("line", *line)
    emit("bound", bound_of(kind, coefficients, fraction, centre, x - 0.2, lift, order))


def bound_of(
    kind: Type,
    coefficients: list[float],
    fraction: list[float],
    centre: float,
    start: float,
    lift: int,
    order: int,
) -> float:
    """Returns the first float from `start` on where gelu_by_logarithm is exactly 0, else NaN."""

    def power(t: float) -> float:
        fixed = (int(np.float32(t).view(np.uint32)) << kind.whole_bits[0]) & 0xFFFFFFFF
        bits = (fixed & 0x007FFFFF) | 0x3E000000
        x = float(np.uint32(bits).view(np.float32))
        y = float32(x * x + fraction[0])
        z = float32(y * y + float32(x * fraction[1] + fraction[2]))
        z = float32(z * x + fraction[3]) if kind.degree == 5 else z
        whole = int(np.float32(z).view(np.uint32)) + fixed - bits
        return float(np.uint32(whole & 0xFFFFFFFF).view(np.float32))

    a = np.float32(start)
    while True:
        t = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            t = float32(float(np.float32(a - np.float32(centre))) * t + coefficient)
        share = power(t)
        if not share >= 0.0:
            return float("nan")
        size = float(a) - (0.75 if order else 0.0)
        if float32(size * share * 2.0**-lift) == 0.0:
            return float(a)
        a = np.nextafter(a, np.float32(np.inf))


def fit_logistic(kind: Type, form: str, factor: float, constant: float, whole_bits: int) -> None:
    """Fits 1 + 2^v of the forward pass, up to the factor `constant`."""
    unit, first = 2.0 ** (1 - whole_bits), 8
    rate, cubic = rates_of(form)
    emit(f"{form}: rate, cubic", float32(rate * unit), float32(cubic * unit))
    gain = float32(constant / (factor * 2.0 ** (first - 123)))
    emit("first, gain, constant", 2 + first * unit, gain, float32(constant))


def rates_of(form: str) -> tuple[float, float]:
    """Returns rate and cubic of v(a) = a (rate + cubic a^2)."""
    rate = logistic(form, mp.mpf(0))[1] / mp.log(2)
    cubic = 0 if form == "sigmoid" else rate * mp.mpf("0.044715")
    return float(rate), float(cubic)


def fit_slope(kind: Type, form: str, constant: float) -> None:
    """Fits 2^-v of the first derivative, of x = 32 (f - 3/2), and terms of 1 - a w' + 2^-v."""
    zero = zero_of(form)
    rate, cubic = rates_of(form)
    v = float(logistic(form, zero)[0] / mp.log(2))
    f = v - round(v)
    x = 32 * (f - 1.5)
    coefficients, factor, error = fit_power(
        kind.degree, -64.0, -32.0, -1 / 32, None, x if kind.degree == 4 else None
    )
    at_zero = float(power_at(np.array([x]), coefficients)[0]) * 2.0 ** -round(v)
    scale = factor * 2**1.5
    sign = np.sign(scale)
    print(f"  {form}: off by {at_zero / (scale * 2**-v) - 1:.2e} at the zero {float(zero)!r}")
    emit(f"2^-f, {in_units(error)}", *coefficients)
    emit("32 rate, 32 cubic", float32(32 * rate), float32(32 * cubic))
    # The sum must be 0 at the zero: its constants are scaled so that their roundings cancel.
    a = float(zero)
    best, found = 1.0, (0.0, 0.0, 0.0)
    for i in range(-2000, 2001):
        whole = abs(scale) * constant * (1 + i * 2.0**-30)
        one, linear = float32(whole), float32(whole * rate * np.log(2))
        cube = float32(whole * 3 * cubic * np.log(2))
        rest = one + constant * sign * at_zero - a * (linear + cube * a * a)
        if abs(rest / whole) < best:
            best, found = abs(rest / whole), (one, linear, cube)
    emit(f"one, slope, cubic; off by {best:.1e}", *found)


def main() -> None:
    low, high = seed_products()
    centre, radius = (low + high) / 2, (high - low) / 2
    print(f"products with the seed: {low:.6f} to {high:.6f}")
    square = chebyshev(3, centre, radius)
    square = square / square.coef[3]
    # z^3 + c2 z^2 + c1 z + c0 = 0 apart from the error: 1/z = -(z^2 + c2 z + c1) / c0.
    error = 1 / abs(float(chebyshev(3, centre, radius)(0.0)))
    print("1/z as ((A - z)^2 + B) / C:", in_units(error))
    a = float(-square.coef[2] / 2)
    reciprocal = float(-square.coef[0])
    emit("A, B, C", float32(a), float32(square.coef[1] - a * a), float32(reciprocal))
    cubic = chebyshev(4, centre, radius)
    print("1/z as a cubic:", in_units(1 / abs(float(cubic(0.0)))))
    emit("from the constant", *(float32(-c / cubic.coef[0]) for c in cubic.coef[1:]))

    for degree in (4, 5):
        fit_power_up_to_a_factor(degree)
    for kind in TYPES:
        print(f"// {kind.name}")
        fraction, factor = fit_fixed(kind)
        for logarithm in kind.logarithms:
            fit_logarithm(kind, *logarithm, (fraction, factor))
        quadratic = kind.degree == 4
        for form in ("tanh", "sigmoid"):
            constant = float32(reciprocal * 2.0**-54) if quadratic else 1.0
            fit_logistic(kind, form, factor, constant, 8 if quadratic else 6)
        for form in ("tanh", "sigmoid") if quadratic else ("sigmoid",):
            constant = float32(reciprocal * 2.0**-27) if quadratic else 2.0**-36
            fit_slope(kind, form, constant)


if __name__ == "__main__":
    main()
