"""Pooling for JAX."""

from __future__ import annotations

from typing import Any

import jax

from bridge.catalogue.vision.pooling import checked_window, output_sizes
from bridge.jax._adapter.arguments import as_flag
from bridge.jax._ops.vision.layouts import channel_of, checked, compiled_pool

ArrayLike = jax.typing.ArrayLike


def max_pool(
    input: ArrayLike,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    axis: int = -1,
) -> Any:
    r"""The largest number of each window, in 1, 2 or 3 dimensions, with the arguments of torch.

    A NaN wins, else the first of equal numbers in row-major order; padding is −∞. The gradient goes
    to that place; overlapping windows are added in increasing order, in float32 or float64, and
    rounded once. The bits do not depend on `axis`, and are those of `bridge.torch`. Every
    transformation of JAX applies, derivatives of any order included.

    Args:
      input: `[n, *sizes, c]` with 1 to 3 sizes, float16, bfloat16, float32 or float64. One image
        `[*sizes, c]` needs a kernel_size of one number for each dimension.
      kernel_size, stride, padding, dilation: an integer, or one for each dimension. No stride is
        kernel_size. The padding is at most half of a window.
      ceil_mode: windows that begin inside and end outside of the padded input count too.
      return_indices: return the place of each number too, counted in row-major order.
      axis: the dimension of the channels: the last one, or the one behind the images.

    Returns:
      An array of input's dtype; with return_indices also its places, int32.

    Raises:
      TypeError: an argument is no array or has another dtype; a number is no integer, or traced.
      ValueError: an input of other dimensions; another count of numbers, or one out of its range;
        an input that is smaller than a window.

    Example:
      >>> max_pool(jnp.array([[[1.0], [3.0], [2.0], [2.0]]]), 2)[0, :, 0]
      Array([3., 2.], dtype=float32)
    """
    x, count, sizes = checked("max_pool", input, kernel_size, axis)
    ceil_mode = as_flag("max_pool", "ceil_mode", ceil_mode)
    return_indices = as_flag("max_pool", "return_indices", return_indices)
    given = kernel_size, stride, padding, dilation, ceil_mode
    window = checked_window("max_pool", x, sizes, *given)
    y, places = compiled_pool("max", count, channel_of(x, count, axis), window)(x)
    return (y, places) if return_indices else y


def avg_pool(
    input: ArrayLike,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    axis: int = -1,
) -> jax.Array:
    r"""The mean of each window, in 1, 2 or 3 dimensions, with the arguments of torch.

    The numbers of a window are added one after the other in row-major order, in float32 or float64,
    divided once and rounded once. The gradient of a place adds g / divisor of its windows in
    increasing order. The bits do not depend on `axis`, and are those of `bridge.torch`. Every
    transformation of JAX applies, derivatives of any order included.

    Args:
      input, axis: as in `max_pool`.
      kernel_size, stride, padding, ceil_mode: as in `max_pool`.
      count_include_pad: places of the padding count in the divisor.
      divisor_override: a number to divide by instead.

    Returns:
      An array of input's dtype.

    Raises:
      TypeError, ValueError: as in `max_pool`; divisor_override is 0 or no integer.

    Example:
      >>> avg_pool(jnp.array([[[1.0], [3.0], [2.0], [2.0]]]), 2)[0, :, 0]
      Array([2., 2.], dtype=float32)
    """
    x, count, sizes = checked("avg_pool", input, kernel_size, axis)
    ceil_mode = as_flag("avg_pool", "ceil_mode", ceil_mode)
    counts_padding = as_flag("avg_pool", "count_include_pad", count_include_pad)
    window = checked_window("avg_pool", x, sizes, kernel_size, stride, padding, 1, ceil_mode)
    static = window, counts_padding, divisor_override
    return compiled_pool("average", count, channel_of(x, count, axis), *static)(x)  # type: ignore[no-any-return]


def adaptive_avg_pool(input: ArrayLike, output_size: Any, *, axis: int = -1) -> jax.Array:
    r"""The means of even parts, in 1, 2 or 3 dimensions, with the arguments of torch.

    The mean over all places is the sum of the row of places, in the tree of sums along a row,
    divided by their number: global average pooling with the bits of a mean of rows. Other sizes are
    computed as in `avg_pool`, over torch's parts.

    Args:
      input, axis: as in `max_pool`.
      output_size: an integer, or one for each dimension; None leaves a dimension as it is.

    Returns:
      An array of input's dtype.

    Raises:
      TypeError, ValueError: as in `max_pool`; an input without places.

    Example:
      >>> adaptive_avg_pool(jnp.array([[[1.0], [3.0], [2.0], [2.0]]]), 1)[0, :, 0]
      Array([2.], dtype=float32)
    """
    x, count, sizes = checked("adaptive_avg_pool", input, output_size, axis)
    found = output_sizes("adaptive_avg_pool", x, output_size, sizes)
    return compiled_pool("adaptive", count, channel_of(x, count, axis), found)(x)  # type: ignore[no-any-return]
