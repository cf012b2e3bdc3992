"""Resizing for JAX."""

from __future__ import annotations

from typing import Any

import jax

from bridge.catalogue import checks
from bridge.catalogue.vision.interpolation import Interpolation, Resizing
from bridge.catalogue.vision.pooling import laid
from bridge.catalogue.vision.resizing import NAME, checked_sizes
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_like, as_arrays, as_flag, compiled_for
from bridge.jax._adapter.avals import unsplit
from bridge.jax._compositions import functions
from bridge.jax._ops.vision.layouts import pools, taps
from bridge.ops.scalars import whole_number

ArrayLike = jax.typing.ArrayLike


def interpolate(
    input: ArrayLike,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    coefficient: float | None = None,
    axis: int = -1,
) -> jax.Array:
    r"""Resizes images in 1, 2 or 3 dimensions, with the arguments of torch.

    The axes are resized one after the other from the first. The weights of an axis are computed in
    float64 and rounded to float32 (float64 for float64); the numbers of a place are added in a
    chain of fma in increasing order, and rounded once after the last axis. The gradient goes back
    through the axes in the same way. The bits do not depend on `axis`, and are those of
    `bridge.torch`. Every transformation of JAX applies, derivatives of any order included.

    Args:
      input: `[n, *sizes, c]` with 1 to 3 sizes, float16, bfloat16, float32 or float64.
      size: an integer, or one for each dimension.
      scale_factor: in place of size, a number, or one for each dimension.
      mode: "nearest", "nearest-exact", "linear" (one dimension), "bilinear", "bicubic" (two),
        "trilinear" (three) or "area" (`adaptive_avg_pool`).
      align_corners: the centres of the corners keep their places; in the linear and cubic modes.
      recompute_scale_factor: coordinates are scaled by output / input, not by scale_factor.
      antialias: smaller images see all places, in the modes bilinear and bicubic.
        `jax.image.resize` does so by default.
      coefficient: of the cubic kernel: −0.5 as in `jax.image.resize`, −0.75 as in torch. None is
        torch's choice: −0.75, and −0.5 with antialias.
      axis: the dimension of the channels: -1 or 1.

    Returns:
      An array of input's dtype.

    Raises:
      TypeError: an argument is no array or has another dtype; a number is none, or traced.
      ValueError: another number of dimensions; neither size nor scale_factor, or both; an unknown
        mode, or an argument that the mode does not have; a size less than 1.

    Example:
      >>> interpolate(jnp.array([[[1.0], [3.0]]]), 4, mode="linear")[0, :, 0]
      Array([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    (x,) = as_arrays(as_array_like(NAME, "input", input))
    antialias = as_flag(NAME, "antialias", antialias)
    axis = whole_number(NAME, "axis", arrays.known(NAME, "axis", axis), -9)
    channel = x.ndim - 1 if axis in (-1, x.ndim - 1) else 1
    if axis not in (-1, 1, x.ndim - 1):
        raise ValueError(f"{NAME}: axis is {axis}, expected -1 or 1, the dimension of the channels")
    sizes = tuple([n for dim, n in enumerate(x.shape) if dim not in (0, channel)])
    found = checked_sizes(
        x, sizes, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
    if coefficient is None:
        coefficient = -0.5 if antialias else -0.75
    cubic = checks.finite(NAME, "coefficient", arrays.known(NAME, "coefficient", coefficient))
    return _compiled(channel, Resizing(*found, mode, bool(align_corners), antialias, cubic))(x)  # type: ignore[no-any-return]


@compiled_for
def _compiled(channel: int, how: Resizing) -> Any:
    def interpolate(x: jax.Array) -> jax.Array:
        x = unsplit(x, slice(1, None))
        given = laid(functions.moved, x, x.ndim - 2, channel, channel == x.ndim - 1)
        return _interpolation.run(given, how)  # type: ignore[no-any-return]

    return interpolate


_interpolation = Interpolation(taps, pools, arrays)
