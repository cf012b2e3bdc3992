"""JAX's convolutions with a bias, from arguments that describe them to the primitive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.catalogue.convolutions import check_groups, one_for_each
from bridge.jax._adapter.convolutions import PRIMITIVES
from bridge.jax._ops.convolution_arguments import (
    as_pairs,
    dilations_of,
    orders_of,
    pads_around,
    pads_of,
)
from bridge.ops.convolution import ConvolutionParams, in_order

_Dims = tuple[int, ...]


def general_convolution(
    name: str,
    lhs: jax.Array,
    rhs: jax.Array,
    bias: jax.Array | None,
    dtype: str,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    dimension_numbers: Any,
    groups: int,
    bits: str | None = None,
) -> jax.Array:
    """Returns `conv_general_dilated` plus a bias `[out]`, rounded once to `dtype`."""
    orders = orders_of(name, lhs, rhs, dimension_numbers)
    dims = lhs.ndim - 2
    strides = one_for_each(name, "window_strides", window_strides, dims, 1, all_given=True)
    wide = dilations_of(name, "lhs_dilation", lhs_dilation, dims)
    reach = dilations_of(name, "rhs_dilation", rhs_dilation, dims)
    if isinstance(padding, str):
        if any(d != 1 for d in wide):
            raise ValueError(
                f"{name}: padding is {padding!r} with lhs_dilation {list(wide)}, expected pairs"
            )
        padding = pads_of(name, padding, lhs, rhs, orders, strides, reach)
    pairs = as_pairs(name, padding, dims)
    how = PlannedConvolution(name, dtype, orders, strides, pairs, wide, reach, groups, bits)
    how.check(lhs, rhs)
    if all(d == 1 for d in wide):
        return how.forward(lhs, rhs, bias)
    if all(s == 1 for s in strides):
        return how.transposed(lhs, rhs, bias, is_flipped=False)
    spread = [(0, 0, 0)] * lhs.ndim
    for d, step in zip(orders[0][2:], wide, strict=True):
        spread[d] = (0, 0, step - 1)
    lhs = jax.lax.pad(lhs, jnp.zeros((), lhs.dtype), spread)
    ones = (1,) * dims
    how = PlannedConvolution(name, dtype, orders, strides, pairs, ones, reach, groups, bits)
    return how.forward(lhs, rhs, bias)


def transposed_convolution(
    name: str,
    lhs: jax.Array,
    rhs: jax.Array,
    bias: jax.Array | None,
    dtype: str,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None,
    dimension_numbers: Any,
    transpose_kernel: bool,
    use_consistent_padding: bool = False,
    bits: str | None = None,
) -> jax.Array:
    """Returns `conv_transpose` plus a bias `[out]`, rounded once to `dtype`."""
    dims = lhs.ndim - 2
    if dimension_numbers is None:
        space = ("H", "HW", "HWD")[min(max(dims, 1), 3) - 1]
        dimension_numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
    orders = orders_of(name, lhs, rhs, dimension_numbers)
    steps = one_for_each(name, "strides", strides, dims, 1, all_given=True)
    reach = dilations_of(name, "rhs_dilation", rhs_dilation, dims)
    kernel = in_order(rhs.shape, orders[1])[2:]
    spans = [d * (k - 1) + 1 if k else 0 for d, k in zip(reach, kernel, strict=True)]
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ValueError(
                f"{name}: padding is {padding!r}, expected 'SAME', 'VALID' or pairs of integers"
            )
        is_same = padding == "SAME"
        pairs = [pads_around(k, s, is_same) for k, s in zip(spans, steps, strict=True)]
    else:
        pairs = as_pairs(name, padding, dims)
        if use_consistent_padding:
            pairs = [
                (k - low - 1, k - high - 1) for k, (low, high) in zip(spans, pairs, strict=True)
            ]
    if transpose_kernel:
        out, into, *rest = orders[1]
        orders = (orders[0], (into, out, *rest), orders[2])
    ones = (1,) * dims
    how = PlannedConvolution(name, dtype, orders, ones, pairs, steps, reach, 1, bits)
    how.check(lhs, rhs)
    return how.transposed(lhs, rhs, bias, is_flipped=bool(transpose_kernel))


class PlannedConvolution:
    """The arguments of a call, checked one by one."""

    def __init__(
        self,
        function: str,
        dtype: str,
        orders: tuple[_Dims, _Dims, _Dims],
        strides: _Dims,
        padding: Sequence[tuple[int, int]],
        wide: _Dims,
        reach: _Dims,
        groups: Any,
        bits: str | None,
    ) -> None:
        self.function, self.dtype, self.orders = function, dtype, orders
        self.strides, self.padding = strides, tuple(padding)
        self.wide, self.reach, self.groups, self.bits = wide, reach, groups, bits

    def check(self, lhs: jax.Array, rhs: jax.Array) -> None:
        """Checks that the arrays fit each other."""
        check_groups(self.function, "feature_group_count", self.groups)
        x, w = in_order(lhs.shape, self.orders[0]), in_order(rhs.shape, self.orders[1])
        if x[1] != w[1] * self.groups:
            raise ValueError(
                f"{self.function}: lhs has {x[1]} channels in shape {list(lhs.shape)}, expected "
                f"{w[1]} in each of {self.groups} groups, as rhs has shape {list(rhs.shape)}"
            )
        if w[0] % self.groups:
            raise ValueError(
                f"{self.function}: feature_group_count is {self.groups}, expected a divisor of "
                f"{w[0]}, the output channels of rhs"
            )
        if any(size < 0 for size in self._padded(x[2:])):
            raise ValueError(
                f"{self.function}: padding is {list(self.padding)}, expected to take away no more "
                f"than lhs has in shape {list(lhs.shape)}"
            )

    def _padded(self, space: Sequence[int]) -> list[int]:
        return [
            ((size - 1) * d + 1 if size else 0) + low + high
            for size, d, (low, high) in zip(space, self.wide, self.padding, strict=True)
        ]

    def _sizes(self, lhs: jax.Array, rhs: jax.Array) -> _Dims:
        space = in_order(lhs.shape, self.orders[0])[2:]
        kernel = in_order(rhs.shape, self.orders[1])[2:]
        spans = [d * (k - 1) + 1 if k else 0 for d, k in zip(self.reach, kernel, strict=True)]
        return tuple(
            0 if size < span else (size - span) // s + 1
            for size, span, s in zip(self._padded(space), spans, self.strides, strict=True)
        )

    def forward(self, lhs: jax.Array, rhs: jax.Array, bias: jax.Array | None) -> jax.Array:
        """Returns the convolution of lhs with rhs, and a bias; lhs_dilation is 1."""
        lists = self._sizes(lhs, rhs), self.strides, tuple(p for p, _ in self.padding), self.reach
        params = ConvolutionParams(
            "forward", self.dtype, *lists, self.groups, self.bits, self.orders
        )
        return PRIMITIVES.convolution(lhs, rhs, bias, params)

    def transposed(
        self, lhs: jax.Array, rhs: jax.Array, bias: jax.Array | None, is_flipped: bool
    ) -> jax.Array:
        """Returns the gradient of a convolution towards its input, for lhs; strides are 1.

        Args:
          is_flipped: True if rhs is the kernel of that convolution; else it is reversed.
        """
        x, w, y = self.orders
        kernel = in_order(rhs.shape, w)[2:]
        sizes = self._sizes(lhs, rhs)
        low = tuple(
            (k - 1) * d - p for k, d, (p, _) in zip(kernel, self.reach, self.padding, strict=True)
        )
        if not is_flipped:
            rhs = jax.lax.rev(rhs, w[2:])
        own: _Dims = (w[1], w[0], *w[2:])
        if self.groups != 1:
            rhs, own = self._swapped(rhs)
        params = ConvolutionParams(
            "input",
            self.dtype,
            sizes,
            self.wide,
            low,
            self.reach,
            self.groups,
            self.bits,
            (y, own, x),
        )
        return PRIMITIVES.convolution(lhs, rhs, bias, params)

    def _swapped(self, rhs: jax.Array) -> tuple[jax.Array, _Dims]:
        """Returns `[groups·in, out, *kernel]` from rhs with groups·out and in."""
        moved = jnp.transpose(rhs, self.orders[1])
        out, into, *kernel = moved.shape
        parts = jnp.reshape(moved, (self.groups, out // self.groups, into, *kernel))
        swapped = jnp.swapaxes(parts, 1, 2)
        own = jnp.reshape(swapped, (self.groups * into, out // self.groups, *kernel))
        return own, tuple(range(own.ndim))
