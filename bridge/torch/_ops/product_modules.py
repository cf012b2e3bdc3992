"""`linear` as a module."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import torch
from torch import Tensor

from bridge.catalogue.products import check_word
from bridge.torch._ops.products import linear


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` with the bits of `linear`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.Linear`, but for
    the argument bits.

    Args:
      in_features: the size of the input's last dimension.
      out_features: the size of the result's last dimension.
      bias: if true, the module has a bias.
      device, dtype: of the parameters.
      bits: as for `linear`.

    Attributes:
      weight: parameter `[out_features, in_features]`.
      bias: parameter `[out_features]`, or None.

    Raises:
      TypeError, ValueError: a call with a tensor that `linear` does not take.
      ValueError: another word.

    Example:
      >>> layer = Linear(3, 2)
      >>> layer(torch.randn(4, 3)).shape
      torch.Size([4, 2])
    """

    bits: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bits: str | None = None,
    ) -> None:
        check_word("Linear", bits)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.bits = bits

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, bits=self.bits)
