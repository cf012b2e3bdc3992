"""The public normalisations for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import norms
from bridge.catalogue.norms import check_eps, check_offset
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import declared_entry
from bridge.torch._adapter.kernels import NAMES

# Make them now: a first call under torch.compile could not make them.
_of_rms_norm, _of_layer_norm = norms.rms_norm.torch.resolve, norms.layer_norm.torch.resolve  # type: ignore[attr-defined]
_of_add_rms_norm = norms.add_rms_norm.torch.resolve  # type: ignore[attr-defined]
_of_add_layer_norm = norms.add_layer_norm.torch.resolve  # type: ignore[attr-defined]


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    out: Tensor | None = None,
) -> Any:
    r"""h·r·(offset + weight) with r = 1/√(mean(h²) + eps) over the last dimension.

    h is x, or x + residual rounded to its dtype. So a call with a residual has the same bits as an
    addition followed by a call without, in both passes. 16-bit tensors and float32 are computed in
    float32, float64 in float64, and rounded once. A row's bits depend on that row alone, and
    `bridge.jax` gives the same bits.

    A row whose sum of squares overflows (one |h| beyond 1.8·10¹⁹ in float32) gives 0.

    Differentiable to any order, in reverse and forward mode. The residuals of the backward pass are
    x, the added branch and r, one number for each row; one kernel computes the gradients of x and
    of weight.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      weight: `[d]`, of any of these dtypes.
      residual: of x's shape, of any of these dtypes.
      eps: a positive finite number.
      offset: a finite number that is added to weight: 1.0 in Gemma.
      out: a tensor for the result, of its shape and dtype; only without a residual.

    Returns:
      y, of x's shape and the promoted dtype of all tensors; with a residual (y, h), h of the
      promoted dtype of x and residual.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; eps or offset is not a
        number.
      ValueError: a shape that does not fit x; eps is not positive or not finite; an offset that is
        not finite, or without a weight; `out` with a residual, or as for `scaled_softmax`.

    Example:
      >>> rms_norm(torch.tensor([[3.0, 4.0, 0.0, 0.0]]), eps=1e-12)
      tensor([[1.2000, 1.6000, 0.0000, 0.0000]])

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
    """
    if residual is None:
        return _rms_norm((x, weight), out, eps, offset)
    if out is not None:
        raise ValueError(_OUT.format("rms_norm"))
    return _rms_norm_of_sum((x, residual, weight), None, eps, offset)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    out: Tensor | None = None,
) -> Any:
    r"""(h − μ)/√(v + eps)·weight + bias with the mean μ and variance v of a row of h.

    h is x, or x + residual rounded to its dtype, as for `rms_norm`. With m = mean(h) and d = h − m,
    h − μ is d − mean(d), and v is mean(d²) − mean(d)²: rows whose mean is a million times their
    spread keep all digits, and a row of equal numbers gives exactly bias. The residuals of the
    backward pass are the operands and m, mean(d) and r = 1/√(v + eps), three numbers for each row;
    one kernel computes the gradients of x, weight and bias. A row whose squares overflow (one |d|
    beyond 1.8·10¹⁹ in float32) gives bias.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      weight, bias: `[d]`, of any of these dtypes.
      residual: of x's shape, of any of these dtypes.
      eps: a positive finite number.
      out: a tensor for the result, of its shape and dtype; only without a residual.

    Returns:
      y, of x's shape and the promoted dtype of all tensors; with a residual (y, h), h of the
      promoted dtype of x and residual.

    Raises:
      TypeError, ValueError: as for `rms_norm`.

    Example:
      >>> layer_norm(torch.tensor([[1.0, 3.0]]), eps=1e-12)
      tensor([[-1.,  1.]])

    Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.
    """
    if residual is None:
        return _layer_norm((x, weight, bias), out, eps)
    if out is not None:
        raise ValueError(_OUT.format("layer_norm"))
    return _layer_norm_of_sum((x, residual, weight, bias), None, eps)


_OUT = "{}: out is given with a residual, expected one of the two"


def _resolve_sum(function: str, resolve: Any, operands: tuple[Any, ...], *values: Any) -> Any:
    """Resolves the normalisation of a sum, whose dtype follows from both summands' dtypes."""
    x, residual, *others = operands
    check_tensors(function, 2, x=x, residual=residual)
    dtypes = NAMES.get(x.dtype, ""), NAMES.get(residual.dtype, "")
    x, residual, of_sum = norms.summands(
        x, residual, dtypes, lambda x, dtype: x.to(getattr(torch, dtype))
    )
    dtype, like = of_sum.get("dtype", "float32"), of_sum.get("like", "x")
    return resolve((x, residual, *others), *values, dtype, like)


def _resolve_rms_norm(operands: tuple[Any, ...], eps: Any, offset: Any) -> Any:
    eps = check_eps("rms_norm", eps)
    offset = check_offset("rms_norm", offset, operands[1] is not None)
    return _of_rms_norm(operands, eps, offset)


def _resolve_layer_norm(operands: tuple[Any, ...], eps: Any) -> Any:
    eps = check_eps("layer_norm", eps)
    return _of_layer_norm(operands, eps)


def _resolve_rms_norm_of_sum(operands: tuple[Any, ...], eps: Any, offset: Any) -> Any:
    eps = check_eps("rms_norm", eps)
    offset = check_offset("rms_norm", offset, operands[2] is not None)
    return _resolve_sum("rms_norm", _of_add_rms_norm, operands, eps, offset)


def _resolve_layer_norm_of_sum(operands: tuple[Any, ...], eps: Any) -> Any:
    eps = check_eps("layer_norm", eps)
    return _resolve_sum("layer_norm", _of_add_layer_norm, operands, eps)


_rms_norm = declared_entry("rms_norm", _resolve_rms_norm)
_layer_norm = declared_entry("layer_norm", _resolve_layer_norm)
_rms_norm_of_sum = declared_entry("rms_norm", _resolve_rms_norm_of_sum)
_layer_norm_of_sum = declared_entry("layer_norm", _resolve_layer_norm_of_sum)
