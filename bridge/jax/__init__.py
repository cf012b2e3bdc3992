"""The ops for JAX."""

from bridge.jax._bias_gelu import bias_gelu

__all__ = ["bias_gelu"]
