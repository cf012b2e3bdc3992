"""The fused ops with operands of any shapes that broadcast, as the originals of the drop-ins."""

from __future__ import annotations

import torch
from torch import Tensor

from bridge.torch._bias_dropout_add import bias_dropout_add
from bridge.torch._bias_gelu import bias_gelu, bias_gelu_times
from bridge.torch._check import check_tensors
from bridge.torch._kernels import is_known, same_shape
from bridge.torch._overrides import hand_over, is_overridden


def fused_pair(function: str, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns an equal pair that the fused ops take: a bias `[d]`, or the sum and no bias.

    Only a bias that varies along other dimensions than the last (or that was expanded along them)
    is added apart, and its sum with x rounded to their dtype, as in the originals; autograd sums
    its gradient where it broadcast.
    """
    if bias is None:
        return x, None
    if not isinstance(x, Tensor) or not isinstance(bias, Tensor):
        check_tensors(function, x=x, bias=bias)  # raises
    if (
        1 <= bias.ndim <= x.ndim
        and is_known(bias.numel() == bias.shape[-1])
        and is_known(bias.shape[-1] == x.shape[-1])
    ):
        return x, bias if bias.ndim == 1 else bias.reshape(-1)
    check_tensors(function, x=x, bias=bias)
    return x + bias, None


def broadcast_bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """tanh-GELU of x + bias, whatever shapes broadcast."""
    if type(x) is not Tensor and is_overridden((x, bias)):
        return hand_over((x, bias))
    return bias_gelu(*fused_pair("bias_gelu", x, bias), approximate="tanh")


def broadcast_bias_gelu_back(g: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """g·gelu′(x + bias), of the shape that all three broadcast to."""
    if type(x) is not Tensor and is_overridden((g, x, bias)):
        return hand_over((g, x, bias))
    x, bias = fused_pair("bias_gelu_back", x, bias)
    if not same_shape(g, x):
        if bias is not None:  # may have to grow along the last dimension too
            x, bias = x + bias, None
        x, g = torch.broadcast_tensors(x, g)
    return bias_gelu_times(g, x, bias, approximate="tanh")


def broadcast_bias_dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, *, p: float, training: bool
) -> Tensor:
    """residual + dropout(x + bias), whatever shapes broadcast, from the device's generator.

    As in the originals x is drawn from before it is repeated over a larger residual.
    """
    if type(x) is not Tensor and is_overridden((x, bias, residual)):
        return hand_over((x, bias, residual))
    x, bias = fused_pair("bias_dropout_add", x, bias)
    if residual is None:
        if bias is not None and bias.dtype != x.dtype:
            x = x.to(torch.result_type(x, bias))  # bias_dropout_add would keep that of x
    elif isinstance(residual, Tensor) and not same_shape(residual, x):
        check_tensors("bias_dropout_add", x=x, residual=residual)
        if torch.broadcast_shapes(residual.shape, x.shape) != x.shape:
            dropped = bias_dropout_add(x, bias, p=p, training=training)
            return (residual + dropped).to(residual.dtype)
        residual = residual.expand(x.shape)
    return bias_dropout_add(x, bias, residual, p=p, training=training)
