"""The public normalisations of JAX."""

from __future__ import annotations

from typing import Any

import jax

from bridge.catalogue import norms
from bridge.catalogue.norms import check_eps, check_offset
from bridge.jax._adapter.arguments import as_array_likes, as_arrays, refuse_traced

ArrayLike = jax.typing.ArrayLike


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> Any:
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

    Returns:
      y, of x's shape and the promoted dtype of all arrays. With a residual (y, h), where h has the
      promoted dtype of x and residual.

    Raises:
      TypeError: an argument is no array or has another dtype; eps or offset is traced or no number.
      ValueError: a shape that does not fit x; eps is not positive or not finite; an offset that is
        not finite or has no weight.

    Example:
      >>> rms_norm(jnp.array([[3.0, 4.0, 0.0, 0.0]]), eps=1e-12)
      Array([[1.2, 1.6, 0. , 0. ]], dtype=float32)

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
    """
    refuse_traced("rms_norm", "eps", eps)
    refuse_traced("rms_norm", "offset", offset)
    eps = check_eps("rms_norm", eps)
    offset = check_offset("rms_norm", offset, weight is not None)
    if residual is None:
        return norms.rms_norm.jax(x, weight, eps=eps, offset=offset)
    x, residual, of_sum = _summands("rms_norm", x, residual)
    return norms.add_rms_norm.jax(x, residual, weight, eps=eps, offset=offset, **of_sum)


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
) -> Any:
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

    Returns:
      y, of x's shape and the promoted dtype of all arrays. With a residual (y, h), where h has the
      promoted dtype of x and residual.

    Raises:
      TypeError, ValueError: as for `rms_norm`.

    Example:
      >>> layer_norm(jnp.array([[1.0, 3.0]]), eps=1e-12)
      Array([[-1.,  1.]], dtype=float32)

    Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.
    """
    refuse_traced("layer_norm", "eps", eps)
    eps = check_eps("layer_norm", eps)
    if residual is None:
        return norms.layer_norm.jax(x, weight, bias, eps=eps)
    x, residual, of_sum = _summands("layer_norm", x, residual)
    return norms.add_layer_norm.jax(x, residual, weight, bias, eps=eps, **of_sum)


def _summands(function: str, x: Any, residual: Any) -> tuple[Any, Any, dict[str, str]]:
    x, residual = as_arrays(*as_array_likes(function, 1, x=x, residual=residual))
    dtypes = x.dtype.name, residual.dtype.name
    return norms.summands(x, residual, dtypes, lambda x, dtype: x.astype(dtype))
