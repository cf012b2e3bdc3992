"""The ops for PyTorch."""

from bridge.torch._bias_gelu import bias_gelu

__all__ = ["bias_gelu"]
