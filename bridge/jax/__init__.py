"""The ops for JAX."""

from bridge.jax._ffi import check_ffi_api, register_handlers

check_ffi_api()
register_handlers()

from bridge.jax._all_gather import all_gather  # noqa: E402
from bridge.jax._bias_dropout_add import bias_dropout_add  # noqa: E402
from bridge.jax._bias_gelu import bias_gelu  # noqa: E402
from bridge.jax._softmax import (  # noqa: E402
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
)
from bridge.jax._viewless import make_viewless  # noqa: E402

__all__ = [
    "all_gather",
    "bias_dropout_add",
    "bias_gelu",
    "make_viewless",
    "scaled_causal_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
]
