"""Resizing for PyTorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bridge.catalogue.vision.interpolation import Interpolation, Resizing
from bridge.catalogue.vision.pooling import Laid, laid
from bridge.catalogue.vision.resizing import NAME, checked_sizes
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_flags, check_tensors
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._compositions import functions
from bridge.torch._ops.vision.layouts import channels_lie_last, pools, refuse_dtensor, taps


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    r"""Resizes images in 1, 2 or 3 dimensions: `torch.nn.functional.interpolate`.

    The axes are resized one after the other from the first. The weights of an axis are computed in
    float64 and rounded to float32 (float64 for float64); the numbers of a place are added in a
    chain of fma in increasing order, and rounded once after the last axis. The gradient goes back
    through the axes in the same way. The bits do not depend on the layout of the channels, and are
    those of `bridge.jax`. Differentiable to any order, in reverse and forward mode.

    Args:
      input: `[n, c, *sizes]` with 1 to 3 sizes, of dtype float16, bfloat16, float32 or float64, of
        any strides.
      size: an integer, or one for each dimension.
      scale_factor: in place of size, a number, or one for each dimension.
      mode: "nearest", "nearest-exact", "linear" (one dimension), "bilinear", "bicubic" (two),
        "trilinear" (three) or "area" (`adaptive_avg_pool`).
      align_corners: the centres of the corners keep their places; in the linear and cubic modes.
      recompute_scale_factor: coordinates are scaled by output / input, not by scale_factor.
      antialias: smaller images see all places, in the modes bilinear and bicubic.

    Returns:
      A tensor of input's dtype.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; a number is none.
      ValueError: another number of dimensions; neither size nor scale_factor, or both; an unknown
        mode, or an argument that the mode does not have; a size less than 1.

    Source: the cubic kernel is that of Keys, "Cubic convolution interpolation", with −0.75 (−0.5
    with antialias).

    Example:
      >>> interpolate(torch.tensor([[[1.0, 3.0]]]), 4, mode="linear")
      tensor([[[1.0000, 1.5000, 2.5000, 3.0000]]])
    """
    if is_overridden(given := (input,)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors(NAME, 1, input=input)
    refuse_dtensor(NAME, input)
    check_flags(NAME, antialias=antialias)
    sizes = tuple(map(fixed, input.shape[2:]))
    found = checked_sizes(
        input, sizes, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
    coefficient = -0.5 if antialias else -0.75
    how = Resizing(*found, mode, bool(align_corners), bool(antialias), coefficient)
    own = laid(functions.moved, input, input.ndim - 2, 1, channels_lie_last(input, 1))
    return _interpolation.run(Laid(own.x, own.inner, sizes, own.restored), how)  # type: ignore[no-any-return]


_interpolation = Interpolation(taps, pools, arrays)
