"""`linear` as a module."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import torch
from torch import Tensor

from bridge.torch._ops.products import linear


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` with the bits of `linear`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.Linear`.

    Args:
      in_features: the size of the input's last dimension.
      out_features: the size of the result's last dimension.
      bias: if true, the module has a bias.
      device, dtype: of the parameters.

    Attributes:
      weight: parameter `[out_features, in_features]`.
      bias: parameter `[out_features]`, or None.

    Raises:
      TypeError, ValueError: a call with a tensor that `linear` does not take.

    Example:
      >>> layer = Linear(3, 2)
      >>> layer(torch.randn(4, 3)).shape
      torch.Size([4, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
