"""The gated units and the squared ReLU as modules."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import torch
from torch import Tensor

from bridge.catalogue.checks import check_each
from bridge.catalogue.gates import CHECKS, check_blocks
from bridge.torch._adapter.checks import check_flags
from bridge.torch._ops.gates import glu, squared_relu


class GLU(torch.nn.Module):
    """`glu` of one packed tensor; put it after a `torch.nn.Linear(d, 2 * features)`.

    `torch.nn.GLU` differs: its activation is sigmoid, and its gate is the second half.

    Args:
      activation, limit, linear_offset, interleaved, blocks: as for `glu`.

    Raises:
      TypeError, ValueError: as for `glu`.

    Example:
      >>> layer = torch.nn.Sequential(torch.nn.Linear(8, 32), GLU("gelu_tanh"))
      >>> layer(torch.randn(2, 8)).shape
      torch.Size([2, 16])
    """

    def __init__(
        self,
        activation: str = "silu",
        limit: float | None = None,
        linear_offset: float = 0.0,
        interleaved: bool = False,
        blocks: int = 1,
    ) -> None:
        super().__init__()
        check_flags(type(self).__name__, interleaved=interleaved)
        numbers = {"limit": limit, "linear_offset": linear_offset}
        check_each(CHECKS, type(self).__name__, activation=activation, **numbers)
        self.activation, self.limit = activation, limit
        self.linear_offset, self.interleaved = linear_offset, interleaved
        self.blocks = check_blocks(type(self).__name__, blocks, interleaved)

    def forward(
        self, gate: Tensor, up: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Returns `[..., features]`.

        Args:
          gate, up, weight: as for `glu`; gate is `[..., 2 * features]` without `up`, else
            `[..., features]`.
        """
        return glu(
            gate,
            up,
            activation=self.activation,
            weight=weight,
            limit=self.limit,
            linear_offset=self.linear_offset,
            interleaved=self.interleaved,
            blocks=self.blocks,
        )

    def extra_repr(self) -> str:
        options = ("activation", "limit", "linear_offset", "interleaved", "blocks")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in options)


class _Named(GLU):
    """A `GLU` with a fixed activation."""

    _activation: str

    def __init__(
        self,
        limit: float | None = None,
        linear_offset: float = 0.0,
        interleaved: bool = False,
        blocks: int = 1,
    ) -> None:
        super().__init__(self._activation, limit, linear_offset, interleaved, blocks)


class SwiGLU(_Named):
    """`GLU("silu")`; the other arguments are the same.

    Example:
      >>> torch.nn.Sequential(torch.nn.Linear(8, 32), SwiGLU())(torch.randn(2, 8)).shape
      torch.Size([2, 16])
    """

    _activation = "silu"


class GEGLU(_Named):
    """`GLU("gelu")`, with x·Φ(x) as `geglu` has; the other arguments are the same."""

    _activation = "gelu"


class ReGLU(_Named):
    """`GLU("relu")`; the other arguments are the same."""

    _activation = "relu"


class SquaredReLU(torch.nn.Module):
    """`squared_relu` as a module.

    Example:
      >>> SquaredReLU()(torch.tensor([-1.0, 3.0]))
      tensor([0., 9.])
    """

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Returns max(x, 0)²·weight; x and weight as for `squared_relu`."""
        return squared_relu(x, weight)
