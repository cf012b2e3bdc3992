"""The ops for PyTorch."""

from bridge.torch import _dispatcher_rules  # noqa: F401  (registers derivatives and vmap)
from bridge.torch._bias_dropout_add import bias_dropout_add
from bridge.torch._bias_gelu import bias_gelu, bias_gelu_
from bridge.torch._module import BiasDropoutAdd, BiasGELU
from bridge.torch._softmax import (
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)
from bridge.torch._viewless import make_viewless_tensor

__all__ = [
    "BiasDropoutAdd",
    "BiasGELU",
    "bias_dropout_add",
    "bias_gelu",
    "bias_gelu_",
    "make_viewless_tensor",
    "scaled_causal_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
    "scaled_softmax_backward",
]
