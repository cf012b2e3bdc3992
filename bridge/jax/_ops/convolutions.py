"""JAX's convolutions with the sums of `matmul`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from bridge.catalogue.convolutions import check_groups
from bridge.jax._ops.convolution_arguments import as_operands
from bridge.jax._ops.planned_convolutions import general_convolution, transposed_convolution

ArrayLike = jax.typing.ArrayLike


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
      bits: "portable" for the same bits on every device. "device" for the sums of tensor cores, on
        CUDA for two operands of float16 or two of bfloat16: the bits of a generation of
        GPUs, equal in both frameworks. None is "device" where that is possible.

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
    return general_convolution(
        name,
        lhs,
        rhs,
        None,
        dtype,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        feature_group_count,
        bits,
    )


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
      bits: "portable" for the same bits on every device. "device" for the sums of tensor cores, on
        CUDA for two operands of float16 or two of bfloat16: the bits of a generation of
        GPUs, equal in both frameworks. None is "device" where that is possible.

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
    return transposed_convolution(
        name,
        lhs,
        rhs,
        None,
        dtype,
        strides,
        padding,
        rhs_dilation,
        dimension_numbers,
        transpose_kernel,
        use_consistent_padding,
        bits,
    )
