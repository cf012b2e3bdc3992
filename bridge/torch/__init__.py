"""The ops for PyTorch."""

from bridge.torch import _dispatcher_rules  # noqa: F401  (registers derivatives and vmap)
from bridge.torch._bias_gelu import bias_gelu, bias_gelu_
from bridge.torch._module import BiasGELU
from bridge.torch._viewless import make_viewless_tensor

__all__ = ["BiasGELU", "bias_gelu", "bias_gelu_", "make_viewless_tensor"]
