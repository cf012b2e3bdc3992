"""Values and derivatives in float64, of torch tensors on the CPU, for operations without them.

Each is differentiable to any order, in reverse and forward mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from bridge.lang import philox
from bridge.lang.gelu_reference import gelu_derivative


def gelu(h: Tensor, kind: str) -> Tensor:
    """Returns gelu(h), whose tails and their derivatives have correct digits."""
    return _Gelu.apply(h, kind, 0)  # type: ignore[no-any-return]


class _Gelu(Function):
    @staticmethod
    def forward(h: Tensor, kind: str, order: int) -> Tensor:
        return torch.from_numpy(np.asarray(gelu_derivative(h.numpy(), kind, order)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, ctx.kind, ctx.order = inputs
        ctx.save_for_backward(h)
        ctx.save_for_forward(h)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Gelu.jvp(ctx, g), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Tensor:
        (h,) = ctx.saved_tensors
        return t * _Gelu.apply(h, ctx.kind, ctx.order + 1)


def softmax(z: Tensor, hidden: Tensor | None, y: Tensor | None) -> Tensor:
    """Returns the softmax of the elements that are not hidden, 0 for hidden elements.

    A row without elements above -infinity is all zeros. If y is given, it is the value, and the
    derivatives are taken at it.
    """
    if hidden is not None:
        z = z.masked_fill(hidden, -torch.inf)
    if y is None:
        is_zero = (z == -torch.inf).all(-1, keepdim=True)
        is_zero = is_zero if hidden is None else is_zero | hidden
        y = z.detach().softmax(-1)
        y = (y / y.sum(-1, keepdim=True)).masked_fill(is_zero, 0.0)  # `sum` has smaller errors
    return _Softmax.apply(z, y)  # type: ignore[no-any-return]


class _Softmax(Function):
    @staticmethod
    def forward(z: Tensor, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Softmax.jvp(ctx, g), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Tensor:
        (y,) = ctx.saved_tensors
        moved = y * t.masked_fill(y == 0, 0.0)  # 0 times infinity is 0 here
        return (moved - y * moved.sum(-1, keepdim=True)).masked_fill(y == 0, 0.0)


def dropout(h: Tensor, p: float, seed: int, offset: int) -> Tensor:
    """Returns h/(1 − p) for the elements that are kept, 0 for the others."""
    drawn = philox.words(seed, offset, np.arange(h.numel())).reshape(h.shape)
    keep = torch.from_numpy(np.asarray(drawn >= philox.threshold_of(p)))
    return torch.where(keep, h * (1.0 / (1.0 - p) if p < 1.0 else 0.0), 0.0)
