"""Inputs of vision ops in JAX: their layout, and the compositions of pools."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from bridge.catalogue.vision.pooling import Laid, Pools, dimensions, laid
from bridge.catalogue.vision.taps import Taps
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_like, as_arrays, compiled_for
from bridge.jax._adapter.avals import unsplit
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition
from bridge.ops.scalars import whole_number


def checked(name: str, input: Any, size: Any, axis: Any) -> tuple[Any, int, tuple[int, ...]]:
    """Returns the array, the number of pooled dimensions and the sizes along them."""
    (x,) = as_arrays(as_array_like(name, "input", input))
    count, has_images = dimensions(name, x, size)
    axis = whole_number(name, "axis", arrays.known(name, "axis", axis), -9)
    channel = axis % x.ndim if -x.ndim <= axis < x.ndim else -1
    if channel not in (x.ndim - 1, int(has_images)):
        raise ValueError(
            f"{name}: axis is {axis}, expected -1 or {int(has_images)}, the dimension of the "
            "channels"
        )
    dims = range(int(has_images), x.ndim)
    return x, count, tuple([x.shape[dim] for dim in dims if dim != channel])


def channel_of(x: Any, count: int, axis: int) -> int:
    return int(axis) % x.ndim


@compiled_for
def compiled_pool(kind: str, count: int, channel: int, *static: Any) -> Any:
    def run(x: jax.Array) -> Any:
        x = unsplit(x, slice(x.ndim - count - 1, None))
        given: Laid = laid(functions.moved, x, count, channel, channel == x.ndim - 1)
        return getattr(pools, kind)(given, *static)

    run.__name__ = f"{kind}_pool"
    return run


taps = Taps(functions, Composition)
pools = Pools(taps, lax.stop_gradient)
