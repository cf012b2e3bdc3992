"""Calls of every op in torch. The reference is the same call on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bridge.torch as bt

DEVICE = "cuda"
DTYPES = (torch.float32, torch.bfloat16)
SEED = 2**41 + 17


@dataclass(frozen=True)
class Call:
    """A function of tensors, all of which are differentiated; the first has the result's shape.

    Attributes:
      shapes: the shapes of the operands.
      on: returns the function for a device, with its other tensors there.
    """

    shapes: tuple[tuple[int, ...], ...]
    on: Callable[[Any], Callable[..., Tensor]]

    def draw(self, rng: np.random.Generator, dtype: torch.dtype) -> list[Tensor]:
        """Returns a cotangent of the result, then the operands, on the CPU."""
        shapes = (self.shapes[0], *self.shapes)
        return [torch.from_numpy(rng.standard_normal(shape) * 2).to(dtype) for shape in shapes]

    def expected(self, drawn: list[Tensor]) -> tuple[Tensor, ...]:
        return everything(self.on("cpu"), *placed(drawn, "cpu"))


def placed(drawn: list[Tensor], device: Any) -> list[Tensor]:
    """Returns the cotangent, and the operands with requires_grad, in their own memory."""
    cotangent, *operands = [t.to(device, copy=True) for t in drawn]
    return [cotangent, *[operand.requires_grad_() for operand in operands]]


def everything(
    function: Callable[..., Tensor], cotangent: Tensor, *operands: Tensor
) -> tuple[Tensor, ...]:
    """Returns the result and the gradients of the operands."""
    result = function(*operands)
    return (result.detach(), *torch.autograd.grad(result, operands, cotangent))


def agree(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    """Compares tensors bit for bit."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.detach().cpu(), other.detach())


def masked(device: Any) -> Callable[..., Tensor]:
    hidden = torch.from_numpy(np.random.default_rng(3).random((40, 88)) < 0.3)
    hidden[3] = True
    mask = hidden.to(device)
    return lambda x: bt.scaled_masked_softmax(x, mask, 0.7)


# Enough rows for sums over several blocks, which need a workspace.
MATRIX, ROW = (2, 700, 72), (72,)
SCORES = (2, 3, 40, 88)

CALLS = {
    "bias_gelu": Call((MATRIX, ROW), lambda _: bt.bias_gelu),
    "bias_gelu erf": Call(
        (MATRIX, ROW), lambda _: lambda x, b: bt.bias_gelu(x, b, approximate="none")
    ),
    "softmax": Call((SCORES,), lambda _: lambda x: bt.scaled_softmax(x, 0.7)),
    "softmax of long rows": Call(((3, 20_000),), lambda _: lambda x: bt.scaled_softmax(x, 0.7)),
    "masked softmax": Call((SCORES,), masked),
    "causal softmax": Call((SCORES,), lambda _: lambda x: bt.scaled_causal_softmax(x, 0.7)),
    "bias_dropout_add": Call(
        (MATRIX, ROW, MATRIX),
        lambda _: lambda x, b, r: bt.bias_dropout_add(x, b, r, p=0.3, seed=SEED, offset=5),
    ),
}
