"""Liger-Kernel's DyT, PolyNorm and group norm."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.dyt import dyt, poly_norm
from bridge.torch._ops.dyt_modules import DyT, PolyNorm
from bridge.torch._ops.group_norm import group_norm


class LigerDyTFunction(Function, metaclass=DropIn):
    """`LigerDyTFunction.apply(x, alpha, gamma, beta)`."""

    @staticmethod
    def apply(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:  # type: ignore[override]
        """Returns tanh(alpha·x)·gamma + beta, by `bridge.torch.dyt`."""
        return dyt(x, alpha, gamma, beta)


def liger_dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:
    """Returns `bridge.torch.dyt(x, alpha, gamma, beta)`.

    Args:
      x: `[..., d]`; alpha: one number; gamma, beta: `[d]`, all of floating-point dtypes.
    """
    return LigerDyTFunction.apply(x, alpha, gamma, beta)


class LigerDyT(DyT):
    """`bridge.torch.DyT`.

    Args:
      hidden_size, beta, init_alpha: as for `DyT`.
    """

    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5) -> None:
        super().__init__(hidden_size, beta, init_alpha)


class LigerPolyNormFunction(Function, metaclass=DropIn):
    """`LigerPolyNormFunction.apply(X, W, B, eps, in_place)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6, in_place: bool = True
    ) -> Tensor:
        """Returns `bridge.torch.poly_norm(X, W, B, eps=eps)`; in_place changes nothing."""
        return poly_norm(X, W, B, eps=eps)


def liger_poly_norm(
    X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6, in_place: bool = True
) -> Tensor:
    """Returns `bridge.torch.poly_norm(X, W, B, eps=eps)`.

    Args:
      X: `[..., d]`; W: `[3]`; B: one number, all of floating-point dtypes.
      eps: a positive number.
      in_place: of no effect on the result.
    """
    return LigerPolyNormFunction.apply(X, W, B, eps, in_place)


class LigerPolyNorm(PolyNorm):
    """`bridge.torch.PolyNorm` with Liger-Kernel's constructor.

    Args:
      eps: a positive number.
      in_place: of no effect on the result.
    """

    def __init__(self, eps: float = 1e-6, in_place: bool = True) -> None:
        super().__init__(eps)
        self.variance_epsilon, self.in_place = eps, in_place

    def extra_repr(self) -> str:
        return f"eps={self.variance_epsilon}, in_place={self.in_place}"


class LigerGroupNormFunction(Function, metaclass=DropIn):
    """`LigerGroupNormFunction.apply(X, W, B, num_channels, num_groups, eps)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        X: Tensor,
        affine_scaling_weight: Tensor,
        affine_shifting_bias: Tensor,
        num_channels: int,
        num_groups: int,
        eps: float,
    ) -> Tensor:
        """Returns `bridge.torch.group_norm` of X `[n, num_channels, ...]`."""
        return group_norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps=eps)


def liger_group_norm(
    X: Tensor,
    affine_scaling_weight: Tensor,
    affine_shifting_bias: Tensor,
    num_channels: int,
    num_groups: int,
    eps: float,
) -> Tensor:
    """Returns `bridge.torch.group_norm` of X.

    Args:
      X: `[n, num_channels, ...]`, of a floating-point dtype.
      num_channels: the number of channels.
      affine_scaling_weight, affine_shifting_bias: `[num_channels]`.
      num_groups: a divisor of num_channels.
      eps: a positive number.
    """
    return LigerGroupNormFunction.apply(
        X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps
    )


class LigerGroupNorm(torch.nn.Module):
    """`liger_group_norm` with weight and bias, with Liger-Kernel's constructor.

    Args:
      num_channels, num_groups: the second divides the first.
      eps: a positive number.
      bias: if true, the first bias is random as in the original, else zeros. There is always one.
      init_fn: "ones" or "zeros", the first weight.

    Raises:
      AssertionError: an unknown init_fn; num_groups does not divide num_channels.
    """

    def __init__(
        self,
        num_channels: int,
        num_groups: int,
        eps: float = 1e-6,
        bias: bool = False,
        init_fn: str = "ones",
    ) -> None:
        super().__init__()
        if init_fn not in ("ones", "zeros"):
            raise AssertionError(f"init_fn is {init_fn!r}, expected 'ones' or 'zeros'")
        if num_channels % num_groups:
            raise AssertionError(
                f"num_channels is {num_channels}, expected a multiple of num_groups, {num_groups}"
            )
        self.num_channels, self.num_groups = num_channels, num_groups
        self.eps = self.variance_epsilon = eps
        self.weight = torch.nn.Parameter(getattr(torch, init_fn)(num_channels))
        self.bias = torch.nn.Parameter((torch.randn if bias else torch.zeros)(num_channels))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Returns the normalised hidden_states `[n, num_channels, ...]`."""
        return LigerGroupNormFunction.apply(
            hidden_states,
            self.weight,
            self.bias,
            self.num_channels,
            self.num_groups,
            self.variance_epsilon,
        )

    def extra_repr(self) -> str:
        return f"num_channels={self.num_channels}, num_groups={self.num_groups}, eps={self.eps}"
