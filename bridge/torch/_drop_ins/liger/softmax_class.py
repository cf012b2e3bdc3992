"""The softmax of Liger-Kernel."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.softmax import scaled_softmax


class LigerSoftmaxFunction(Function, metaclass=DropIn):
    """`LigerSoftmaxFunction.apply(input_)`."""

    @staticmethod
    def apply(input_: Tensor) -> Tensor:  # type: ignore[override]
        """Returns `bridge.torch.scaled_softmax(input_)`: the softmax over the last dimension."""
        return scaled_softmax(input_)


def liger_softmax(x: Tensor) -> Tensor:
    """Returns `bridge.torch.scaled_softmax(x)`.

    Args:
      x: `[..., d]`, of a floating-point dtype.
    """
    return LigerSoftmaxFunction.apply(x)


class LigerSoftmax(torch.nn.Module):
    """`liger_softmax` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return LigerSoftmaxFunction.apply(x)
