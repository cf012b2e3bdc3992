"""`megatron/core/fusions/fused_layer_norm.py` of Megatron-LM."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.norms_over_dimensions import layer_norm_over, sizes_of
from bridge.torch._drop_ins.sizes import check_sizes
from bridge.torch._ops.viewless import make_viewless_tensor


class FusedLayerNorm(torch.nn.Module):
    """Layer norm over the last dimension, built from Megatron-LM's config.

    Args:
      config: an object with these attributes of a TransformerConfig:
        `layernorm_zero_centered_gamma`: the weight is a difference from 1, and starts at 0;
        `normalization`: must be `"LayerNorm"`;
        `sequence_parallel`: becomes an attribute of both parameters;
        `persist_layer_norm`: becomes an attribute of the module.
      hidden_size: d, the size of the last dimension, or the sizes of several.
      eps: a positive number.
      persist_layer_norm, zero_centered_gamma, normalization: not used, as in the original.

    Raises:
      AssertionError: config.normalization is another one, as in the original.
    """

    def __init__(
        self,
        config: Any,
        hidden_size: Any,
        eps: float = 1e-5,
        persist_layer_norm: bool = True,
        zero_centered_gamma: bool = False,
        normalization: str = "LayerNorm",
    ) -> None:
        super().__init__()
        if config.normalization != "LayerNorm":
            raise AssertionError(
                f"FusedLayerNorm: config.normalization is {config.normalization!r}, expected "
                "'LayerNorm'"
            )
        self.config = config
        self.zero_centered_gamma = config.layernorm_zero_centered_gamma
        check_sizes(self, hidden_size=(sizes := sizes_of(hidden_size)))
        self.hidden_size = torch.Size(sizes)
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(self.hidden_size))
        self.bias = torch.nn.Parameter(torch.empty(self.hidden_size))
        self.reset_parameters()
        self.persist_layer_norm = config.persist_layer_norm
        self.sequence_parallel = config.sequence_parallel
        for parameter in (self.weight, self.bias):
            parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def reset_parameters(self) -> None:
        """Sets the weight to 1, or to 0 if it is a difference from 1, and the bias to 0."""
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)
        torch.nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the shape and dtype of input; it is not a view."""
        weight = self.weight + 1 if self.zero_centered_gamma else self.weight
        y = layer_norm_over(self.hidden_size, input, weight, self.bias, self.eps).to(input.dtype)
        if len(self.hidden_size) == 1:
            return y
        return make_viewless_tensor(y, input.requires_grad, keep_graph=True)
