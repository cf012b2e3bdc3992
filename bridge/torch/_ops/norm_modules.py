"""The normalisations as modules, with the constructors of `torch.nn`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.checks import checked_call
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.norms import layer_norm, rms_norm


def _check_last(module: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise ValueError(
            f"{module}: normalized_shape is {list(shape)}, expected the size of the last dimension"
        )


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` over the last dimension, by `rms_norm`; its state dict is the same.

    Args:
      normalized_shape: d, the size of the last dimension, or a tuple of it.
      eps: a positive number. None is, as in torch, the machine epsilon of the dtype of computation:
        float64's for float64, else float32's.
      elementwise_affine: if true, the module has a weight.
      device, dtype: the weight's device and dtype.

    Raises:
      ValueError: normalized_shape has more than one dimension.

    Example:
      >>> RMSNorm(8)(torch.randn(2, 8)).shape
      torch.Size([2, 8])
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        _check_last("RMSNorm", self.normalized_shape)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Returns y, or (y, x + residual)."""
        _check_size("RMSNorm", x, self.normalized_shape)
        return _rms_norm(x, self.weight, residual, self.eps)


def _rms_norm(x: Tensor, weight: Tensor | None, residual: Tensor | None, eps: float | None) -> Any:
    """Computes `rms_norm`, with torch's eps for None.

    A function, so that torch.fx records a call of it and does not read properties of x.
    """
    if is_overridden(given := (x, weight, residual)):
        return hand_over(given)
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    return rms_norm(x, weight, residual, eps=eps)


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last dimension, by `layer_norm`; its state dict is the same.

    Args:
      normalized_shape: d, the size of the last dimension, or a tuple of it.
      eps: a positive number.
      elementwise_affine: if true, the module has a weight.
      bias: if true, a module with a weight also has a bias.
      device, dtype: the device and dtype of both.

    Raises:
      ValueError: normalized_shape has more than one dimension.

    Example:
      >>> LayerNorm(8)(torch.randn(2, 8)).shape
      torch.Size([2, 8])
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        _check_last("LayerNorm", self.normalized_shape)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Returns y, or (y, x + residual)."""
        _check_size("LayerNorm", x, self.normalized_shape)
        return layer_norm(x, self.weight, self.bias, residual, eps=self.eps)


def _check_size(module: str, x: Any, shape: tuple[int, ...]) -> None:
    if checked_call(module, x=x) and tuple(x.shape[-1:]) != tuple(shape):
        raise ValueError(
            f"{module}: x has shape {list(x.shape)}, expected {shape[0]} in the last dimension"
        )
