"""The ops for JAX."""

from typing import TYPE_CHECKING, Any

from bridge._installed import need as _need

_need("bridge.jax", "jax")  # before the first import of it from inside

# ruff: noqa: E402
from bridge.jax._adapter.ffi import check_ffi_api, register_handlers

check_ffi_api()
register_handlers()

from bridge.jax._collectives.all_gather import all_gather
from bridge.jax._invariant.context import invariant
from bridge.jax._ops.attention import attention
from bridge.jax._ops.bias_dropout_add import bias_dropout_add
from bridge.jax._ops.bias_gelu import bias_gelu
from bridge.jax._ops.choices.experts import moe_combine, moe_permute, moe_router
from bridge.jax._ops.choices.sampling import seeded_sample
from bridge.jax._ops.choices.top_k import top_k
from bridge.jax._ops.convolutions import conv_general_dilated, conv_transpose
from bridge.jax._ops.cross_entropy import cross_entropy
from bridge.jax._ops.dot_general import dot_general
from bridge.jax._ops.dyt import dyt, poly_norm
from bridge.jax._ops.embedding import embedding
from bridge.jax._ops.gated_norms import gated_rms_norm
from bridge.jax._ops.gates import geglu, glu, reglu, squared_relu, swiglu
from bridge.jax._ops.group_norm import group_norm
from bridge.jax._ops.linear_cross_entropy import linear_cross_entropy
from bridge.jax._ops.log_probs import log_softmax, logsumexp, token_log_probs
from bridge.jax._ops.norms import layer_norm, rms_norm
from bridge.jax._ops.post_training.divergences import entropy, js_div, kl_div, tv_distance
from bridge.jax._ops.post_training.linear_numbers import (
    linear_divergence,
    linear_token_log_probs,
)
from bridge.jax._ops.post_training.policy_loss import policy_loss
from bridge.jax._ops.post_training.preference_loss import preference_loss
from bridge.jax._ops.products import linear, matmul
from bridge.jax._ops.quantization import dequantize, fake_quantize, quantize
from bridge.jax._ops.rotary import rms_norm_rotary, rotary
from bridge.jax._ops.softmax import (
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
)
from bridge.jax._ops.viewless import make_viewless
from bridge.jax._ops.vision.batch_norm import batch_norm
from bridge.jax._ops.vision.interpolation import interpolate
from bridge.jax._ops.vision.pooling import adaptive_avg_pool, avg_pool, max_pool
from bridge.jax.recording import record

if TYPE_CHECKING:
    from bridge.jax._from_torch.errors import torch_errors as torch_errors
    from bridge.jax._from_torch.functions import from_torch as from_torch

# These public names need torch, so they are imported at first use.
_OF_TORCH = {"from_torch": "_from_torch.functions", "torch_errors": "_from_torch.errors"}

__all__ = [
    "adaptive_avg_pool",
    "all_gather",
    "attention",
    "avg_pool",
    "batch_norm",
    "bias_dropout_add",
    "bias_gelu",
    "conv_general_dilated",
    "conv_transpose",
    "cross_entropy",
    "dequantize",
    "dot_general",
    "dyt",
    "embedding",
    "entropy",
    "fake_quantize",
    "gated_rms_norm",
    "geglu",
    "glu",
    "group_norm",
    "interpolate",
    "invariant",
    "js_div",
    "kl_div",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "linear_divergence",
    "linear_token_log_probs",
    "log_softmax",
    "logsumexp",
    "make_viewless",
    "matmul",
    "max_pool",
    "moe_combine",
    "moe_permute",
    "moe_router",
    "policy_loss",
    "poly_norm",
    "preference_loss",
    "quantize",
    "record",
    "reglu",
    "rms_norm",
    "rms_norm_rotary",
    "rotary",
    "scaled_causal_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
    "seeded_sample",
    "squared_relu",
    "swiglu",
    "token_log_probs",
    "top_k",
    "tv_distance",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    _need(f"bridge.jax.{name}", "torch")
    module = importlib.import_module(f"{__name__}.{_OF_TORCH[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TORCH})
