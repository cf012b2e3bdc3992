"""Normalisations of rows, with an optional residual added first.

The sum is rounded to its dtype before it is normalised, so one call gives the bits of two.
"""

from __future__ import annotations

import math
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays

RMS_CHECKS = {"eps": checks.eps, "offset": checks.finite}
RMS_NEEDS = {"offset": "weight"}
LAYER_CHECKS = {"eps": checks.eps}


def inverse(h: Any, eps: float) -> Any:
    """Returns r, one number per row."""
    return bl.rsqrt(bl.mean(h * h) + eps)


def whole(weight: Any, offset: float) -> Any:
    """Returns offset + weight."""
    return weight if weight is None or offset == 0 else offset + weight


def scaled(normal: Any, weight: Any) -> Any:
    """Returns normal·weight, or `normal` alone without a weight."""
    return normal if weight is None else normal * weight


def cotangents(normal: Any, r: Any, weight: Any, g: Any, is_centred: bool) -> list[Any]:
    """Returns the cotangents of h and, if there is one, of weight."""
    wg = g if weight is None else g * weight
    rest = wg - bl.mean(wg) if is_centred else wg
    dh = r * (rest - normal * bl.mean(wg * normal))
    return [dh] if weight is None else [dh, g * normal]


def _rms_rule(h: Any, weight: Any, g: Any, eps: float, offset: float) -> list[Any]:
    r = inverse(h, eps)
    return cotangents(h * r, r, whole(weight, offset), g, is_centred=False)


def _rms_vjp(x: Any, weight: Any, y: Any, g: Any, *, eps: float, offset: float) -> Any:
    return _rms_rule(x, weight, g, eps, offset)


@declared(keep=("r",), vjp=_rms_vjp, checks=RMS_CHECKS, needs=RMS_NEEDS)
def rms_norm(x: bl.Full, weight: bl.Row | None = None, *, eps: float = 1e-6, offset: float = 0.0):
    r = inverse(x, eps)
    return scaled(x * r, whole(weight, offset))


def _returned(h: Any, x: Any, residual: Any, like: str) -> Any:
    return bl.like(h, x if like == "x" else residual)


def _added(x: Any, residual: Any, dtype: str) -> tuple[Any, Any]:
    """Returns the sum, and the sum for the norm, whose cotangent is rounded like that of a call."""
    h = bl.rounded(x + residual, dtype)
    return h, bl.rounded(h, dtype)


def _through_sum(cotangents: list[Any], gh: Any, dtype: str) -> list[Any]:
    """Returns the cotangents of x, residual and the rest.

    They have the roundings of two calls: a norm without residual, and an addition.
    """
    dh, *others = cotangents
    total = bl.rounded(bl.rounded(dh, dtype) + gh, dtype)
    return [total, total, *others]


def _add_rms_vjp(
    x: Any,
    residual: Any,
    weight: Any,
    y: Any,
    h: Any,
    g: Any,
    gh: Any,
    *,
    eps: float,
    offset: float,
    dtype: str,
    like: str,
) -> Any:
    _, read = _added(x, residual, dtype)
    return _through_sum(_rms_rule(read, weight, g, eps, offset), gh, dtype)


@declared(keep=("h", "r"), vjp=_add_rms_vjp, checks=RMS_CHECKS, needs=RMS_NEEDS)
@named("rms_norm")
def add_rms_norm(
    x: bl.Full,
    residual: bl.Full,
    weight: bl.Row | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    dtype: str = "float32",
    like: str = "x",
):
    h, read = _added(x, residual, dtype)
    r = inverse(read, eps)
    return scaled(read * r, whole(weight, offset)), _returned(h, x, residual, like)


def moments(h: Any, eps: float) -> tuple[Any, Any, Any]:
    """Returns the rounded mean of a row, the mean of h minus that, and 1/√(variance + eps).

    The second mean is the rounding error of the first. Both are subtracted from h one after the
    other, because their sum would be rounded again, with a large error if the mean is far above the
    spread. A row of equal numbers has the variance 0, even if the squares overflow.

    Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance" (1983), eq. 1.7.
    """
    mean = bl.stop_gradient(bl.mean(h))
    centred = h - mean
    correction = bl.mean(centred)
    excess, square = correction * correction, bl.mean(centred * centred)
    variance = bl.where(excess < math.inf, square - excess, square)
    return mean, correction, bl.rsqrt(bl.maximum(variance, 0.0) + eps)


def shifted(normal: Any, weight: Any, bias: Any) -> Any:
    """Returns normal·weight + bias, without what is absent."""
    return scaled(normal, weight) if bias is None else scaled(normal, weight) + bias


def _layer_rule(h: Any, weight: Any, bias: Any, g: Any, eps: float) -> list[Any]:
    mean, correction, r = moments(h, eps)
    normal = (h - mean - correction) * r
    found = cotangents(normal, r, weight, g, is_centred=True)
    return found if bias is None else [*found, g]


def _layer_vjp(x: Any, weight: Any, bias: Any, y: Any, g: Any, *, eps: float) -> Any:
    return _layer_rule(x, weight, bias, g, eps)


@declared(keep=("mean", "correction", "r"), vjp=_layer_vjp, checks=LAYER_CHECKS)
def layer_norm(
    x: bl.Full, weight: bl.Row | None = None, bias: bl.Row | None = None, *, eps: float = 1e-5
):
    mean, correction, r = moments(x, eps)
    return shifted((x - mean - correction) * r, weight, bias)


def _add_layer_vjp(
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    y: Any,
    h: Any,
    g: Any,
    gh: Any,
    *,
    eps: float,
    dtype: str,
    like: str,
) -> Any:
    _, read = _added(x, residual, dtype)
    return _through_sum(_layer_rule(read, weight, bias, g, eps), gh, dtype)


@declared(keep=("h", "mean", "correction", "r"), vjp=_add_layer_vjp, checks=LAYER_CHECKS)
@named("layer_norm")
def add_layer_norm(
    x: bl.Full,
    residual: bl.Full,
    weight: bl.Row | None = None,
    bias: bl.Row | None = None,
    *,
    eps: float = 1e-5,
    dtype: str = "float32",
    like: str = "x",
):
    h, read = _added(x, residual, dtype)
    mean, correction, r = moments(read, eps)
    normal = (read - mean - correction) * r
    return shifted(normal, weight, bias), _returned(h, x, residual, like)


def summands(arrays: Arrays, x: Any, residual: Any) -> tuple[Any, Any, str, str]:
    """Returns x and residual, one of them cast to the sum's dtype, and `dtype` and `like`."""
    dtypes = arrays.dtype_of(x), arrays.dtype_of(residual)
    if not all(dtype in FLOATING for dtype in dtypes):  # the op raises its own error
        return x, residual, "float32", "x"
    dtype = promote(*dtypes)
    if dtype not in dtypes:
        return arrays.cast(x, dtype), residual, dtype, "x"
    return x, residual, dtype, ("x", "residual")[dtypes.index(dtype)]
