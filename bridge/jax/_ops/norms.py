"""The public normalisations of JAX."""

from __future__ import annotations

from typing import overload

import jax

from bridge.catalogue import norms
from bridge.catalogue.quantization import Quantization
from bridge.catalogue.quantized_norms import QuantizedNorms
from bridge.jax._adapter import arrays

ArrayLike = jax.typing.ArrayLike

_rms_norm, _layer_norm = norms.rms_norm.entry("jax").run, norms.layer_norm.entry("jax").run
_quantized = QuantizedNorms(arrays)
_rms_norm_of_sum = norms.add_rms_norm.entry("jax").run
_layer_norm_of_sum = norms.add_layer_norm.entry("jax").run


@overload
def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    residual: None = None,
    *,
    eps: float = ...,
    offset: float = ...,
) -> jax.Array: ...
@overload
def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    residual: ArrayLike = ...,
    *,
    eps: float = ...,
    offset: float = ...,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = ...,
    offset: float = ...,
    quantize: Quantization,
) -> tuple[jax.Array, ...]: ...
def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    quantize: Quantization | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    r"""h·r·(offset + weight) with r = 1/√(mean(h²) + eps) over the last dimension.

    h is x, or x + residual rounded to its dtype: a call with a residual has the bits of an addition
    and a call without residual, in both passes. 16-bit arrays and float32 are computed in float32,
    float64 in float64, and rounded once. The bits of a row depend on that row alone, and are the
    same in `bridge.torch`.

    A row whose sum of squares overflows (one |h| beyond 1.8·10¹⁹ in float32) gives 0.

    Every transformation of JAX applies, derivatives of any order included. The backward
    pass saves x, residual and r, one number per row; one kernel computes the gradients of x and
    weight.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      weight: `[d]`, of any of these dtypes.
      residual: of x's shape, of any of these dtypes.
      eps: a positive finite number, known at compile time.
      offset: a finite number, known at compile time, added to weight; Gemma uses 1.0.
      quantize: a `bridge.Quantization`: the result is rounded to its dtype and then quantised, as
        by `quantize`, without an array in between. All results are then constants to derivatives.

    Returns:
      y, of x's shape and the promoted dtype of all arrays. With a residual (y, h), where h has the
      promoted dtype of x and residual. With `quantize`, values and scales in the place of y.

    Raises:
      TypeError: an argument is no array or has another dtype; eps or offset is traced or no number.
      ValueError: a shape that does not fit x; eps is not positive or not finite; an offset that is
        not finite or has no weight.

    Example:
      >>> rms_norm(jnp.array([[3.0, 4.0, 0.0, 0.0]]), eps=1e-12)
      Array([[1.2, 1.6, 0. , 0. ]], dtype=float32)

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
    """
    if quantize is not None:
        return _quantized.rms_norm(x, weight, residual, eps, offset, quantize)
    if residual is None:
        return _rms_norm((x, weight), None, eps, offset)  # type: ignore[no-any-return]
    x, residual = arrays.checked("rms_norm", 2, x=x, residual=residual)
    x, residual, *of_sum = norms.summands(arrays, x, residual)
    return _rms_norm_of_sum((x, residual, weight), None, eps, offset, *of_sum)  # type: ignore[no-any-return]


@overload
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: None = None,
    *,
    eps: float = ...,
) -> jax.Array: ...
@overload
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike = ...,
    *,
    eps: float = ...,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = ...,
    quantize: Quantization,
) -> tuple[jax.Array, ...]: ...
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    quantize: Quantization | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    r"""(h − μ)/√(v + eps)·weight + bias with the mean μ and variance v of a row of h.

    h is x, or x + residual rounded to its dtype, as for `rms_norm`. With m = mean(h) and d = h − m,
    h − μ is d − mean(d), and v is mean(d²) − mean(d)². So rows whose mean is a million times their
    spread keep all digits, and a row of equal numbers gives exactly bias. The residuals for the
    backward pass include m, mean(d) and r = 1/√(v + eps), three numbers per row; one kernel
    computes the gradients of x, weight and bias. A row whose squares overflow (one |d| beyond
    1.8·10¹⁹ in float32) gives bias.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      weight, bias: `[d]`, of any of these dtypes.
      residual: of x's shape, of any of these dtypes.
      eps: a positive finite number, known at compile time.
      quantize: a `bridge.Quantization`: the result is rounded to its dtype and then quantised, as
        by `quantize`, without an array in between. All results are then constants to derivatives.

    Returns:
      y, of x's shape and the promoted dtype of all arrays. With a residual (y, h), where h has the
      promoted dtype of x and residual. With `quantize`, values and scales in the place of y.

    Raises:
      TypeError, ValueError: as for `rms_norm`.

    Example:
      >>> layer_norm(jnp.array([[1.0, 3.0]]), eps=1e-12)
      Array([[-1.,  1.]], dtype=float32)

    Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.
    """
    if quantize is not None:
        return _quantized.layer_norm(x, weight, bias, residual, eps, quantize)
    if residual is None:
        return _layer_norm((x, weight, bias), None, eps)  # type: ignore[no-any-return]
    x, residual = arrays.checked("layer_norm", 2, x=x, residual=residual)
    x, residual, *of_sum = norms.summands(arrays, x, residual)
    return _layer_norm_of_sum((x, residual, weight, bias), None, eps, *of_sum)  # type: ignore[no-any-return]
