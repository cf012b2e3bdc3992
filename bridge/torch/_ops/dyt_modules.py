"""dyt and poly_norm as modules, with the state dicts of Liger-Kernel."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import checks
from bridge.ops.scalars import whole_number
from bridge.torch._ops.dyt import dyt, poly_norm
from bridge.torch._ops.norm_modules import check_size


class DyT(torch.nn.Module):
    """`dyt` with its parameters; constructor and state dict of Liger-Kernel's `LigerDyT`.

    Args:
      hidden_size: d, the size of the last dimension.
      beta: if true, the module has a bias, called beta.
      init_alpha: the first value of alpha.
      device, dtype: the device and dtype of the parameters.

    Raises:
      TypeError, ValueError: hidden_size is no integer, or negative.

    Example:
      >>> DyT(8)(torch.randn(2, 8)).shape
      torch.Size([2, 8])
    """

    def __init__(
        self,
        hidden_size: int,
        beta: bool = True,
        init_alpha: float = 0.5,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = whole_number(type(self).__name__, "hidden_size", hidden_size)
        self.init_alpha = init_alpha
        where: Any = {"device": device, "dtype": dtype}
        self.alpha = torch.nn.Parameter(torch.full((1,), float(init_alpha), **where))
        self.gamma = torch.nn.Parameter(torch.ones(hidden_size, **where))
        shift = torch.nn.Parameter(torch.zeros(hidden_size, **where)) if beta else None
        self.beta: torch.nn.Parameter | None
        self.register_parameter("beta", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Returns tanh(alpha·x)·gamma + beta."""
        check_size(type(self).__name__, x, (self.hidden_size,))
        return dyt(x, self.alpha, self.gamma, self.beta)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, beta={self.beta is not None}, init_alpha={self.init_alpha}"


class PolyNorm(torch.nn.Module):
    """`poly_norm` with its parameters; the state dict of Liger-Kernel's `LigerPolyNorm`.

    Args:
      eps: a positive finite number.
      device, dtype: the device and dtype of the parameters.

    Raises:
      TypeError, ValueError: eps is no such number.

    Example:
      >>> PolyNorm()(torch.randn(2, 8)).shape
      torch.Size([2, 8])
    """

    def __init__(
        self, eps: float = 1e-6, *, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.eps = checks.eps(type(self).__name__, "eps", eps)
        where: Any = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.full((3,), 1.0 / 3.0, **where))
        self.bias = torch.nn.Parameter(torch.ones((), **where))

    def forward(self, x: Tensor) -> Tensor:
        """Returns weight₀·norm(x³) + weight₁·norm(x²) + weight₂·norm(x) + bias."""
        return poly_norm(x, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"
