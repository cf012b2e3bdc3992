"""Pooling for PyTorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bridge.catalogue.vision.pooling import checked_window, output_sizes
from bridge.torch._adapter.checks import check_flags
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.vision.layouts import pools, prepared


def max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    r"""The largest number of each window, in 1, 2 or 3 dimensions: torch's `max_pool1d` to `3d`.

    A NaN wins, else the first of equal numbers in row-major order; padding is −∞. The gradient goes
    to that place; overlapping windows are added in increasing order, in float32 or float64, and
    rounded once. The bits do not depend on the layout of the channels, and are those of
    `bridge.jax`. Differentiable to any order, in reverse and forward mode.

    Args:
      input: `[n, c, *sizes]` with 1 to 3 sizes, of dtype float16, bfloat16, float32 or float64, of
        any strides. One image `[c, *sizes]` needs a kernel_size of one number for each dimension.
      kernel_size, stride, padding, dilation: an integer, or one for each dimension. No stride is
        kernel_size. The padding is at most half of a window.
      ceil_mode: windows that begin inside and end outside of the padded input count too.
      return_indices: return the place of each number too, counted in row-major order.

    Returns:
      A tensor of input's dtype; with return_indices also its places, int64.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; a number is not an integer.
      ValueError: an input of other dimensions; another count of numbers, or one out of its range;
        an input that is smaller than a window.

    Example:
      >>> max_pool(torch.tensor([[[1.0, 3.0, 2.0, 2.0]]]), 2)
      tensor([[[3., 2.]]])
    """
    if is_overridden(given := (input,)):
        return hand_over(given)
    own = prepared("max_pool", input, kernel_size)
    check_flags("max_pool", ceil_mode=ceil_mode, return_indices=return_indices)
    shape = kernel_size, stride, padding, dilation, bool(ceil_mode)
    window = checked_window("max_pool", input, own.sizes, *shape)
    y, places = pools.max(own, window)
    return (y, places.long()) if return_indices else y


def avg_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    r"""The mean of each window, in 1, 2 or 3 dimensions: torch's `avg_pool1d` to `avg_pool3d`.

    The numbers of a window are added one after the other in row-major order, in float32 or float64,
    divided once and rounded once. The gradient of a place adds g / divisor of its windows in
    increasing order. The bits do not depend on the layout of the channels, and are those of
    `bridge.jax`. Differentiable to any order, in reverse and forward mode.

    Args:
      input: as in `max_pool`.
      kernel_size, stride, padding, ceil_mode: as in `max_pool`.
      count_include_pad: places of the padding count in the divisor.
      divisor_override: a number to divide by instead.

    Returns:
      A tensor of input's dtype.

    Raises:
      TypeError, ValueError: as in `max_pool`; divisor_override is 0 or not an integer.

    Example:
      >>> avg_pool(torch.tensor([[[1.0, 3.0, 2.0, 2.0]]]), 2)
      tensor([[[2., 2.]]])
    """
    if is_overridden(given := (input,)):
        return hand_over(given)  # type: ignore[no-any-return]
    own = prepared("avg_pool", input, kernel_size)
    check_flags("avg_pool", ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    window = checked_window(
        "avg_pool", input, own.sizes, kernel_size, stride, padding, 1, bool(ceil_mode)
    )
    return pools.average(own, window, bool(count_include_pad), divisor_override)  # type: ignore[no-any-return]


def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
    r"""The means of even parts, in 1, 2 or 3 dimensions: torch's `adaptive_avg_pool1d` to `3d`.

    The mean over all places is the sum of the row of places, in the tree of sums along a row,
    divided by their number; so it is `global average pooling` with the bits of a mean of rows.
    Other sizes are computed as in `avg_pool`, over torch's parts.

    Args:
      input: as in `max_pool`.
      output_size: an integer, or one for each dimension; None leaves a dimension as it is.

    Returns:
      A tensor of input's dtype.

    Raises:
      TypeError, ValueError: as in `max_pool`; an input without places.

    Example:
      >>> adaptive_avg_pool(torch.tensor([[[1.0, 3.0, 2.0, 2.0]]]), 1)
      tensor([[[2.]]])
    """
    if is_overridden(given := (input,)):
        return hand_over(given)  # type: ignore[no-any-return]
    own = prepared("adaptive_avg_pool", input, output_size)
    return pools.adaptive(own, output_sizes("adaptive_avg_pool", input, output_size, own.sizes))  # type: ignore[no-any-return]
