"""The public functions of quantised rows for PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from bridge.catalogue.quantization import Quantization, Quantizer
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.kernels import dtype_word
from bridge.torch._adapter.overrides import hand_over, is_overridden

_quantizer = Quantizer(arrays)


def quantize(
    x: Tensor, quantization: Quantization, *, global_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values of 8 or 4 bits and scales, with x ≈ values·scales.

    A value is x/scale, rounded to nearest, ties to even; numbers beyond the largest one of the
    dtype become that. The scale follows from the largest |x| of a row or a block, see
    `bridge.Quantization`; it is at least 2⁻¹²⁶ (mxfp8: 2⁻¹²⁷), so zeros stay zeros. A row or block
    with a NaN has a scale of NaN. nvfp4 has two values in a byte, the first in the low bits, and
    x ≈ values·scales·global_scale. One pass writes both results, and the bytes are those of
    `bridge.jax`. Both results are constants to derivatives: `fake_quantize` has a gradient.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      quantization: the format.
      global_scale: one number of the whole array, for nvfp4 alone, such as max |x| / 2688, with
        which the largest scale is 448; None is 1.

    Returns:
      The values, of x's shape (nvfp4: `[..., d/2]`), and the scales: `[...]` for a format of
      rows, `[..., d/block]` for one of blocks.

    Raises:
      TypeError: x is not a dense tensor or has another dtype; quantization is no
        `bridge.Quantization`.
      ValueError: x has no dimension, or the blocks do not divide d; global_scale is no number, or
        the format has none.

    Example:
      >>> int8 = bridge.Quantization("int8_row")
      >>> quantize(torch.tensor([[1.0, -2.0, 127.0]]), int8)
      (tensor([[  1,  -2, 127]], dtype=torch.int8), tensor([1.]))

    Source: OCP, "8-bit Floating Point Specification" and "Microscaling Formats Specification".
    """
    if is_overridden(given := (x, global_scale)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("quantize", 1, x=x, global_scale=global_scale)
    return _quantizer.quantize(x, quantization, global_scale)  # type: ignore[return-value]


def fake_quantize(
    x: Tensor, quantization: Quantization, *, global_scale: Tensor | None = None
) -> Tensor:
    """values·scales of `quantize`, in the dtype of x: what is left of x after its quantisation.

    The gradient of x is the cotangent of the result, as it is (the straight-through estimate);
    derivatives of higher order follow from that. The bits are those of `dequantize` of `quantize`.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      quantization: the format, a `bridge.Quantization`.
      global_scale: one number of the whole array, for nvfp4 alone, such as max |x| / 2688, with
        which the largest scale is 448; None is 1.

    Returns:
      A tensor of x's shape and dtype.

    Raises:
      TypeError, ValueError: as for `quantize`.

    Example:
      >>> fake_quantize(torch.tensor([[0.3, -2.2, 127.0]]), bridge.Quantization("int8_row"))
      tensor([[  0.,  -2., 127.]])

    Source: Bengio, Léonard, Courville, arXiv:1308.3432, for the gradient.
    """
    if is_overridden(given := (x, global_scale)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("fake_quantize", 1, x=x, global_scale=global_scale)
    return _quantizer.fake_quantize(x, quantization, global_scale)  # type: ignore[no-any-return]


def dequantize(
    values: Tensor,
    scales: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    global_scale: Tensor | None = None,
) -> Tensor:
    """values·scales, each scale for its row or its block of columns.

    Computed in float32 (float64 if the scales are float64) and rounded once. The scales have
    derivatives if they are floating; values have none.

    Args:
      values: `[..., d]` of dtype int8, float8_e4m3fn, float8_e5m2 or float8_e8m0fnu; or
        `[..., d/2]` of dtype float4_e2m1fn_x2 or uint8, two 4-bit numbers in a byte.
      scales: `[...]`, or `[..., d/block]`, of one of these dtypes or a floating one.
      dtype: of the result: float16, bfloat16, float32 or float64.
      global_scale: one number, a further factor of 4-bit numbers; None is 1.

    Returns:
      A tensor of the shape of values.

    Raises:
      TypeError: an argument is not a dense tensor, or has another dtype.
      ValueError: the shapes do not fit, or another dtype of the result.

    Example:
      >>> dequantize(torch.tensor([[1, -2]], dtype=torch.int8), torch.tensor([0.5]))
      tensor([[ 0.5000, -1.0000]])
    """
    if is_overridden(given := (values, scales, global_scale)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("dequantize", 2, values=values, scales=scales, global_scale=global_scale)
    return _quantizer.dequantize(values, scales, dtype_word(dtype), global_scale)  # type: ignore[no-any-return]
