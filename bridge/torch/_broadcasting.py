"""bias-GELU with a bias of any shape that broadcasts, as the originals of the drop-ins take it."""

from __future__ import annotations

import torch
from torch import Tensor

from bridge.torch._bias_gelu import bias_gelu, bias_gelu_times
from bridge.torch._check import check_tensors


def fused_pair(x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns an equal pair that bias_gelu takes: a bias `[d]`, or the sum and no bias.

    Only a bias that varies along other dimensions than the last is added apart (and its sum with x
    rounded to their dtype, as in the originals); autograd sums its gradient where it broadcast.
    """
    if bias is None:
        return x, None
    check_tensors("bias_gelu", x=x, bias=bias)
    if x.ndim > 0 and 1 <= bias.ndim <= x.ndim and bias.numel() == bias.shape[-1] == x.shape[-1]:
        return x, bias if bias.ndim == 1 else bias.reshape(-1)
    return x + bias, None


def broadcast_bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """tanh-GELU of x + bias, whatever shapes broadcast."""
    return bias_gelu(*fused_pair(x, bias), approximate="tanh")


def broadcast_bias_gelu_back(g: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """g·gelu′(x + bias), of the shape that all three broadcast to."""
    x, bias = fused_pair(x, bias)
    if g.shape != x.shape:
        if bias is not None:  # may have to grow along the last dimension too
            x, bias = x + bias, None
        x, g = torch.broadcast_tensors(x, g)
    return bias_gelu_times(g, x, bias, approximate="tanh")
