"""The public functions of quantised rows of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridge.catalogue.quantization import Quantization, Quantizer
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_like, as_arrays
from bridge.lang.dtypes import FLOATING, OF_8_BITS

ArrayLike = jax.typing.ArrayLike

_quantizer = Quantizer(arrays)
_OF_SCALES = (*FLOATING, *OF_8_BITS)


def quantize(
    x: ArrayLike, quantization: Quantization, *, global_scale: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Values of 8 or 4 bits and scales, with x ≈ values·scales.

    A value is x/scale, rounded to nearest, ties to even; numbers beyond the largest one of the
    dtype become that. The scale follows from the largest |x| of a row or a block, see
    `bridge.Quantization`; it is at least 2⁻¹²⁶ (mxfp8: 2⁻¹²⁷), so zeros stay zeros. A row or block
    with a NaN has a scale of NaN. nvfp4 has two values in a byte, the first in the low bits, and
    x ≈ values·scales·global_scale. One pass writes both results, and the bytes are those of
    `bridge.torch`. Both results are constants to derivatives: `fake_quantize` has a gradient.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      quantization: the format; under jit it is static.
      global_scale: one number of the whole array, for nvfp4 alone, such as max |x| / 2688, with
        which the largest scale is 448; None is 1.

    Returns:
      The values, of x's shape (nvfp4: `[..., d/2]`), and the scales: `[...]` for a format of
      rows, `[..., d/block]` for one of blocks.

    Raises:
      TypeError: x is no array or has another dtype; quantization is no `bridge.Quantization`.
      ValueError: x has no dimension, or the blocks do not divide d; global_scale is no number, or
        the format has none.

    Example:
      >>> int8 = bridge.Quantization("int8_row")
      >>> quantize(jnp.array([[1.0, -2.0, 127.0]]), int8)
      (Array([[  1,  -2, 127]], dtype=int8), Array([1.], dtype=float32))

    Source: OCP, "8-bit Floating Point Specification" and "Microscaling Formats Specification".
    """
    x, number = arrays.checked("quantize", 1, x=x, global_scale=global_scale)
    return _quantizer.quantize(x, quantization, number)  # type: ignore[return-value]


def fake_quantize(
    x: ArrayLike, quantization: Quantization, *, global_scale: ArrayLike | None = None
) -> jax.Array:
    """values·scales of `quantize`, in the dtype of x: what is left of x after its quantisation.

    The gradient of x is the cotangent of the result, as it is (the straight-through estimate);
    derivatives of higher order follow from that. The bits are those of `dequantize` of `quantize`.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      quantization: the format, a `bridge.Quantization`.
      global_scale: one number of the whole array, for nvfp4 alone, such as max |x| / 2688, with
        which the largest scale is 448; None is 1.

    Returns:
      An array of x's shape and dtype.

    Raises:
      TypeError, ValueError: as for `quantize`.

    Example:
      >>> fake_quantize(jnp.array([[0.3, -2.2, 127.0]]), bridge.Quantization("int8_row"))
      Array([[  0.,  -2., 127.]], dtype=float32)

    Source: Bengio, Léonard, Courville, arXiv:1308.3432, for the gradient.
    """
    x, number = arrays.checked("fake_quantize", 1, x=x, global_scale=global_scale)
    return _quantizer.fake_quantize(x, quantization, number)  # type: ignore[no-any-return]


def dequantize(
    values: ArrayLike,
    scales: ArrayLike,
    *,
    dtype: Any = jnp.float32,
    global_scale: ArrayLike | None = None,
) -> jax.Array:
    """values·scales, each scale for its row or its block of columns.

    Computed in float32 (float64 if the scales are float64) and rounded once. The scales have
    derivatives if they are floating; values have none.

    Args:
      values: `[..., d]`, int8, float8_e4m3fn, float8_e5m2 or float8_e8m0fnu; or `[..., d/2]`,
        uint8, two numbers of float4_e2m1fn in a byte.
      scales: `[...]`, or `[..., d/block]`, of one of these dtypes or a floating one.
      dtype: of the result: float16, bfloat16, float32 or float64.
      global_scale: one number, a further factor of 4-bit numbers; None is 1.

    Returns:
      An array of the shape of values.

    Raises:
      TypeError: an argument is no array, or has another dtype.
      ValueError: the shapes do not fit, or another dtype of the result.

    Example:
      >>> dequantize(jnp.array([[1, -2]], jnp.int8), jnp.array([0.5]))
      Array([[ 0.5, -1. ]], dtype=float32)
    """
    expected = "one of {}".format
    of_values = (*OF_8_BITS, "uint8")
    values = as_array_like(
        "dequantize", "values", values, of_values, expected(", ".join(of_values))
    )
    scales = as_array_like(
        "dequantize", "scales", scales, _OF_SCALES, expected(", ".join(_OF_SCALES))
    )
    if global_scale is not None:
        global_scale = as_array_like(
            "dequantize", "global_scale", global_scale, FLOATING, expected(", ".join(FLOATING))
        )
    values, scales, number = as_arrays(values, scales, global_scale)
    return _quantizer.dequantize(values, scales, jnp.dtype(dtype).name, number)  # type: ignore[no-any-return]
