"""Convolutions with the arguments of torch.nn.functional and of JAX, for both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from bridge.catalogue.products import Places, check_bits
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays
from bridge.ops.convolution import ConvolutionParams, Shape


class Primitives(Places, Protocol):
    """A framework's convolution and changes of shape."""

    def convolution(self, a: Any, b: Any, bias: Any, params: ConvolutionParams) -> Any:
        """Returns the convolution of two of x, w and y."""

    def reshaped(self, x: Any, shape: Shape) -> Any:
        """Returns x in another shape."""


def _words(x: Any) -> str:
    return str(list(x.shape))


def one_for_each(
    function: str, name: str, value: Any, dims: int, least: int, *, all_given: bool = False
) -> Shape:
    """Returns a number for each dimension of space, from one number or a sequence of 1 or `dims`.

    Args:
      all_given: a sequence of `dims` numbers is the only form.

    Raises:
      TypeError: others than integers.
      ValueError: a smaller number than `least`, or another count.
    """
    expected = f"{dims} integers of at least {least}"
    if not all_given:
        expected = f"an integer of at least {least}, or {dims} of them"
    given = [value] if _is_integer(value) and not all_given else value
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{function}: {name} is {value!r}, expected {expected}")
    if not all(map(_is_integer, given)):
        raise TypeError(f"{function}: {name} is {value!r}, expected {expected}")
    fits = len(given) == dims or (len(given) == 1 and not all_given)
    if not fits or not all(each >= least for each in given):
        raise ValueError(f"{function}: {name} is {value!r}, expected {expected}")
    numbers = tuple([each if isinstance(each, int) else each.__index__() for each in given])
    return numbers if len(given) == dims else numbers * dims


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_groups(function: str, name: str, groups: Any) -> None:
    """Checks a number of groups.

    Raises:
      TypeError: it is no integer.
      ValueError: it is smaller than 1.
    """
    if not _is_integer(groups):
        raise TypeError(f"{function}: {name} is {groups!r}, expected a positive integer")
    if groups < 1:
        raise ValueError(f"{function}: {name} is {groups!r}, expected a positive integer")


