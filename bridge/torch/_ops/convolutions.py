"""The public convolutions for PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bridge.catalogue.convolutions import Convolutions
from bridge.torch._adapter import arrays
from bridge.torch._adapter.convolutions import PRIMITIVES
from bridge.torch._adapter.overrides import hand_over, is_overridden

_convolutions = Convolutions(arrays, PRIMITIVES)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    bits: str | None = None,
) -> Tensor:
    """`torch.nn.functional.conv1d` with the sums of `matmul`, as `conv2d`.

    Args:
      input: `[n, in, l]` or `[in, l]` of dtype float16, bfloat16, float32 or float64.
      weight: `[out, in/groups, k]` of any of these dtypes.
      bias: `[out]` of any of these dtypes, or None.
      stride, padding, dilation, groups, bits: as for `conv2d`.

    Returns:
      `[n, out, l']` or `[out, l']` in the promoted dtype.

    Raises:
      TypeError, ValueError: as `conv2d`.

    Example:
      >>> conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 2)).flatten()[:2]
      tensor([2., 2.])
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    return _convolutions.conv(  # type: ignore[no-any-return]
        "conv1d", 1, input, weight, bias, stride, padding, dilation, groups, bits
    )


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    bits: str | None = None,
) -> Tensor:
    r"""`torch.nn.functional.conv2d` with the sums of `matmul`.

    y[n, o, p] = bias[o] + Σ_t Σ_i x[n, i, p·stride − padding + t·dilation]·weight[o, i, t]. The sum
    is `matmul`'s over the positions t of the kernel in row-major order and, fastest, the channels i
    of the group; outside of the input are zeros, which count. The bias is added before the one
    rounding. So a result has the bits of `matmul` of the patches: in `bridge.jax` too, for any
    batch, number of threads and memory format. The arithmetic is float64 if an operand is, else
    float32.

    Differentiable to any order, in reverse and forward mode, and under `torch.func`. The gradient
    of the input adds over the positions that reach a place, in row-major order, and, fastest, over
    the group's output channels; the gradient of weight adds over images and places in row-major
    order. Works under `torch.compile(fullgraph=True)`, `torch.export` and autocast, which casts the
    operands as it does for torch's own convolutions. On DTensors, images and output channels stay
    split; other splits are gathered.

    Args:
      input: `[n, in, h, w]` or `[in, h, w]` of dtype float16, bfloat16, float32 or float64, with
        any strides: channels first or last cost no copy.
      weight: `[out, in/groups, kh, kw]` of any of these dtypes.
      bias: `[out]` of any of these dtypes, or None.
      stride, dilation: a positive integer, or one for each dimension of space.
      padding: zeros at both sides of each dimension, "valid" for none, or "same" for a result of
        the input's size, with stride 1. "same" puts the odd zero of an even kernel behind.
      groups: the number of groups of channels, each with its own part of weight.
      bits: "portable" for the same bits on every device. "device" for the sums of tensor cores, on
        CUDA for an input and a weight of float16, or both of bfloat16: the bits of a generation of
        GPUs, equal in both frameworks. None is "device" where that is possible.

    Returns:
      `[n, out, h', w']` or `[out, h', w']` in the promoted dtype, with channels last if torch takes
      input or weight for channels last.

    Raises:
      TypeError: an operand is not a dense tensor or has another dtype; an argument is no integer.
      ValueError: shapes that do not fit, an input smaller than the kernel, a number out of range,
        another word.

    Example:
      >>> conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)).flatten()
      tensor([4., 4., 4., 4.])
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    return _convolutions.conv(  # type: ignore[no-any-return]
        "conv2d", 2, input, weight, bias, stride, padding, dilation, groups, bits
    )


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    bits: str | None = None,
) -> Tensor:
    """`torch.nn.functional.conv3d` with the sums of `matmul`, as `conv2d`.

    Args:
      input: `[n, in, d, h, w]` or `[in, d, h, w]` of dtype float16, bfloat16, float32 or float64.
      weight: `[out, in/groups, kd, kh, kw]` of any of these dtypes.
      bias: `[out]` of any of these dtypes, or None.
      stride, padding, dilation, groups, bits: as for `conv2d`.

    Returns:
      `[n, out, d', h', w']` or `[out, d', h', w']` in the promoted dtype.

    Raises:
      TypeError, ValueError: as `conv2d`.

    Example:
      >>> conv3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2)).flatten()[:2]
      tensor([8., 8.])
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    return _convolutions.conv(  # type: ignore[no-any-return]
        "conv3d", 3, input, weight, bias, stride, padding, dilation, groups, bits
    )


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    bits: str | None = None,
) -> Tensor:
    """`torch.nn.functional.conv_transpose1d` with the sums of `matmul`, as `conv_transpose2d`.

    Args:
      input: `[n, in, l]` or `[in, l]` of dtype float16, bfloat16, float32 or float64.
      weight: `[in, out/groups, k]` of any of these dtypes.
      bias: `[out]` of any of these dtypes, or None.
      stride, padding, output_padding, groups, dilation, bits: as for `conv_transpose2d`.

    Returns:
      `[n, out, l']` or `[out, l']` in the promoted dtype.

    Raises:
      TypeError, ValueError: as `conv_transpose2d`.

    Example:
      >>> conv_transpose1d(torch.ones(1, 1, 1), torch.ones(1, 1, 2)).flatten()[:2]
      tensor([1., 1.])
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    how = stride, padding, output_padding, groups, dilation
    return _convolutions.conv_transpose(  # type: ignore[no-any-return]
        "conv_transpose1d", 1, input, weight, bias, *how, bits
    )


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    bits: str | None = None,
) -> Tensor:
    r"""`torch.nn.functional.conv_transpose2d` with the sums of `matmul`.

    It is the gradient of `conv2d` towards its input, plus a bias: a place of the result adds over
    the positions of the kernel that reach it, in row-major order, and, fastest, over the group's
    channels of `input`. Positions that the stride leaves out are absent. Derivatives and transforms
    as for `conv2d`.

    Args:
      input: `[n, in, h, w]` or `[in, h, w]` of dtype float16, bfloat16, float32 or float64, with
        any strides.
      weight: `[in, out/groups, kh, kw]` of any of these dtypes.
      bias: `[out]` of any of these dtypes, or None.
      stride, padding, dilation: of the convolution, integers for all or each dimension of space.
      output_padding: rows and columns that the result has more at the high side; less than stride
        or dilation.
      groups: the number of groups of channels.
      bits: as for `conv2d`.

    Returns:
      `[n, out, h', w']` or `[out, h', w']` in the promoted dtype, with
      h' = (h − 1)·stride − 2·padding + dilation·(kh − 1) + output_padding + 1.

    Raises:
      TypeError: an operand is not a dense tensor or has another dtype; an argument is no integer.
      ValueError: shapes that do not fit, a result without elements, a number out of range, another
        word.

    Example:
      >>> conv_transpose2d(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 2, 2), stride=2).flatten()
      tensor([1., 1., 1., 1.])
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    how = stride, padding, output_padding, groups, dilation
    return _convolutions.conv_transpose(  # type: ignore[no-any-return]
        "conv_transpose2d", 2, input, weight, bias, *how, bits
    )


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    bits: str | None = None,
) -> Tensor:
    """`torch.nn.functional.conv_transpose3d` with the sums of `matmul`, as `conv_transpose2d`.

    Args:
      input: `[n, in, d, h, w]` or `[in, d, h, w]` of dtype float16, bfloat16, float32 or float64.
      weight: `[in, out/groups, kd, kh, kw]` of any of these dtypes.
      bias: `[out]` of any of these dtypes, or None.
      stride, padding, output_padding, groups, dilation, bits: as for `conv_transpose2d`.

    Returns:
      `[n, out, d', h', w']` or `[out, d', h', w']` in the promoted dtype.

    Raises:
      TypeError, ValueError: as `conv_transpose2d`.

    Example:
      >>> conv_transpose3d(torch.ones(1, 1, 1, 1, 1), torch.ones(1, 1, 2, 2, 2)).flatten()[:2]
      tensor([1., 1.])
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    how = stride, padding, output_padding, groups, dilation
    return _convolutions.conv_transpose(  # type: ignore[no-any-return]
        "conv_transpose3d", 3, input, weight, bias, *how, bits
    )
