"""bias_gelu and bias_dropout_add as modules."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.catalogue.bias_gelu import CHECKS as GELU_CHECKS
from bridge.catalogue.checks import check_each, probability
from bridge.lang.dtypes import FLOATING
from bridge.torch._adapter.checks import check_flags
from bridge.torch._adapter.kernels import NAMES
from bridge.torch._ops.bias_dropout_add import bias_dropout_add
from bridge.torch._ops.bias_gelu import bias_gelu


class BiasGELU(torch.nn.Module):
    """`bias_gelu` with a bias of its own; put it after a `torch.nn.Linear(..., bias=False)`.

    Args:
      features: d, the size of the last dimension of the input.
      approximate: `"tanh"`, `"none"` or `"sigmoid"`.
      bias: if true, the module has a bias.
      device, dtype: the bias's device and dtype.

    Raises:
      TypeError: features is not an integer, or `bias_gelu` does not take the dtype.
      ValueError: features is negative, or approximate unknown.

    Attributes:
      bias: parameter `[features]`, initially zeros, or None.

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
        check_flags("BiasGELU", bias=bias)
        _check_features(features, dtype)
        check_each(GELU_CHECKS, "BiasGELU", approximate=approximate)
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


def _check_features(features: Any, dtype: Any) -> None:
    if isinstance(features, bool) or not isinstance(features, (int, torch.SymInt, np.integer)):
        raise TypeError(
            f"BiasGELU: features has type {type(features).__name__}, expected an integer"
        )
    if features < 0:
        raise ValueError(f"BiasGELU: features is {features}, expected at least 0")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and NAMES.get(dtype) in FLOATING):
        raise TypeError(f"BiasGELU: dtype is {dtype}, expected one of {', '.join(FLOATING)}")


class BiasDropoutAdd(torch.nn.Module):
    """`bias_dropout_add` as a module; it drops elements in training mode only.

    Args:
      p: the probability of dropping an element.

    Example:
      >>> layer = BiasDropoutAdd(0.1).eval()
      >>> layer(torch.ones(2, 8), residual=torch.ones(2, 8))[0, 0]
      tensor(2.)
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = probability("bias_dropout_add", "p", p)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        seed: int | Tensor | torch.Generator | None = None,
        offset: int | Tensor = 0,
    ) -> Tensor:
        """Returns `bias_dropout_add(x, bias, residual, ...)` with these arguments."""
        return bias_dropout_add(
            x, bias, residual, p=self.p, seed=seed, offset=offset, training=self.training
        )

    def extra_repr(self) -> str:
        return f"p={self.p}"
