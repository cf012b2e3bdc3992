"""JAX's convolutions with the sums of `matmul`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.catalogue.convolutions import check_groups, one_for_each
from bridge.jax._adapter.convolutions import PRIMITIVES
from bridge.jax._ops.convolution_arguments import (
    as_operands,
    as_pairs,
    dilations_of,
    orders_of,
    pads_around,
    pads_of,
)
from bridge.ops.convolution import ConvolutionParams, in_order

ArrayLike = jax.typing.ArrayLike
_Dims = tuple[int, ...]


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    bits: str | None = None,
) -> jax.Array:
    r"""`jax.lax.conv_general_dilated` with the sums of `matmul`.

    It takes the place of JAX's function in layers that accept one:
    `flax.nnx.Conv(..., conv_general_dilated=bridge.jax.conv_general_dilated)`, Linen's `Conv`.

    out[n, p, o] = Σ_t Σ_i lhs[n, p·stride − low + t·dilation, i]·rhs[t, i, o]. The sum is
    `matmul`'s over the positions t of the kernel in row-major order and, fastest, the channels i of
    the group; outside of lhs are zeros, which count. It is rounded once. So a result has the bits
    of `matmul` of the patches: in `bridge.torch` too, for any batch, number of threads and
    `dimension_numbers`. Arrays are read as they lie. With an lhs_dilation and window strides of 1
    the result is `conv_transpose`'s. The arithmetic is float64 if an operand is, else float32.

    Every transformation of JAX applies. Derivatives of any order are convolutions again. On arrays
    that are split over devices, images and output channels stay split; other splits are gathered.

    Args:
      lhs, rhs: arrays of dtype float16, bfloat16, float32 or float64, with one to three dimensions
        of space.
      window_strides: a positive integer for each dimension of space.
      padding: "SAME", "SAME_LOWER", "VALID" or a pair (low, high) for each dimension of space.
      lhs_dilation, rhs_dilation: a positive integer for each dimension of space, or None for 1.
      dimension_numbers: as in JAX, such as ("NHWC", "HWIO", "NHWC"); None for channels first.
      feature_group_count: the number of groups of channels.
      batch_group_count: 1.
      precision: without effect; the arithmetic is that of `matmul`.
      preferred_element_type: the floating dtype of the result. The default is the promoted dtype.
      out_sharding: None.
      bits: "portable" or None: the same bits on every device.

    Returns:
      The array that JAX's function returns, in this dtype.

    Raises:
      TypeError: an operand is no array, or has another dtype.
      ValueError: shapes or numbers that do not fit, a batch_group_count above 1, an out_sharding,
        another word.

    Example:
      >>> x, w = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1, 2, 2))
      >>> conv_general_dilated(x, w, (1, 1), "VALID").ravel()
      Array([4., 4., 4., 4.], dtype=float32)
    """
    name = "conv_general_dilated"
    lhs, rhs, dtype = as_operands(name, lhs, rhs, preferred_element_type, bits)
    if out_sharding is not None:
        raise ValueError(f"{name}: out_sharding is not None, which has no effect here")
    check_groups(name, "batch_group_count", batch_group_count)
    if batch_group_count != 1:
        raise ValueError(
            f"{name}: batch_group_count is {batch_group_count}, expected 1: reshape the images of "
            "a group into channels, and give feature_group_count"
        )
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
    groups = feature_group_count
    how = _How(name, dtype, orders, strides, pairs, wide, reach, groups, bits)
    how.check(lhs, rhs)
    if all(d == 1 for d in wide):
        return how.forward(lhs, rhs)
    if all(s == 1 for s in strides):
        return how.transposed(lhs, rhs, is_flipped=False)
    spread = [(0, 0, 0)] * lhs.ndim
    for d, step in zip(orders[0][2:], wide, strict=True):
        spread[d] = (0, 0, step - 1)
    lhs = jax.lax.pad(lhs, jnp.zeros((), lhs.dtype), spread)
    ones = (1,) * dims
    return _How(name, dtype, orders, strides, pairs, ones, reach, groups, bits).forward(lhs, rhs)


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
    *,
    bits: str | None = None,
) -> jax.Array:
    """`jax.lax.conv_transpose` with the sums of `matmul`.

    It is the gradient of a convolution towards its input: a place of the result adds over the
    positions of the kernel that reach it and, fastest, over the channels of lhs. Positions that the
    stride leaves out are absent. The order of the positions is row-major in the kernel of that
    convolution: with `transpose_kernel=True` rhs is this kernel, as weight in
    `bridge.torch.conv_transpose2d`; otherwise rhs holds it from the last position to the first.
    Derivatives and transforms as for `conv_general_dilated`.

    Args:
      lhs, rhs: arrays of dtype float16, bfloat16, float32 or float64, with one to three dimensions
        of space.
      strides: a positive integer for each dimension of space.
      padding: "SAME", "VALID", or a pair (low, high) for each dimension of space, of the lhs that
        is dilated by the strides; with `use_consistent_padding` of that convolution.
      rhs_dilation: a positive integer for each dimension of space, or None for 1.
      dimension_numbers: as in JAX; None for ("NHWC", "HWIO", "NHWC") and the like.
      transpose_kernel: if True, rhs is the kernel of the convolution: `[.., out, in]` in the places
        of `[.., in, out]`, and not reversed.
      precision: without effect; the arithmetic is that of `matmul`.
      preferred_element_type: the floating dtype of the result. The default is the promoted dtype.
      use_consistent_padding: the padding is that of the convolution, as in torch.
      bits: "portable" or None: the same bits on every device.

    Returns:
      The array that JAX's function returns, in this dtype.

    Raises:
      TypeError: an operand is no array, or has another dtype.
      ValueError: shapes or numbers that do not fit, another word.

    Example:
      >>> x, w = jnp.ones((1, 1, 1, 1)), jnp.ones((2, 2, 1, 1))
      >>> conv_transpose(x, w, (2, 2), "VALID").ravel()
      Array([1., 1., 1., 1.], dtype=float32)
    """
    name = "conv_transpose"
    lhs, rhs, dtype = as_operands(name, lhs, rhs, preferred_element_type, bits)
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
    how = _How(name, dtype, orders, ones, pairs, steps, reach, 1, bits)
    how.check(lhs, rhs)
    return how.transposed(lhs, rhs, is_flipped=bool(transpose_kernel))


class _How:
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

    def forward(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """Returns the convolution of lhs with rhs; lhs_dilation is 1."""
        lists = self._sizes(lhs, rhs), self.strides, tuple(p for p, _ in self.padding), self.reach
        params = ConvolutionParams(
            "forward", self.dtype, *lists, self.groups, self.bits, self.orders
        )
        return PRIMITIVES.convolution(lhs, rhs, None, params)

    def transposed(self, lhs: jax.Array, rhs: jax.Array, is_flipped: bool) -> jax.Array:
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
        return PRIMITIVES.convolution(lhs, rhs, None, params)

    def _swapped(self, rhs: jax.Array) -> tuple[jax.Array, _Dims]:
        """Returns `[groups·in, out, *kernel]` from rhs with groups·out and in."""
        moved = jnp.transpose(rhs, self.orders[1])
        out, into, *kernel = moved.shape
        parts = jnp.reshape(moved, (self.groups, out // self.groups, into, *kernel))
        swapped = jnp.swapaxes(parts, 1, 2)
        own = jnp.reshape(swapped, (self.groups * into, out // self.groups, *kernel))
        return own, tuple(range(own.ndim))
