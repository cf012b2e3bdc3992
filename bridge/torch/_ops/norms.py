"""The public normalisations for PyTorch."""

from __future__ import annotations

from typing import Any, overload

from torch import Tensor

from bridge.catalogue import norms
from bridge.catalogue.quantization import Quantization
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._ops.quantized_entries import quantized_norm


class _OfSum(DeclaredEntry):
    """The path into a norm of a sum, whose dtype follows from the dtypes of both summands."""

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        check_tensors(self.name, 2, x=operands[0], residual=operands[1])
        x, residual, *of_sum = norms.summands(arrays, *operands[:2])
        return super().resolve((x, residual, *operands[2:]), *values, *of_sum)


_rms_norm, _layer_norm = DeclaredEntry(norms.rms_norm), DeclaredEntry(norms.layer_norm)
_rms_norm_of_sum, _layer_norm_of_sum = _OfSum(norms.add_rms_norm), _OfSum(norms.add_layer_norm)
_OUT = "{}: out is given with a residual, expected one of the two"


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: None = None,
    *,
    eps: float = ...,
    offset: float = ...,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor = ...,
    *,
    eps: float = ...,
    offset: float = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = ...,
    offset: float = ...,
    quantize: Quantization,
) -> tuple[Tensor, ...]: ...
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    out: Tensor | None = None,
    quantize: Quantization | None = None,
) -> Tensor | tuple[Tensor, ...]:
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
      quantize: a `bridge.Quantization`: the result is rounded to its dtype and then quantised, as
        by `quantize`, without an array in between. All results are then constants to derivatives.

    Returns:
      y, of x's shape and the promoted dtype of all tensors; with a residual (y, h), h of the
      promoted dtype of x and residual; with `quantize`, values and scales in the place of y.

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
    if quantize is not None:
        return quantized_norm("rms_norm", (x, weight, residual), out, eps, offset, quantize)  # type: ignore[no-any-return]
    if residual is None:
        return _rms_norm.run((x, weight), out, eps, offset)
    if out is not None:
        raise ValueError(_OUT.format("rms_norm"))
    return _rms_norm_of_sum.run((x, residual, weight), None, eps, offset)


@overload
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: None = None,
    *,
    eps: float = ...,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor = ...,
    *,
    eps: float = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = ...,
    quantize: Quantization,
) -> tuple[Tensor, ...]: ...
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    out: Tensor | None = None,
    quantize: Quantization | None = None,
) -> Tensor | tuple[Tensor, ...]:
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
      quantize: a `bridge.Quantization`: the result is rounded to its dtype and then quantised, as
        by `quantize`, without an array in between. All results are then constants to derivatives.

    Returns:
      y, of x's shape and the promoted dtype of all tensors; with a residual (y, h), h of the
      promoted dtype of x and residual; with `quantize`, values and scales in the place of y.

    Raises:
      TypeError, ValueError: as for `rms_norm`.

    Example:
      >>> layer_norm(torch.tensor([[1.0, 3.0]]), eps=1e-12)
      tensor([[-1.,  1.]])

    Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.
    """
    if quantize is not None:
        return quantized_norm("layer_norm", (x, weight, bias, residual), out, eps, quantize)  # type: ignore[no-any-return]
    if residual is None:
        return _layer_norm.run((x, weight, bias), out, eps)
    if out is not None:
        raise ValueError(_OUT.format("layer_norm"))
    return _layer_norm_of_sum.run((x, residual, weight, bias), None, eps)
