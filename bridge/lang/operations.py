"""The scalar operations: an entry for each one has everything that differs between them.

From `SCALARS` follow the names and numbers of the bytecode, `cpp/program/operations.h` and
`cpp/program/elementwise.h` (cmake/write_operations.py), the float64 reference and the
derivatives. instructions.py adds the other instructions of the interpreter.

A rule of derivatives is a function of bridge.lang.functions, the operation's value and its inputs.
The formulae avoid the subtraction of nearly equal numbers: 1 − tanh² is 4·σ(2x)·σ(−2x), and e^(−x²)
is an operation of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from math import log, pi, sqrt
from typing import Any

import numpy as np

from bridge.lang.dtypes import DTYPES, LARGEST, OF_16_BITS
from bridge.lang.gelu_reference import gelu_derivative
from bridge.lang.scalar import (
    ANGLE,
    COARSE,
    CONVERSION,
    FUNCTION,
    ROOT,
    SHORT,
    Cost,
    Halves,
    Scalar,
)

VERSION = 15  # of programs, as text and as bytecode: docs/architecture.md says when it rises
OLDEST_BYTECODE = 11  # the first version with today's numbers of instructions

_GELU = {"tanh": "gelu_tanh", "none": "gelu_erf", "sigmoid": "gelu_sigmoid"}


# ---- Formulae ----


def _sigmoid(x: Any) -> Any:
    power = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + power), power / (1 + power))


def _silu(x: Any) -> Any:
    return np.where(x == -np.inf, -0.0, x * _sigmoid(x))


def _silu_slope(x: Any) -> Any:
    """The derivative of SiLU, with its limits at ±∞."""
    s = _sigmoid(x)
    return np.where(np.isinf(x), s, s + s * (x * _sigmoid(-x)))


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _binade(x: Any) -> Any:
    mantissa, exponent = np.frexp(np.abs(x))
    power = np.ldexp(np.where(mantissa == 0, 0.0, 1.0), exponent - 1)
    return np.where(np.isfinite(x), power, np.abs(x))


def _rounded(x: Any, dtype: str) -> Any:
    """Rounds to the nearest numbers of a narrower type, ties to even."""
    if dtype == "int8":
        return np.where(np.isnan(x), 0.0, np.clip(np.rint(x), -128, 127))
    form = DTYPES[dtype]
    _, exponent = np.frexp(x)
    unit = np.ldexp(1.0, np.maximum(exponent - form.bits, form.least))
    nearest = np.rint(x / unit) * unit
    if dtype == "float8_e8m0fnu":  # it has neither a sign nor a zero
        return np.where((x < 0) | np.isinf(x), np.nan, np.clip(nearest, 2.0**-127, 2.0**127))
    if dtype in LARGEST:
        return np.clip(nearest, -LARGEST[dtype], LARGEST[dtype])
    return np.where(np.abs(nearest) >= np.ldexp(1.0, form.beyond), np.copysign(np.inf, x), nearest)


# ---- Derivatives ----


def _cut(f: Any, x: Any) -> Any:
    """Clamps x to ±1000, for products with a factor that is 0 there: 0 times ∞ would be NaN."""
    return f.maximum(f.minimum(x, 1e3), -1e3)


def silu_slope(f: Any, x: Any) -> Any:
    """The derivative of SiLU, with its limits at ±∞: `_cut` changes x only where σ is 0 or 1."""
    s = f.sigmoid(x)
    return s + s * (_cut(f, x) * f.sigmoid(-x))


def _gelu_second(f: Any, x: Any, kind: str) -> Any:
    """The second derivative of GELU as other operations, for the third one and higher."""
    if kind == "none":
        return f.gauss(x, halved=True) * ((2.0 - x * x) * (1 / sqrt(2 * pi)))
    k, c = (2 * sqrt(2 / pi), 0.044715) if kind == "tanh" else (1.702, 0.0)
    u, first, bend = k * (x + c * x**3), k + (3 * c * k) * (x * x), (6 * c * k) * x
    p, q = f.sigmoid(u), f.sigmoid(-u)
    return (p * q) * (2.0 * first + x * (bend + (q - p) * (first * first)))


# ---- The table ----


def _function(name: str, formula: Any, rule: Any, **others: Any) -> Scalar:
    """Returns a function of one number; bridge.lang and cpp/math have it under the same name."""
    others = {"cost": FUNCTION, "cpp": f"math::{name}(a)", **others}
    return Scalar(name, 1, formula=formula, rule=rule, is_public=True, **others)


def _compared(name: str, symbol: str, sign: str, formula: Any) -> Scalar:
    inline = f"a {sign} b"
    return Scalar(name, 2, SHORT, f"truth<Real>({inline})", formula, symbol=symbol, inline=inline)


def _step(name: str, arity: int, cpp: str, cost: Cost = FUNCTION, **others: Any) -> Scalar:
    """A step of softmax or log Σ eˣ: derivatives and the reference see the whole function."""
    return Scalar(name, arity, cost, cpp, **others)


def _gelu(kind: str, order: int) -> Scalar:
    """A derivative of GELU. The chain rule would cancel digits of the first two."""
    form = f"GeluForm::{_GELU[kind].removeprefix('gelu_')}"
    name = f"{_GELU[kind]}_{order}" if order else _GELU[kind]
    shared = min(order, 1)
    halves = Halves(
        f"{_GELU[kind]}_{shared}" if shared else _GELU[kind],
        f"math::detail::start_gelu<{form}, {shared}>(a)",
        f"math::detail::finish_gelu<{form}, {order}>(a, started)",
    )
    return Scalar(
        name,
        1,
        FUNCTION,
        f"math::gelu<Precision, {form}, {order}>(a)",
        partial(gelu_derivative, form=kind, order=order),
        (lambda f, y, x: [f.apply("gelu", x, static=(kind, order + 1))]) if order < 2 else None,
        partial(_gelu_second, kind=kind) if order == 2 else None,
        halves=None if kind == "none" else halves,
        of=(("gelu", (kind, order)),),
        is_public=order == 0,
    )


def _for_16_bits(exact: Scalar, dtype: str, cpp: str = "") -> Scalar:
    """A cheaper function for results of a 16-bit type."""
    (operation, static), *_ = exact.nodes
    return replace(
        exact,
        name=f"{exact.name}_{dtype}",
        cpp=cpp or exact.cpp.replace("Precision", dtype.capitalize()),
        halves=None,
        of=((operation, dtype if static is None else (*static, dtype)),),
        is_for_16_bits=True,
        is_public=False,
    )


_START = "math::start_logistic(a)"
_SIGMOID = _function(
    *("sigmoid", _sigmoid, lambda f, y, x: [y * f.sigmoid(-x)]),
    halves=Halves("silu", _START, "math::sigmoid(a, started)"),
)
_SILU = _function(
    *("silu", _silu, lambda f, y, x: [silu_slope(f, x)]),
    halves=Halves("silu", _START, "math::silu(a, started)"),
)
_SILU_SLOPE = Scalar("silu_slope", 1, FUNCTION, "", _silu_slope)  # only for 16 bits
_GELUS = [_gelu(kind, order) for kind in _GELU for order in range(3)]
_GAUSS = Scalar(
    *("gauss", 1, FUNCTION, "math::gauss<false>(a)", lambda x: np.exp(-1.0 * x * x)),
    lambda f, y, x: [-2.0 * (_cut(f, x) * y)],
    of=(("gauss", 1.0),),
)
_GAUSS_HALVED = Scalar(
    *("gauss_halved", 1, FUNCTION, "math::gauss<true>(a)", lambda x: np.exp(-0.5 * x * x)),
    lambda f, y, x: [-1.0 * (_cut(f, x) * y)],
    of=(("gauss", 0.5),),
)
_EXP_LOW = Scalar("exp_low", 1, FUNCTION, "math::exp_low(a)", np.exp, lambda f, y, x: [y])


def _all_for_16_bits(dtype: str) -> list[Scalar]:
    logistic = [
        _for_16_bits(each, dtype, f"math::{each.name}_for_16_bits<{dtype.capitalize()}>(a)")
        for each in (_SIGMOID, _SILU, _SILU_SLOPE)
    ]
    return logistic + [_for_16_bits(each, dtype) for each in _GELUS if not each.name.endswith("_2")]


def _rounding(dtype: str, element: str, cost: Cost) -> Scalar:
    return Scalar(
        *(f"round_{dtype}", 1, cost, f"rounded<{element}>(a)", partial(_rounded, dtype=dtype)),
        of=(("rounded", dtype),),
    )


# Their numbers are their places. Programs that JAX has exported or cached contain the numbers: add
# an operation at the end, and raise VERSION. The same goes for OTHERS in instructions.py.
SCALARS: tuple[Scalar, ...] = (
    Scalar("neg", 1, SHORT, "math::negated(a)", np.negative, symbol="Negative"),
    _function(
        *("abs", np.abs),
        lambda f, y, x: [f.where(x > 0.0, 1.0, f.where(x < 0.0, -1.0, 0.0))],
        cost=SHORT,
        cpp="math::absolute(a)",
        symbol="Absolute",
    ),
    _function(
        *("sqrt", np.sqrt, lambda f, y, x: [0.5 / y]),
        cost=ROOT,
        cpp="square_root(a)",
        symbol="SquareRoot",
    ),
    _function(
        *("rsqrt", lambda x: 1 / np.sqrt(x), lambda f, y, x: [-0.5 * (y * y * y)]),
        cost=ROOT,
        cpp="Real(1) / square_root(a)",
        symbol="ReciprocalRoot",
    ),
    _function("exp", np.exp, lambda f, y, x: [y]),
    _function("exp2", np.exp2, lambda f, y, x: [log(2) * y]),
    _function("expm1", np.expm1, lambda f, y, x: [f.exp(x)]),
    _function("log", np.log, lambda f, y, x: [1.0 / x]),
    _function("log1p", np.log1p, lambda f, y, x: [1.0 / (1.0 + x)]),
    _function("tanh", np.tanh, lambda f, y, x: [4.0 * (f.sigmoid(2.0 * x) * f.sigmoid(-2.0 * x))]),
    _SIGMOID,
    _SILU,
    _function("softplus", _softplus, lambda f, y, x: [f.sigmoid(x)]),
    _function("erf", _erf, lambda f, y, x: [2 / sqrt(pi) * f.gauss(x)]),
    _GAUSS,
    _GAUSS_HALVED,
    *_GELUS,
    Scalar("not", 1, SHORT, "truth<Real>(a == 0)", np.logical_not, inline="!a"),
    _step("exp_coarse", 1, "math::exp_coarse(a)", COARSE),
    _EXP_LOW,
    _rounding("float16", "math::float16", CONVERSION),
    _rounding("bfloat16", "math::bfloat16", CONVERSION),
    _rounding("float32", "float", SHORT),
    *_all_for_16_bits("float16"),
    *_all_for_16_bits("bfloat16"),
    _step("reciprocal_16", 1, "reciprocal_16(a)"),
    replace(
        _EXP_LOW,
        name="exp_low_16",
        cpp="math::exp_low<true>(a)",
        of=tuple(("exp_low", dtype) for dtype in OF_16_BITS),
        is_for_16_bits=True,
    ),
    Scalar("add", 2, SHORT, "a + b", np.add),
    Scalar("sub", 2, SHORT, "a - b", np.subtract, symbol="Subtract"),
    Scalar("mul", 2, SHORT, "a * b", np.multiply, lambda f, y, a, b: [b, a], symbol="Multiply"),
    Scalar("div", 2, ROOT, "a / b", np.divide, symbol="Divide"),
    Scalar("minimum", 2, SHORT, "smaller_of(a, b)", np.minimum, is_public=True),
    Scalar("maximum", 2, SHORT, "larger_of(a, b)", np.maximum, is_public=True),
    _compared("lt", "Less", "<", np.less),
    _compared("le", "LessEqual", "<=", np.less_equal),
    _compared("eq", "Equal", "==", np.equal),
    _compared("ne", "NotEqual", "!=", np.not_equal),
    Scalar(
        *("and", 2, SHORT, "truth<Real>((a != 0) & (b != 0))", np.logical_and),
        inline="a & b",
    ),
    Scalar(
        *("or", 2, SHORT, "truth<Real>((a != 0) | (b != 0))", np.logical_or),
        inline="a | b",
    ),
    _step("exp2_lifted", 2, "exp2_lifted(a, b)"),
    _step("log_sum_term", 2, "math::log_sum_term<false>(a, b)"),
    _step("log_sum_term_16", 2, "math::log_sum_term<true>(a, b)"),
    Scalar(
        *("fma", 3, SHORT, "math::fma(a, b, c)", lambda x, y, z: x * y + z),
        lambda f, y, a, b, c: [b, a, a.builder.constant(1.0)],
        is_public=True,
    ),
    Scalar(
        *("where", 3, SHORT, "a != 0 ? b : c", np.where),
        inline="a ? b : c",
        is_public=True,
    ),
    _step("log_sum", 3, "math::log_sum<false>(a, b, c)"),
    _step("log_sum_rest", 3, "math::log_sum_rest<false>(a, b, c)"),
    _step("log_sum_16", 3, "math::log_sum<true>(a, b, c)"),
    _step("log_sum_rest_16", 3, "math::log_sum_rest<true>(a, b, c)"),
    _step("exp2_below_float16", 3, "exp2_below_16<math::SingleForFloat16>(a, b, c)"),
    _step("exp2_below_bfloat16", 3, "exp2_below_16<math::SingleForBfloat16>(a, b, c)"),
    _rounding("int8", "int8_t", CONVERSION),
    _rounding("float8_e4m3fn", "math::float8_e4m3fn", CONVERSION),
    _rounding("float8_e5m2", "math::float8_e5m2", CONVERSION),
    _rounding("float8_e8m0fnu", "math::float8_e8m0fnu", CONVERSION),
    _function("binade", _binade, lambda f, y, x: [0.0 * y], cost=SHORT, cpp="binade(a)"),
    _function("sin", np.sin, lambda f, y, x: [f.cos(x)], cost=ANGLE),
    _function("cos", np.cos, lambda f, y, x: [-f.sin(x)], cost=ANGLE),
)

# The operation of each node of a program: by the node's operation and static parameter.
BY_NODE = {node: scalar for scalar in SCALARS for node in scalar.nodes}
FOR_16_BITS = {node for node, scalar in BY_NODE.items() if scalar.is_for_16_bits}
# Operations, without static parameters, with functions in bridge.lang, by their arity.
PUBLIC = {node[0]: scalar.arity for node, scalar in BY_NODE.items() if scalar.is_public}


def scalar_of(operation: str, static: Any = None) -> Scalar | None:
    """Returns the scalar operation that computes a node, or None for other nodes."""
    return BY_NODE.get((operation, static)) or BY_NODE.get((operation, None))
