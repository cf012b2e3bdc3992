"""bias-GELU as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.torch._bias_gelu import bias_gelu


class BiasGELU(torch.nn.Module):
    """`bias_gelu` with a bias of its own: what follows a `torch.nn.Linear(..., bias=False)`.

    Args:
      features: d, the size of the last dimension of the input.
      approximate: `"tanh"`, `"none"` or `"sigmoid"`.
      bias: whether to have one.
      device, dtype: of the bias.

    Attributes:
      bias: parameter `[features]`, zeros at first, or None.

    Example:
      >>> layer = torch.nn.Sequential(torch.nn.Linear(8, 32, bias=False), BiasGELU(32))
      >>> layer(torch.randn(2, 8)).shape
      torch.Size([2, 32])
    """

    def __init__(
        self,
        features: int,
        approximate: str = "tanh",
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.approximate = approximate
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(features, device=device, dtype=dtype))
            self.reset_parameters()
        else:
            self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        """Sets the bias to zeros."""
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return bias_gelu(x, self.bias, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"{self.features}, approximate={self.approximate!r}, bias={self.bias is not None}"
