"""Forms of pools and interpolation, linear maps of the places of an image.

The matrix of a map comes from torch's function in float64, applied to each place alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact, no_own

Shape = tuple[int, ...]
# An image's matrix [n or 1, c or 1, places, results] for operands.
Matrix = Callable[[Operands], Array]


def _beside(x: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds the argument by which JAX finds the channels."""
    return {**options, "axis": 1} if hasattr(x, "astype") else options


def _matrix_of(function: Callable[[Any], Any], sizes: Shape) -> Array:
    """Returns the matrix [1, 1, places, results] of a linear function of `[n, 1, *sizes]`."""
    import torch

    count = math.prod(sizes)
    each = torch.eye(count, dtype=torch.float64).reshape(count, 1, *sizes)
    return np.asarray(function(each)).reshape(1, 1, count, -1)


def _flat(x: Bounded) -> Bounded:
    """Returns rows [n, c, 1, places] of images."""
    return x.as_view(lambda a: a.reshape(*a.shape[:2], 1, -1))


def _linear_bounds(
    matrix: Matrix,
    rounded: int,
    forward: Callable[[Operands], Array] | None,
    entry_error: float = 0.0,
) -> Callable[[Any, Operands], Mapping[str, Bounded]]:
    """Returns the bounds of a linear map, whose second derivative by x is 0.

    Args:
      rounded: the roundings beside those of additions: of a weight, or of a quotient.
      forward: the value, if it does not follow from the matrix.
      entry_error: the largest error of an entry of the matrix that is not 0, which float64 shows.
    """

    def of_case(case: Any, p: Operands) -> Mapping[str, Bounded]:
        own, entries = Arithmetic(case.arithmetic), exact(matrix(p))
        errors = np.where(entries.values == 0, 0.0, entry_error)
        forth = Bounded(entries.values, errors, entries.unit)

        def mapped(name: str, by: Bounded) -> Bounded:
            # A sum of one term and a weight of 1 has no rounding.
            terms = int(np.count_nonzero(by.values, axis=-2).max(initial=0))
            is_exact = terms <= 1 and {*np.unique(by.values)} <= {0.0, 1.0}
            shape = p["x"].shape if name == "g" else p["g"].shape
            rows = _flat(exact(p[name]))
            made = own.sums_of_products(np.matmul, rows, by, 0 if is_exact else terms + rounded)
            made = made.as_view(lambda a: a.reshape(shape))
            return Bounded(made.values, 0.0 * made.error, made.unit) if is_exact else made

        value = mapped("x", forth) if forward is None else exact(forward(p))
        return {
            "forward": value,
            "dx": mapped("g", forth.turned),
            "jvp": mapped("t_x", forth),
            "d2x": exact(np.zeros(p["x"].shape)),
            "d2g": mapped("v_x", forth),
        }

    return of_case


def _form(
    name: str,
    x: Shape,
    places: Shape,
    call: Callable[[Any, Operands], Any],
    bounds: Callable[[Any, Operands], Mapping[str, Bounded]],
    role: str = "planes",
    **others: Any,
) -> Entry:
    return Entry(
        name,
        {"x": role},
        ("resized",),
        call,
        no_own,
        no_own,
        compared=Comparison(
            "images",
            bounds=bounds,
            second_order=True,
            own=False,
            usual=False,
            shapes=((*x, *places),),
            **others,
        ),
    )


# ---- Pools ----


def _pooled(name: str, x: Shape, places: Shape, **options: Any) -> Entry:
    """Returns a form of avg_pool or adaptive_avg_pool."""
    word, dims = name.split()[0], len(places)

    def call(ops: Any, p: Operands) -> Any:
        return getattr(ops, word)(p["x"], **_beside(p["x"], options))

    def matrix(p: Operands) -> Array:
        from torch.nn import functional

        return _matrix_of(lambda x: getattr(functional, f"{word}{dims}d")(x, **options), x[2:])

    return _form(name, x, places, call, _linear_bounds(matrix, 1, None))


def _chosen(p: Operands, options: Mapping[str, Any]) -> tuple[Array, Array]:
    """Returns the largest numbers of windows and their places, by torch's function in float64."""
    import torch

    x = torch.from_numpy(p["x"])
    function = getattr(torch.nn.functional, f"max_pool{x.ndim - 2}d")
    values, places = function(x, **options, return_indices=True)
    return np.asarray(values), np.asarray(places)


