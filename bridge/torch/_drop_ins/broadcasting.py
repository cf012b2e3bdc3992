"""The fused ops with operands of any shapes that broadcast, as the drop-ins' originals take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import forward_ad, functorch_active
from bridge.catalogue.checks import probability
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.kernels import is_known, same_shape, spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.bias_dropout_add import bias_add_, bias_dropout_add
from bridge.torch._ops.bias_gelu import bias_gelu, bias_gelu_times


def fused_pair(function: str, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns an equal pair that the fused ops take: a bias `[d]`, or the sum and no bias.

    A bias that varies along other dimensions than the last (or that was expanded along them) is
    added here, and the sum with x is rounded to their dtype, as in the originals. Autograd sums its
    gradient over the dimensions along which it was broadcast.
    """
    if bias is None:
        return x, None
    if not _has_shape(x) or not _has_shape(bias):
        check_tensors(function, x=x, bias=bias)  # raises
    if (
        1 <= bias.ndim <= x.ndim
        and is_known(bias.numel() == bias.shape[-1])
        and is_known(bias.shape[-1] == x.shape[-1])
    ):
        return x, bias if bias.ndim == 1 else bias.reshape(-1)
    check_tensors(function, x=x, bias=bias)
    common_shape(function, x=x, bias=bias)
    return x + bias, None


def common_shape(function: str, **tensors: Tensor) -> torch.Size:
    """Returns the shape to which two tensors broadcast.

    Raises:
      ValueError: there is none.
    """
    (name, x), (other_name, other) = tensors.items()
    try:
        return torch.broadcast_shapes(x.shape, other.shape)
    except RuntimeError:
        raise ValueError(
            f"{function}: {other_name} has shape {list(other.shape)}, expected a shape that "
            f"broadcasts with {name}'s, {list(x.shape)}"
        ) from None


def _has_shape(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and not tensor.is_nested


def broadcast_bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """tanh-GELU of x + bias, for all shapes that broadcast."""
    if type(x) is not Tensor and is_overridden((x, bias)):
        return hand_over((x, bias))
    return bias_gelu(*fused_pair("bias_gelu", x, bias), approximate="tanh")


def broadcast_bias_gelu_back(g: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Returns g·gelu′(x + bias), of the shape to which all three broadcast."""
    if type(x) is not Tensor and is_overridden((g, x, bias)):
        return hand_over((g, x, bias))
    x, bias = fused_pair("bias_gelu_back", x, bias)
    check_tensors("bias_gelu_back", 2, y=x, g=g)
    if not same_shape(g, x):
        common_shape("bias_gelu_back", y=x, g=g)
        if bias is not None:  # the last dimension may have to be expanded too
            x, bias = x + bias, None
        x, g = torch.broadcast_tensors(x, g)
    return bias_gelu_times(g, x, bias, approximate="tanh")


def broadcast_bias_dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, *, p: float, training: bool
) -> Tensor:
    """residual + dropout(x + bias), for all shapes that broadcast, with the device's generator.

    As in the originals, the mask has x's shape, even if a larger residual then repeats x.
    """
    if type(x) is not Tensor and is_overridden((x, bias, residual)):
        return hand_over((x, bias, residual))
    x, bias = fused_pair("bias_dropout_add", x, bias)
    if residual is None:
        if bias is not None and bias.dtype != x.dtype:
            x = x.to(torch.result_type(x, bias))  # the result of bias_dropout_add has x's dtype
    elif not _has_shape(x) or not _has_shape(residual) or not same_shape(residual, x):
        check_tensors("bias_dropout_add", x=x, residual=residual)
        if common_shape("bias_dropout_add", x=x, residual=residual) != x.shape:
            dropped = bias_dropout_add(x, bias, p=p, training=training)
            return (residual + dropped).to(residual.dtype)
        residual = residual.expand(x.shape)
    return bias_dropout_add(x, bias, residual, p=p, training=training)


def broadcast_bias_add_(x: Tensor, bias: Tensor | None, residual: Tensor, *, p: float) -> Tensor:
    """Returns residual + x + bias, written into x if that is allowed; p is only checked."""
    if not _may_be_written(x, bias, residual):
        return broadcast_bias_dropout_add(x, bias, residual, p=p, training=False)
    probability("bias_dropout_add", "p", p)
    h, bias = fused_pair("bias_dropout_add", x, bias)
    residual = residual.expand(x.shape)
    if h is x and x.is_contiguous():
        return bias_add_(x, bias, residual)
    return x.copy_(bias_dropout_add(h, bias, residual, training=False))


def _may_be_written(x: Any, bias: Any, residual: Any) -> bool:
    """True if the sum may overwrite x: no gradient is wanted and no other tensor changes."""
    others = [residual] if bias is None else [bias, residual]
    return (
        type(x) is Tensor
        and all(_has_shape(tensor) for tensor in (x, *others))
        and not any(tensor.requires_grad for tensor in (x, *others))
        and not functorch_active()
        and x.dtype == residual.dtype
        and all(spec_of(other).broadcasts_to(tuple(x.shape)) for other in others)
        # empty_like keeps the strides of a tensor only if it is dense and does not overlap itself.
        and (x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride())
        and x._base is None
        and _is_apart(x, others)
    )


def _is_apart(x: Tensor, others: list[Tensor]) -> bool:
    """True if x can be written without changing another of the tensors."""
    if torch.compiler.is_compiling():  # there are no addresses under tracing
        return not any(other is x or other._base is x for other in others)
    if forward_ad._current_level >= 0 or (
        x.is_inference() and not torch.is_inference_mode_enabled()
    ):
        return False
    memory = x.untyped_storage()
    start, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
    for other in others:
        memory = other.untyped_storage()
        if memory.data_ptr() < end and start < memory.data_ptr() + memory.nbytes():
            return False
    return True
