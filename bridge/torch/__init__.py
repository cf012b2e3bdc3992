"""The ops for PyTorch."""

from bridge.torch import _dispatcher_rules  # noqa: F401  (registers)
from bridge.torch._bias_gelu import bias_gelu

__all__ = ["bias_gelu"]
