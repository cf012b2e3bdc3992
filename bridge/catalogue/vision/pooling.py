"""Pooling, in one framework: checks, tables of windows, and the compositions of `taps`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.catalogue.declaration import shape_of
from bridge.catalogue.vision.batch_norm_programs import dtype_of
from bridge.catalogue.vision.plans import text_of
from bridge.catalogue.vision.taps import Options, Taps
from bridge.catalogue.vision.windows import Sizes, Window
from bridge.lang.dtypes import FLOATING
from bridge.ops.scalars import whole_number


@dataclass(frozen=True)
class Laid:
    """An input as the compositions take it.

    Attributes:
      x: `[n, places]`, or `[n, places, c]` with `inner`.
      sizes: the places along each pooled dimension.
      restored: restored(y, sizes) returns y in the layout of the input.
    """

    x: Any
    inner: bool
    sizes: Sizes
    restored: Callable[[Any, Sizes], Any]


def laid(moved: Callable[..., Any], x: Any, count: int, channel: int, last: bool) -> Laid:
    """Returns an input in the layout of its memory.

    Args:
      moved: moved(x, dim, place) moves a dimension.
      x: `[n, c, *sizes]`, `[n, *sizes, c]` or without n, by its number of dimensions.
      count: the number of pooled dimensions.
      channel: the dimension of the channels.
      last: the channels lie side by side in memory.
    """
    shape = tuple(x.shape)
    lead = shape[: len(shape) - count - 1]
    places = tuple(size for dim, size in enumerate(shape) if dim >= len(lead) and dim != channel)
    end = len(shape) - 1
    channels = shape[channel]
    if last:
        own = x if channel == end else moved(x, channel, end)
        flat = own.reshape(math.prod(lead), math.prod(places), channels)

        def restored(y: Any, sizes: Sizes) -> Any:
            y = y.reshape(*lead, *sizes, channels)
            return y if channel == end else moved(y, end, channel)

        return Laid(flat, True, places, restored)
    own = x if channel == len(lead) else moved(x, channel, len(lead))
    flat = own.reshape(math.prod(lead) * channels, math.prod(places))

    def restored_first(y: Any, sizes: Sizes) -> Any:
        y = y.reshape(*lead, channels, *sizes)
        return y if channel == len(lead) else moved(y, len(lead), channel)

    return Laid(flat, False, places, restored_first)


def numbers(function: str, name: str, value: Any, count: int, least: int) -> Sizes:
    """Returns one integer for each of some dimensions; a single one counts for all.

    Raises:
      TypeError, ValueError: for another number of them, or one that is too small.
    """
    if not isinstance(value, (tuple, list)):
        return (whole_number(function, name, value, least),) * count
    if len(value) == 1:
        value = value * count
    if len(value) != count:
        raise ValueError(
            f"{function}: {name} is {tuple(value)}, expected one number or {count}, one for each "
            "dimension"
        )
    return tuple([whole_number(function, name, each, least) for each in value])


def dimensions(
    function: str, input: Any, value: Any, channel: Callable[[int], int] | None = None
) -> tuple[int, bool]:
    """Returns the number of pooled dimensions, and True if the input has images.

    A tuple of as many numbers as the input has dimensions less one is for a single image.

    Raises:
      TypeError, ValueError: for an input that does not fit.
    """
    dtype, shape = dtype_of(input), shape_of(input)
    if dtype not in FLOATING:
        raise TypeError(
            f"{function}: input has dtype {dtype}, expected one of {', '.join(FLOATING)}"
        )
    given = len(value) if isinstance(value, (tuple, list)) and len(value) > 1 else None
    has_images = given is None or given != len(shape) - 1
    count = len(shape) - 1 - has_images
    if not 1 <= count <= 3 or (given is not None and given != count):
        raise ValueError(
            f"{function}: input has shape {list(shape)}, expected images, channels and 1 to 3 "
            f"pooled dimensions{'' if given is None else f', {given} here'}"
        )
    return count, has_images


class Pools:
    """The pools in one framework.

    Args:
      constant: constant(x) returns x without its gradient.
    """

    def __init__(self, taps: Taps, constant: Callable[[Any], Any]) -> None:
        self._taps, self._constant = taps, constant

    def max(self, given: Laid, window: Window) -> tuple[Any, Any]:
        """Returns the largest numbers and their places."""
        options = Options(text_of("largest", given.sizes, *window.listed()), given.inner)
        chosen = self._taps.largest.run((self._constant(given.x),), options)
        y = self._taps.chosen.run((given.x, chosen), options)
        sizes = window.outputs(given.sizes)
        return given.restored(y, sizes), given.restored(chosen, sizes)

    def average(self, given: Laid, window: Window, padding: bool, divisor: int | None) -> Any:
        """Returns the means over windows."""
        if divisor is not None:
            divisor = whole_number("avg_pool", "divisor_override", divisor, -(1 << 31))
            if divisor == 0:
                raise ValueError("avg_pool: divisor_override is 0, expected an integer but 0")
        text = text_of("average", given.sizes, *window.listed(), padding, divisor)
        y = self._taps.sums.run((given.x,), Options(text, given.inner))
        return given.restored(y, window.outputs(given.sizes))

    def adaptive(self, given: Laid, sizes: Sizes) -> Any:
        """Returns the means over even parts; over all places in the tree of sums of rows."""
        is_mean = math.prod(sizes) == 1
        text = text_of("mean", given.sizes) if is_mean else text_of("parts", given.sizes, sizes)
        return given.restored(self._taps.sums.run((given.x,), Options(text, given.inner)), sizes)


def checked_window(
    function: str,
    input: Any,
    sizes: Sizes,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
) -> Window:
    """Returns the windows of a call.

    Raises:
      TypeError, ValueError: for arguments that do not fit.
    """
    count = len(sizes)
    window = Window(
        numbers(function, "kernel_size", kernel, count, 1),
        numbers(function, "stride", kernel if _is_absent(stride) else stride, count, 1),
        numbers(function, "padding", padding, count, 0),
        numbers(function, "dilation", dilation, count, 1),
        ceil,
    )
    for own, kernel_size, step in zip(window.padding, window.kernel, window.dilation, strict=True):
        if 2 * own > (kernel_size - 1) * step + 1:
            raise ValueError(
                f"{function}: padding is {own}, expected at most half of the window's "
                f"{(kernel_size - 1) * step + 1} places"
            )
    if 0 in sizes or min(window.outputs(sizes)) < 1:
        raise ValueError(
            f"{function}: input has shape {list(shape_of(input))}, which is smaller than a window "
            f"of {list(window.kernel)} places"
        )
    return window


def output_sizes(function: str, input: Any, given: Any, sizes: Sizes) -> Sizes:
    """Returns the sizes of the output of adaptive_avg_pool.

    Raises:
      TypeError, ValueError: for sizes that do not fit, or an input without places.
    """
    several = given if isinstance(given, (tuple, list)) else (given,) * len(sizes)
    filled = [size if own is None else own for own, size in zip(several, sizes, strict=False)]
    found = numbers(function, "output_size", [*filled, *several[len(sizes) :]], len(sizes), 0)
    if 0 in sizes:
        raise ValueError(
            f"{function}: input has shape {list(shape_of(input))}, expected at least one place"
        )
    return found


def _is_absent(stride: Any) -> bool:
    return stride is None or (isinstance(stride, (tuple, list)) and not stride)