class Convolutions:
    """Convolutions in one framework, with the arguments of torch.nn.functional."""

    def __init__(self, arrays: Arrays, primitives: Primitives) -> None:
        self.arrays, self.primitives = arrays, primitives

    def conv(
        self,
        function: str,
        dims: int,
        x: Any,
        weight: Any,
        bias: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: Any,
        bits: str | None,
    ) -> Any:
        """Returns the convolution of x with weight."""
        x, weight, bias, dtype = self._operands(function, dims, x, weight, bias, groups, bits)
        strides = one_for_each(function, "stride", stride, dims, 1)
        dilations = one_for_each(function, "dilation", dilation, dims, 1)
        space, kernel = tuple(x.shape[-dims:]), tuple(weight.shape[2:])
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
        low, both = _padding(function, padding, dims, strides, reach)
        channels = x.shape[-dims - 1]
        if channels != weight.shape[1] * groups:
            raise ValueError(
                f"{function}: input has {channels} channels, expected {weight.shape[1]} in each "
                f"of {groups} groups, as weight has shape {_words(weight)}"
            )
        self._check_channels(function, weight, bias, weight.shape[0], groups)
        sizes = []
        for size, more, span, s in zip(space, both, reach, strides, strict=True):
            if size + more < span:
                raise ValueError(
                    f"{function}: input has shape {_words(x)}, expected sizes of at least "
                    f"{reach} with the padding of {list(both)}, as weight has shape "
                    f"{_words(weight)} and dilation is {list(dilations)}"
                )
            sizes.append((size + more - span) // s + 1)
        lists = tuple(sizes), strides, low, dilations
        params = ConvolutionParams("forward", dtype, *lists, groups, bits)
        return self._run(dims, x, weight, bias, params)

    def conv_transpose(
        self,
        function: str,
        dims: int,
        x: Any,
        weight: Any,
        bias: Any,
        stride: Any,
        padding: Any,
        output_padding: Any,
        groups: Any,
        dilation: Any,
        bits: str | None,
    ) -> Any:
        """Returns the gradient of a convolution with weight towards its input, for x."""
        x, weight, bias, dtype = self._operands(function, dims, x, weight, bias, groups, bits)
        strides = one_for_each(function, "stride", stride, dims, 1)
        dilations = one_for_each(function, "dilation", dilation, dims, 1)
        low = one_for_each(function, "padding", padding, dims, 0)
        extra = one_for_each(function, "output_padding", output_padding, dims, 0)
        for more, s, d in zip(extra, strides, dilations, strict=True):
            if more >= max(s, d):
                raise ValueError(
                    f"{function}: output_padding is {list(extra)}, expected less than stride "
                    f"{list(strides)} or dilation {list(dilations)} in each dimension"
                )
        channels = x.shape[-dims - 1]
        if channels != weight.shape[0]:
            raise ValueError(
                f"{function}: input has {channels} channels, expected {weight.shape[0]}, as weight "
                f"has shape {_words(weight)}"
            )
        self._check_channels(function, weight, bias, weight.shape[1] * groups, groups)
        sizes = tuple(
            (size - 1) * s - 2 * p + d * (k - 1) + more + 1
            for size, s, p, d, k, more in zip(
                x.shape[-dims:], strides, low, dilations, weight.shape[2:], extra, strict=True
            )
        )
        if not all(size > 0 for size in sizes):
            raise ValueError(
                f"{function}: input has shape {_words(x)} and padding is {list(low)}, which gives "
                f"a result of sizes {list(sizes)}, expected positive sizes"
            )
        lists = sizes, strides, low, dilations
        params = ConvolutionParams("input", dtype, *lists, groups, bits)
        return self._run(dims, x, weight, bias, params)

    def _operands(
        self, function: str, dims: int, x: Any, weight: Any, bias: Any, groups: Any, bits: Any
    ) -> tuple[Any, Any, Any, str]:
        x, weight, bias = self.arrays.checked(function, 2, input=x, weight=weight, bias=bias)
        x, weight, bias = self.arrays.autocast(x, weight, bias)
        given = {"input": x, "weight": weight, "bias": bias}
        dtypes = {name: self.arrays.dtype_of(a) for name, a in given.items() if a is not None}
        for name, own in dtypes.items():
            if own not in FLOATING:
                raise TypeError(
                    f"{function}: {name} has dtype {own}, expected one of {', '.join(FLOATING)}"
                )
        space = ", ".join("dhw"[3 - dims :] if dims > 1 else "l")
        if weight.ndim != dims + 2:
            raise ValueError(
                f"{function}: weight has shape {_words(weight)}, expected {dims + 2} dimensions"
            )
        if x.ndim not in (dims + 1, dims + 2):
            raise ValueError(
                f"{function}: input has shape {_words(x)}, expected [n, channels, {space}] or "
                f"[channels, {space}]"
            )
        check_groups(function, "groups", groups)
        result = promote(*dtypes.values())
        pair = {name: (given[name], dtypes[name]) for name in ("input", "weight")}
        check_bits(function, self.primitives, bits, result, **pair)
        return x, weight, bias, result

    def _check_channels(
        self, function: str, weight: Any, bias: Any, channels: int, groups: int
    ) -> None:
        if weight.shape[0] % groups:
            raise ValueError(
                f"{function}: groups is {groups}, expected a divisor of {weight.shape[0]}, as "
                f"weight has shape {_words(weight)}"
            )
        if bias is not None and tuple(bias.shape) != (channels,):
            raise ValueError(
                f"{function}: bias has shape {_words(bias)}, expected [{channels}], as weight has "
                f"shape {_words(weight)} and groups is {groups}"
            )

    def _run(self, dims: int, x: Any, weight: Any, bias: Any, params: ConvolutionParams) -> Any:
        primitives = self.primitives
        if x.ndim == dims + 2:
            return primitives.convolution(x, weight, bias, params)
        one = primitives.reshaped(x, (1, *x.shape))
        made = primitives.convolution(one, weight, bias, params)
        return primitives.reshaped(made, tuple(made.shape[1:]))


def _padding(
    function: str, padding: Any, dims: int, strides: Shape, reach: Sequence[int]
) -> tuple[Shape, Shape]:
    """Returns the padding at the low side of each dimension, and at both sides together."""
    if not isinstance(padding, str):
        low = one_for_each(function, "padding", padding, dims, 0)
        return low, tuple(2 * p for p in low)
    if padding == "valid":
        return (0,) * dims, (0,) * dims
    if padding != "same":
        raise ValueError(
            f"{function}: padding is {padding!r}, expected 'same', 'valid' or integers"
        )
    if any(s != 1 for s in strides):
        raise ValueError(f"{function}: padding is 'same' with stride {list(strides)}, expected 1")
    both = tuple(span - 1 for span in reach)
    return tuple(more // 2 for more in both), both
