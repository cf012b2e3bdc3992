"""The ops for JAX."""

from bridge.jax._ffi import check_ffi_api, register_handlers

check_ffi_api()
register_handlers()

from bridge.jax._bias_gelu import bias_gelu  # noqa: E402

__all__ = ["bias_gelu"]
