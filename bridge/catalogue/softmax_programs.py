"""Softmax of a scaled row whose elements may be hidden, and its derivatives, as programs.

`last` is the last visible column of each row, for the causal rule. softmax and softmax_jacobian
have kernels written by hand, with the same operations in the same order (cpp/math/softmax.h). Their
scale is a parameter, so one kernel takes every scale.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from bridge.lang import codes, functions, roles
from bridge.lang.applied import apply, parameter
from bridge.lang.tracing import declared, trace
from bridge.ops.program_params import ProgramParams

_LOG2E, _LOG2E_LOW = float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56")


@dataclass(frozen=True)
class _Format:
    """The constants of cpp/math/softmax.h and cpp/math/exp2.h for one type."""

    largest: float
    bound: int
    most_halvings: int
    small: float
    smallest_rate: float
    magic: float


_FORMATS = {
    "float32": _Format(
        float(np.finfo(np.float32).max), 180, 125, 2.0**-60, 2.0**-100, 1.5 * 2.0**23 + 64 + 127
    ),
    "float64": _Format(
        float(np.finfo(np.float64).max), 1140, 1021, 2.0**-500, 0.0, 1.5 * 2.0**52 + 512 + 1023
    ),
}
# The bits before the point in the fixed-point exponent of a power, by the dtype of the results.
_WHOLE_BITS = {"bfloat16": 8, "float16": 6}


@dataclass(frozen=True)
class Scale:
    """A scale in the form that powers use: `SoftmaxScale` of cpp/math/softmax.h."""

    half: float
    rate: float
    rate_low: float = 0.0
    floor: float = -1.0

    @classmethod
    def of(cls, scale: float, dtype: str) -> Scale:
        """Returns the scale for results of a dtype."""
        arithmetic = arithmetic_of(dtype)
        form, rounded = _FORMATS[arithmetic], np.dtype(arithmetic).type
        size, sign = min(abs(scale), form.largest / 4), math.copysign(1.0, scale)
        if size == 0:
            return cls(0.0, 0.0)
        if dtype in _WHOLE_BITS:
            return cls(sign, float(rounded(size * _LOG2E * 2.0 ** (1 - _WHOLE_BITS[dtype]))))
        halvings = form.most_halvings if size < form.small else 0
        twice = size * 2.0**halvings * 2
        rate = twice * _LOG2E
        # The rounding error of the product, which is exact, as by fma.
        low = float(Fraction(twice) * Fraction(_LOG2E) - Fraction(rate)) + twice * _LOG2E_LOW
        low = (rate - float(rounded(rate))) + low
        rate = float(rounded(rate))
        if rate < form.smallest_rate:
            rate, low = form.smallest_rate, 0.0
        floor = float(rounded(-form.bound / rate))
        return cls(sign * 2.0 ** (-1 - halvings), rate, float(rounded(low)), floor)


def arithmetic_of(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _hidden(mask: Any | None, last: Any | None) -> Any | None:
    """Returns True for elements hidden by the mask or behind `last`; None if there is neither."""
    if last is None:
        return mask
    behind = functions.column() > last
    return behind if mask is None else mask | behind


def _unless(hidden: Any | None, instead: float, value: Any) -> Any:
    return value if hidden is None else functions.where(hidden, instead, value)


def softmax(
    x: roles.Full,
    mask: roles.Mask | None = None,
    last: roles.PerRow[int] | None = None,
    *,
    scale: Scale,
    dtype: str,
) -> Any:
    form, hidden = _FORMATS[arithmetic_of(dtype)], _hidden(mask, last)
    half, rate, *lower = _parameters(scale, 2 if dtype in _WHOLE_BITS else 4)
    key = _unless(hidden, -math.inf, x * half)
    largest = functions.max(key)
    largest = functions.where(largest < -form.largest, 0.0, largest)
    if dtype in _WHOLE_BITS:
        power = apply(f"exp2_below_{dtype}", key, largest, rate)
        # NaN where the largest key is NaN or infinite.
        total = functions.fma(largest, 0.0, functions.sum(power))
        value = power * apply("reciprocal_16", total)
    else:
        rate_low, floor = lower
        power = _power(key, largest, rate, rate_low, floor, form)
        high, low = _inverse(power, dtype)
        value = functions.fma(power, high, power * low)
    return _unless(hidden, 0.0, value)


def _parameters(scale: Scale, count: int) -> list[Any]:
    """Returns the first numbers of a scale as parameters of the program, in this order."""
    return [parameter(getattr(scale, f.name), f.name) for f in fields(scale)[:count]]


def _power(
    key: Any, largest: Any, rate: Any, rate_low: Any, floor_of_scale: Any, form: _Format
) -> Any:
    """Returns `softmax_power`, with the shift of `softmax_shift`."""
    fma, where = functions.fma, functions.where
    is_moderate = abs(largest * rate) < 4.0 * form.bound
    whole = fma(largest, rate, form.magic) - form.magic
    shift = where(is_moderate, 0.0, largest)
    magic = where(is_moderate, form.magic - whole, form.magic)
    floor = where(is_moderate, floor_of_scale + largest, floor_of_scale)
    t = key - shift
    shifted = fma(t, rate, magic)
    n = shifted - magic
    f = fma(t, rate, -n)
    power = apply("exp2_lifted", fma(t, rate_low, f), shifted)
    return where(t < floor, 0.0, power)


def _inverse(power: Any, dtype: str) -> tuple[Any, Any]:
    """Returns `softmax_inverse` of the sum of `softmax_term`: the inverse, its rounding error."""
    fma = functions.fma
    if dtype == "float64":
        total, rest = functions.sum(power), None
    else:
        coarse_part = apply("exp_coarse", power)
        coarse, fine = functions.sum(coarse_part), functions.sum(power - coarse_part)
        total = coarse + fine
        added = total - coarse
        rest = (coarse - (total - added)) + (fine - added)
    high = functions.where(total == 0.0, 0.0, 1.0 / total)
    lacking = fma(-total, high, 1.0)
    return high, high * (lacking if rest is None else lacking - rest * high)


def softmax_jacobian(
    u: roles.Full, v: roles.Full, last: roles.PerRow[int] | None = None, *, scale: float
) -> Any:
    is_zero, hidden = u == 0.0, _hidden(None, last)
    nothing = is_zero if hidden is None else is_zero | hidden
    factor = parameter(scale, "scale")
    dot = functions.sum(functions.where(nothing, -0.0, u * v))
    return functions.where(nothing, 0.0, factor * (u * (v - dot)))


def softmax_derivative(
    u: roles.Full,
    v: roles.Full,
    w: roles.Full,
    last: roles.PerRow[int] | None = None,
    *,
    scale: float,
    product: bool,
    factors: tuple[bool, bool, bool],
) -> Any:
    hidden, of_scale = _hidden(None, last), parameter(scale, "scale")
    total: Any = u * v if product else None
    for factor, others, is_asked in zip((u, v, w), ((v, w), (u, w), (u, v)), factors, strict=True):
        if not is_asked:
            continue
        dot = functions.sum(_unless(hidden, -0.0, others[0] * others[1]))
        total = -(factor * dot) if total is None else functions.fma(-factor, dot, total)
    return _unless(hidden, 0.0, of_scale * total)


@functools.lru_cache(maxsize=1024)
def softmax_program(scale: float, dtype: str, present: tuple[bool, bool]) -> ProgramParams:
    """Returns the call on x and, if `present`, mask and last."""
    static = {"scale": Scale.of(scale, dtype), "dtype": dtype}
    return _params(softmax, (True, *present), static, dtype, ("softmax", scale, present[1]))


@functools.lru_cache(maxsize=1024)
def jacobian_program(scale: float, dtype: str, has_last: bool) -> ProgramParams:
    """Returns the call on u, v and perhaps last for scale·u(v − ⟨u,v⟩), which is 0 where u is."""
    static = {"scale": _factor(scale, dtype)}
    return _params(
        softmax_jacobian, (True, True, has_last), static, dtype, ("jacobian", scale, has_last)
    )


@functools.lru_cache(maxsize=1024)
def derivative_program(
    scale: float,
    dtype: str,
    product: bool,
    factors: tuple[bool, bool, bool],
    has_last: bool,
) -> ProgramParams:
    """Returns the call on u, v, w and perhaps last for scale times a sum of terms.

    Args:
      product: the term u∘v is there.
      factors: the terms −u⟨v,w⟩, −v⟨u,w⟩ and −w⟨u,v⟩ are there.
    """
    static = {"scale": _factor(scale, dtype), "product": product, "factors": factors}
    present, place = (
        (True, True, True, has_last),
        ("derivative", scale, has_last, product, *factors),
    )
    return _params(softmax_derivative, present, static, dtype, place)


def text_of(kind: str, scale: float, dtype: str, present: Any) -> str:
    """Returns the serialized softmax or jacobian, which dynamo takes as a constant."""
    program: Any = {"softmax": softmax_program, "jacobian": jacobian_program}[kind]
    return program(scale, dtype, present).code  # type: ignore[no-any-return]


def params_of(kind: str, scale: float, dtype: str, present: Any) -> ProgramParams:
    """Returns the parameters of a call of the softmax or jacobian."""
    return ProgramParams(text_of(kind, scale, dtype, present), arithmetic_of(dtype), dtype)


def _params(
    function: Any,
    present: tuple[bool, ...],
    static: dict[str, Any],
    dtype: str,
    place: tuple[Any, ...],
) -> ProgramParams:
    program = trace(declared(function), present, static)
    code = codes.code_of(program, family=("softmax", *place))
    return ProgramParams(code, arithmetic_of(dtype), dtype)


def _factor(scale: float, dtype: str) -> float:
    """Returns the scale, or the finite number of the arithmetic type that is nearest to it."""
    if dtype == "float64":
        return scale
    largest = _FORMATS["float32"].largest
    return float(np.float32(min(max(scale, -largest), largest)))