def _max_pool(name: str, x: Shape, places: Shape, **options: Any) -> tuple[Entry, Entry]:
    """Returns the forms of the values, and of their places."""

    def matrix(p: Operands) -> Array:
        chosen = _chosen(p, options)[1].reshape(*x[:2], 1, -1)
        every = np.arange(math.prod(x[2:]))[:, None]
        return np.asarray(chosen == every, np.float64)

    def call(ops: Any, p: Operands) -> Any:
        return ops.max_pool(p["x"], **_beside(p["x"], options))

    def places_of(ops: Any, p: Operands) -> Any:
        given = _beside(p["x"], {**options, "return_indices": True})
        found = ops.max_pool(p["x"], **given)[1]
        # Integers of these sizes are numbers of every dtype.
        return found.astype(p["x"].dtype) if hasattr(found, "astype") else found.to(p["x"].dtype)

    def bounds_of_places(case: Any, p: Operands) -> Mapping[str, Bounded]:
        return {"forward": exact(_chosen(p, options)[1])}

    values = _linear_bounds(matrix, 0, lambda p: _chosen(p, options)[0])
    return (
        _form(name, x, places, call, values, "planes of levels"),
        _form(
            f"{name}, places",
            x,
            places,
            places_of,
            bounds_of_places,
            "planes of special levels",
            differentiable=False,
        ),
    )


# ---- Interpolation ----


def _interpolated(name: str, x: Shape, places: Shape, **options: Any) -> Entry:
    given = {"size": places, **options}

    def call(ops: Any, p: Operands) -> Any:
        return ops.interpolate(p["x"], **_beside(p["x"], given))

    def matrix(p: Operands) -> Array:
        from torch.nn import functional

        return _matrix_of(lambda x: functional.interpolate(x, **given), x[2:])

    # One axis after the other: an axis rounds its weights, and each of its numbers once more.
    rounded, error = 2 * len(places), 0.0
    if "linear" in options["mode"] or "cubic" in options["mode"]:
        # A weight depends on a coordinate, which has three roundings of numbers up to the size; its
        # slope is at most 2. The cubic polynomials have three roundings of numbers up to 6. Torch
        # has these errors too, and a weight of the other axis is at most 1.
        polynomial = 3 * 6 if "cubic" in options["mode"] else 0
        error = len(places) * 2 * (2 * 3 * max(x[2:]) + polynomial) * 2.0**-53
    return _form(name, x, places, call, _linear_bounds(matrix, rounded, None, error))


IMAGES = (
    *_max_pool("max_pool", (4, 3, 7, 8), (4, 4), kernel_size=3, stride=2, padding=1),
    *_max_pool("max_pool dilated", (5, 3, 9), (5,), kernel_size=3, stride=1, dilation=2),
    _pooled(
        "avg_pool",
        (4, 3, 7, 8),
        (4, 4),
        kernel_size=3,
        stride=2,
        padding=1,
        count_include_pad=False,
    ),
    _pooled("avg_pool of volumes", (5, 2, 3, 4, 5), (1, 2, 2), kernel_size=2),
    _pooled("adaptive_avg_pool", (4, 3, 7, 5), (3, 2), output_size=(3, 2)),
    _pooled("adaptive_avg_pool to one place", (4, 3, 7, 5), (1, 1), output_size=(1, 1)),
    _interpolated("interpolate nearest", (4, 3, 5, 7), (11, 3), mode="nearest"),
    _interpolated("interpolate area", (4, 3, 5, 7), (2, 3), mode="area"),
    _interpolated("interpolate bilinear", (4, 3, 5, 7), (11, 3), mode="bilinear"),
    _interpolated("interpolate bicubic", (4, 3, 5, 7), (7, 11), mode="bicubic"),
    _interpolated(
        "interpolate bicubic antialias", (4, 3, 9, 7), (4, 3), mode="bicubic", antialias=True
    ),
    _interpolated(
        "interpolate trilinear",
        (5, 2, 3, 2, 4),
        (5, 4, 3),
        mode="trilinear",
        align_corners=True,
    ),
)
