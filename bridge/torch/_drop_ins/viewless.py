"""The drop-in for Megatron-LM's MakeViewlessTensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.viewless import check_tensor, detached, with_graph


class MakeViewlessTensor(Function, metaclass=DropIn):
    """`MakeViewlessTensor.apply(inp, requires_grad)`: inp without its base, differentiable.

    The identity, to any order and in both modes, for any tensor, view or not. As in the original,
    the result requires a gradient iff inp does and gradients are recorded, whatever
    `requires_grad` says. `make_viewless_tensor(inp, requires_grad, keep_graph=True)` is the same
    for a view.
    """

    @staticmethod
    def apply(inp: Tensor, requires_grad: bool) -> Tensor:  # type: ignore[override]
        """Returns a tensor with inp's memory whose `_base` is None."""
        check_tensor("MakeViewlessTensor", inp=inp)
        return with_graph(inp)

    @staticmethod
    def forward(ctx: Any, inp: Tensor, requires_grad: bool) -> Tensor:
        return detached(inp)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output, None
