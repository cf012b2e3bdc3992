"""Softmax and its logarithm as modules, with the constructors of `torch.nn`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.checks import checked_call
from bridge.torch._ops.log_probs import log_softmax
from bridge.torch._ops.softmax import scaled_softmax


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax` by `scaled_softmax`. A row of −∞ gives zeros; torch gives NaN.

    Args:
      dim: the dimension along which the softmax is taken. If it is not the last one, it is moved to
        the end and back.

    Raises:
      TypeError: dim is not an integer. None, for which torch guesses a dimension, is an error too.
      ValueError: in a call, x has no such dimension.

    Example:
      >>> Softmax(-1)(torch.zeros(1, 2))
      tensor([[0.5000, 0.5000]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__(_dimension("Softmax", dim))

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the shape and dtype of input `[..., d, ...]`, d in dimension dim."""
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
        """Returns a tensor of the shape and dtype of input `[..., d, ...]`, d in dimension dim."""
        return _along("LogSoftmax", self.dim, log_softmax, input)


def _dimension(module: str, dim: Any) -> int:
    try:
        return operator.index(dim)
    except TypeError:
        raise TypeError(
            f"{module}: dim has type {type(dim).__name__}, expected an integer"
        ) from None


def _along(module: str, dim: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies the function of rows along a dimension of x."""
    if dim == -1:
        return function(x)
    if checked_call(module, input=x) and not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{module}: input has shape {list(x.shape)}, and no dimension {dim}")
    return function(x.movedim(dim, -1)).movedim(-1, dim)
