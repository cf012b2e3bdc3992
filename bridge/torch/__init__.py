"""The ops for PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge._installed import need as _need

_need("bridge.torch", "torch")  # before any module here imports torch

# ruff: noqa: E402
from bridge.torch._adapter import (
    dispatcher_rules as _dispatcher_rules,  # noqa: F401  (registers derivatives and vmap)
)
from bridge.torch._adapter import threads as _threads
from bridge.torch._adapter.dispatcher import at_first_dtensor as _at_first_dtensor
from bridge.torch._adapter.kernels import keep_memory as _keep_memory
from bridge.torch._adapter.kernels import load_kernels as _load_kernels
from bridge.torch._collectives.all_gather import all_gather
from bridge.torch._drop_ins.replacement import replace
from bridge.torch._invariant.mode import invariant
from bridge.torch._ops.attention import attention
from bridge.torch._ops.bias_dropout_add import bias_dropout_add
from bridge.torch._ops.bias_gelu import bias_gelu, bias_gelu_
from bridge.torch._ops.choices.experts import moe_combine, moe_permute, moe_router
from bridge.torch._ops.choices.sampling import seeded_sample
from bridge.torch._ops.choices.top_k import top_k
from bridge.torch._ops.convolution_modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from bridge.torch._ops.convolutions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from bridge.torch._ops.cross_entropy import cross_entropy
from bridge.torch._ops.dyt import dyt, poly_norm
from bridge.torch._ops.dyt_modules import DyT, PolyNorm
from bridge.torch._ops.embedding import embedding
from bridge.torch._ops.gate_modules import GEGLU, GLU, ReGLU, SquaredReLU, SwiGLU
from bridge.torch._ops.gated_norms import gated_rms_norm
from bridge.torch._ops.gates import geglu, glu, reglu, squared_relu, swiglu
from bridge.torch._ops.group_norm import group_norm
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropy
from bridge.torch._ops.log_probs import log_softmax, logsumexp, token_log_probs
from bridge.torch._ops.loss_modules import CrossEntropyLoss, LinearCrossEntropyLoss
from bridge.torch._ops.modules import BiasDropoutAdd, BiasGELU
from bridge.torch._ops.norm_modules import GatedRMSNorm, GroupNorm, LayerNorm, RMSNorm
from bridge.torch._ops.norms import layer_norm, rms_norm
from bridge.torch._ops.post_training.divergences import entropy, js_div, kl_div, tv_distance
from bridge.torch._ops.post_training.linear_numbers import (
    linear_divergence,
    linear_token_log_probs,
)
from bridge.torch._ops.post_training.policy_loss import policy_loss
from bridge.torch._ops.post_training.preference_loss import preference_loss
from bridge.torch._ops.product_modules import Linear
from bridge.torch._ops.products import linear, matmul
from bridge.torch._ops.quantization import dequantize, fake_quantize, quantize
from bridge.torch._ops.rotary import rms_norm_rotary, rotary
from bridge.torch._ops.softmax import (
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)
from bridge.torch._ops.softmax_modules import LogSoftmax, Softmax
from bridge.torch._ops.viewless import make_viewless_tensor
from bridge.torch._ops.vision.batch_norm import batch_norm
from bridge.torch._ops.vision.batch_norm_modules import BatchNorm1d, BatchNorm2d, BatchNorm3d
from bridge.torch._ops.vision.interpolation import interpolate
from bridge.torch._ops.vision.pooling import adaptive_avg_pool, avg_pool, max_pool


def _add_dtensor_rules() -> None:
    from bridge.torch._sharded import dtensor  # noqa: F401  (takes a second to import)


_at_first_dtensor(_add_dtensor_rules)
_threads.lend()
_keep_memory()
_load_kernels()

if TYPE_CHECKING:
    from bridge.torch._from_jax.functions import from_jax as from_jax
    from bridge.torch._from_jax.modules import JaxModule as JaxModule

# These names are public as well; they need JAX, which is imported at their first use.
_OF_JAX = {"JaxModule": "_from_jax.modules", "from_jax": "_from_jax.functions"}

__all__ = [
    "GEGLU",
    "GLU",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BiasDropoutAdd",
    "BiasGELU",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "DyT",
    "GatedRMSNorm",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "PolyNorm",
    "RMSNorm",
    "ReGLU",
    "Softmax",
    "SquaredReLU",
    "SwiGLU",
    "adaptive_avg_pool",
    "all_gather",
    "attention",
    "avg_pool",
    "batch_norm",
    "bias_dropout_add",
    "bias_gelu",
    "bias_gelu_",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "dequantize",
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
    "make_viewless_tensor",
    "matmul",
    "max_pool",
    "moe_combine",
    "moe_permute",
    "moe_router",
    "policy_loss",
    "poly_norm",
    "preference_loss",
    "quantize",
    "reglu",
    "replace",
    "rms_norm",
    "rms_norm_rotary",
    "rotary",
    "scaled_causal_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
    "scaled_softmax_backward",
    "seeded_sample",
    "squared_relu",
    "swiglu",
    "token_log_probs",
    "top_k",
    "tv_distance",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_JAX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    _need(f"bridge.torch.{name}", "jax")
    module = importlib.import_module(f"{__name__}.{_OF_JAX[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_JAX})
