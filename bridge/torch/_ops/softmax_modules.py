"""Softmax and its logarithm as modules, with the constructors of `torch.nn`."""

# Annotations are evaluated: torch.fx cannot pickle a trace of a module whose forward has strings.

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.checks import checked_call
from bridge.torch._ops.log_probs import log_softmax
from bridge.torch._ops.softmax import scaled_softmax


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax` by `scaled_softmax`. A row of −∞ is zeros, where torch has NaN.

    Args:
      dim: the dimension along which it is taken. Another than the last is moved to the end for it.

    Raises:
      TypeError: dim is no integer; None, for which torch guesses, is none.
      ValueError: in a call, x has no such dimension.

    Example:
      >>> Softmax(-1)(torch.zeros(1, 2))
      tensor([[0.5000, 0.5000]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(_dimension("Softmax", dim))

    def forward(self, input: Tensor) -> Tensor:
        """Of the shape and dtype of input, `[..., d]` or with d in dimension dim."""
        return _along("Softmax", self.dim, scaled_softmax, input)


class LogSoftmax(torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `log_softmax`.

    Args:
      dim: as for `Softmax`.

    Raises:
      TypeError, ValueError: as `Softmax`.

    Example:
      >>> LogSoftmax(-1)(torch.zeros(1, 2))
      tensor([[-0.6931, -0.6931]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(_dimension("LogSoftmax", dim))

    def forward(self, input: Tensor) -> Tensor:
        """Of the shape and dtype of input, `[..., d]` or with d in dimension dim."""
        return _along("LogSoftmax", self.dim, log_softmax, input)


def _dimension(module: str, dim: Any) -> int:
    try:
        return operator.index(dim)
    except TypeError:
        raise TypeError(
            f"{module}: dim has type {type(dim).__name__}, expected an integer"
        ) from None


def _along(module: str, dim: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of x along a dimension."""
    if dim == -1:
        return function(x)
    if checked_call(module, input=x) and not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{module}: input has shape {list(x.shape)}, and no dimension {dim}")
    return function(x.movedim(dim, -1)).movedim(-1, dim)
