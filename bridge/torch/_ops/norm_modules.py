"""The normalisations as modules, with the constructors of `torch.nn` and fla."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import checks
from bridge.catalogue.gates import ACTIVATIONS
from bridge.ops.scalars import whole_number
from bridge.torch._adapter.checks import check_flags, checked_call
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.gated_norms import gated_rms_norm
from bridge.torch._ops.group_norm import group_norm
from bridge.torch._ops.norms import layer_norm, rms_norm

_activation = checks.word(ACTIVATIONS)


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
        check_size("RMSNorm", x, self.normalized_shape)
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
        check_size("LayerNorm", x, self.normalized_shape)
        return layer_norm(x, self.weight, self.bias, residual, eps=self.eps)


def check_size(module: str, x: Any, shape: tuple[int, ...]) -> None:
    if checked_call(module, x=x) and tuple(x.shape[-1:]) != tuple(shape):
        raise ValueError(
            f"{module}: x has shape {list(x.shape)}, expected {shape[0]} in the last dimension"
        )


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` by `group_norm`, with an activation; its state dict is the same.

    Args:
      num_groups: the number of groups, a divisor of num_channels.
      num_channels: c, the number of channels.
      eps: a positive number.
      affine: if true, the module has a weight.
      device, dtype: the device and dtype of weight and bias.
      bias: if true, a module with a weight also has a bias.
      activation: None, or the name of a function of the result, as for `group_norm`.
      channels_last: if true, x is `[n, ..., c]`, otherwise `[n, c, ...]`.

    Raises:
      TypeError: channels_last is neither True nor False.
      ValueError: num_channels is no multiple of num_groups; an unknown activation.

    Example:
      >>> GroupNorm(2, 6, activation="silu")(torch.randn(3, 6, 4, 4)).shape
      torch.Size([3, 6, 4, 4])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: str | None = None,
        channels_last: bool = False,
    ) -> None:
        whole_number("GroupNorm", "num_groups", num_groups, 1)
        whole_number("GroupNorm", "num_channels", num_channels)
        checks.optional(_activation)("GroupNorm", "activation", activation)
        check_flags("GroupNorm", channels_last=channels_last)
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:  # older versions of torch have no such argument
            self.register_parameter("bias", None)
        self.activation, self.channels_last = activation, channels_last

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised x, of its shape."""
        dim = -1 if self.channels_last else 1
        if checked_call("GroupNorm", x=x) and x.dim() > 1 and x.shape[dim] != self.num_channels:
            raise ValueError(
                f"GroupNorm: x has shape {list(x.shape)}, expected {self.num_channels} in "
                f"dimension {dim}"
            )
        return group_norm(
            x,
            self.num_groups,
            self.weight,
            self.bias,
            eps=self.eps,
            activation=self.activation,
            channels_last=self.channels_last,
        )

    def extra_repr(self) -> str:
        options = "" if self.activation is None else f", activation={self.activation!r}"
        return super().extra_repr() + options + ", channels_last=True" * self.channels_last


class GatedRMSNorm(torch.nn.Module):
    """`gated_rms_norm` with a weight; constructor and state dict of fla's `FusedRMSNormGated`.

    Args:
      hidden_size: d, the size of the last dimension.
      elementwise_affine: if true, the module has a weight.
      eps: a positive finite number.
      activation: the function of the gate, as for `gated_rms_norm`; "swish" is "silu".
      device, dtype: the weight's device and dtype.
      norm_first, groups: as for `gated_rms_norm`.

    Raises:
      TypeError, ValueError: as for `gated_rms_norm`.

    Example:
      >>> GatedRMSNorm(8)(torch.randn(2, 8), torch.randn(2, 8)).shape
      torch.Size([2, 8])
    """

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        activation: str = "swish",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        norm_first: bool = True,
        groups: int = 1,
    ) -> None:
        super().__init__()
        name = "GatedRMSNorm"
        self.hidden_size = whole_number(name, "hidden_size", hidden_size)
        self.elementwise_affine, self.eps = elementwise_affine, checks.eps(name, "eps", eps)
        self.activation = "silu" if activation == "swish" else activation
        _activation(name, "activation", self.activation)
        check_flags(name, norm_first=norm_first)
        self.norm_first, self.groups = norm_first, whole_number(name, "groups", groups, 1)
        self.weight: torch.nn.Parameter | None
        self.register_parameter("weight", None)
        if elementwise_affine:
            weight = torch.empty(hidden_size, device=device, dtype=dtype)
            self.weight = torch.nn.Parameter(weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Returns rms_norm(x)·act(gate), or rms_norm(x·act(gate)); gate has x's shape."""
        check_size("GatedRMSNorm", x, (self.hidden_size,))
        return gated_rms_norm(
            x,
            gate,
            self.weight,
            eps=self.eps,
            activation=self.activation,
            norm_first=self.norm_first,
            groups=self.groups,
        )

    def extra_repr(self) -> str:
        options = ("elementwise_affine", "eps", "activation", "norm_first", "groups")
        return f"{self.hidden_size}, " + ", ".join(f"{n}={getattr(self, n)!r}" for n in options)
