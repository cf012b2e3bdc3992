"""Resizing: weights along one axis, computed in float64, and the checks of `interpolate`.

Output place j reads the input around c = (j + 1/2)·scale − 1/2, with scale = input / output (or the
given factor), or c = j·(input − 1)/(output − 1) with align_corners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bridge.catalogue import checks
from bridge.catalogue.declaration import shape_of
from bridge.catalogue.vision.batch_norm_programs import dtype_of
from bridge.catalogue.vision.windows import Plan, Sizes, padded, weighted
from bridge.lang.dtypes import FLOATING
from bridge.ops.scalars import real_number, whole_number

NAME = "interpolate"
# The number of resized dimensions; None for 1 to 3.
MODES = {
    "nearest": None,
    "nearest-exact": None,
    "linear": 1,
    "bilinear": 2,
    "bicubic": 2,
    "trilinear": 3,
    "area": None,
}
_CUBIC = ("bicubic",)


def cubic(coefficient: float) -> Callable[[float], float]:
    """Returns the cubic convolution kernel. Source: Keys, IEEE ASSP 29 (1981)."""
    a = coefficient

    def weight(x: float) -> float:
        x = abs(x)
        if x < 1.0:
            return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a if x < 2.0 else 0.0

    return weight


def triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def resized(
    size: int,
    outputs: int,
    mode: str,
    align: bool,
    antialias: bool,
    factor: float | None,
    coefficient: float,
) -> Plan:
    """Returns the linear map along one axis."""
    if align:
        scale = (size - 1) / (outputs - 1) if outputs > 1 else 0.0
    else:
        scale = 1.0 / factor if factor else size / outputs
    places: list[list[int]] = []
    weights: list[list[float]] = []
    kernel = cubic(coefficient) if mode in _CUBIC else triangle
    for j in range(outputs):
        if mode == "nearest":
            own = [(min(math.floor(j * scale), size - 1), 1.0)]
        elif mode == "nearest-exact":
            own = [(min(math.floor((j + 0.5) * scale), size - 1), 1.0)]
        elif antialias:
            own = _wide(j, size, scale, kernel, 2.0 if mode in _CUBIC else 1.0)
        else:
            at = j * scale if align else (j + 0.5) * scale - 0.5
            own = _cubic(at, size, kernel) if mode in _CUBIC else _linear(at, size)
        places.append([place for place, _ in own])
        weights.append([weight for _, weight in own])
    table = padded(places)
    found = np.zeros(table.shape)
    for row, own_weights in zip(found, weights, strict=True):
        row[: len(own_weights)] = own_weights
    return weighted(table, found, size)


def _linear(at: float, size: int) -> list[tuple[int, float]]:
    at = max(at, 0.0)
    first = min(math.floor(at), size - 1)
    second = min(first + 1, size - 1)
    part = min(max(at - first, 0.0), 1.0)
    return [(first, 1.0 - part), (second, part)]


def _cubic(at: float, size: int, kernel: Callable[[float], float]) -> list[tuple[int, float]]:
    first = math.floor(at)
    part = at - first
    return [(min(max(first + tap, 0), size - 1), kernel(part - tap)) for tap in range(-1, 3)]


def _wide(
    j: int, size: int, scale: float, kernel: Callable[[float], float], reach: float
) -> list[tuple[int, float]]:
    """Returns the taps of a kernel that is as wide as an output, so that nothing is left out."""
    width = max(scale, 1.0)
    center, support = scale * (j + 0.5), reach * width
    first = max(int(center - support + 0.5), 0)
    end = min(int(center + support + 0.5), size)
    found = [kernel((place - center + 0.5) / width) for place in range(first, end)]
    total = math.fsum(found)
    return [
        (place, weight / total if total else weight)
        for place, weight in zip(range(first, end), found, strict=True)
    ]


def checked_sizes(
    input: Any,
    sizes: Sizes,
    size: Any,
    scale_factor: Any,
    mode: Any,
    align_corners: Any,
    recompute: Any,
    antialias: Any,
) -> tuple[Sizes, tuple[float | None, ...]]:
    """Returns the sizes of the output, and the given factors of the coordinates.

    Raises:
      TypeError, ValueError: for arguments that do not fit.
    """
    dtype, count = dtype_of(input), len(sizes)
    if dtype not in FLOATING:
        raise TypeError(f"{NAME}: input has dtype {dtype}, expected one of {', '.join(FLOATING)}")
    checks.word(MODES)(NAME, "mode", mode)
    if not 1 <= count <= 3 or MODES[mode] not in (None, count):
        wanted = "1 to 3" if MODES[mode] is None else str(MODES[mode])
        raise ValueError(
            f"{NAME}: input has shape {list(shape_of(input))}, expected images, channels and "
            f"{wanted} resized dimensions for mode {mode!r}"
        )
    if 0 in sizes:
        raise ValueError(
            f"{NAME}: input has shape {list(shape_of(input))}, expected at least one place"
        )
    has_corners = mode in ("linear", "bilinear", "bicubic", "trilinear")
    if align_corners is not None and not has_corners:
        raise ValueError(f"{NAME}: align_corners is given, expected None for mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(
            f"{NAME}: antialias is True, expected False for mode {mode!r}: bilinear and bicubic "
            "have it"
        )
    if (size is None) == (scale_factor is None):
        raise ValueError(
            f"{NAME}: size is {size} and scale_factor is {scale_factor}, expected one of them"
        )
    if size is not None:
        if recompute:
            raise ValueError(
                f"{NAME}: recompute_scale_factor is True, expected None with a size: there is no "
                "scale_factor"
            )
        given = _each("size", size, count)
        return tuple([whole_number(NAME, "size", each, 1) for each in given]), (None,) * count
    factors = [
        real_number(NAME, "scale_factor", f) for f in _each("scale_factor", scale_factor, count)
    ]
    found = []
    for own, factor in zip(sizes, factors, strict=True):
        if not (math.isfinite(factor) and math.floor(own * factor) >= 1):
            raise ValueError(
                f"{NAME}: scale_factor is {factor}, expected a positive number that leaves at "
                f"least one of {own} places"
            )
        found.append(math.floor(own * factor))
    return tuple(found), (None,) * count if recompute or mode == "area" else tuple(factors)


def _each(name: str, value: Any, count: int) -> Sequence[Any]:
    if not isinstance(value, (tuple, list)):
        return (value,) * count
    if len(value) != count:
        raise ValueError(
            f"{NAME}: {name} is {tuple(value)}, expected one number or {count}, one for each "
            "resized dimension"
        )
    return value
