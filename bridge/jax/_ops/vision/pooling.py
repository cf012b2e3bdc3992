"""Pooling for JAX."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from bridge.catalogue.vision.pooling import (
    Laid,
    Pools,
    checked_window,
    dimensions,
    laid,
    output_sizes,
)
from bridge.catalogue.vision.taps import Taps
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_like, as_arrays, as_flag, compiled_for
from bridge.jax._adapter.avals import unsplit
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition
from bridge.ops.scalars import whole_number

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
    name = "max_pool"
    x, count, sizes = _checked(name, input, kernel_size, axis)
    ceil_mode = as_flag(name, "ceil_mode", ceil_mode)
    return_indices = as_flag(name, "return_indices", return_indices)
    given = kernel_size, stride, padding, dilation, ceil_mode
    window = checked_window(name, x, count, sizes, *given)
    y, places = _compiled("max", count, _channel(x, count, axis), window)(x)
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
    name = "avg_pool"
    x, count, sizes = _checked(name, input, kernel_size, axis)
    ceil_mode = as_flag(name, "ceil_mode", ceil_mode)
    counts_padding = as_flag(name, "count_include_pad", count_include_pad)
    window = checked_window(name, x, count, sizes, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None:
        divisor_override = whole_number(name, "divisor_override", divisor_override, 1)
    static = window, counts_padding, divisor_override
    return _compiled("average", count, _channel(x, count, axis), *static)(x)  # type: ignore[no-any-return]


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
    name = "adaptive_avg_pool"
    x, count, sizes = _checked(name, input, output_size, axis)
    found = output_sizes(name, x, output_size, sizes)
    return _compiled("adaptive", count, _channel(x, count, axis), found)(x)  # type: ignore[no-any-return]


def _checked(name: str, input: Any, size: Any, axis: Any) -> tuple[Any, int, tuple[int, ...]]:
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


def _channel(x: Any, count: int, axis: int) -> int:
    return int(axis) % x.ndim


@compiled_for
def _compiled(kind: str, count: int, channel: int, *static: Any) -> Any:
    def run(x: jax.Array) -> Any:
        x = unsplit(x, slice(x.ndim - count - 1, None))
        given: Laid = laid(functions.moved, x, count, channel, channel == x.ndim - 1)
        return getattr(pools, kind)(given, *static)

    run.__name__ = f"{kind}_pool"
    return run


taps = Taps(functions, Composition)
pools = Pools(taps, arrays, lax.stop_gradient)
