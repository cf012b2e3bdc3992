"""The ops for JAX."""

from typing import TYPE_CHECKING, Any

from bridge.jax._adapter.ffi import check_ffi_api, register_handlers

check_ffi_api()
register_handlers()

from bridge.jax._collectives.all_gather import all_gather  # noqa: E402
from bridge.jax._ops.bias_dropout_add import bias_dropout_add  # noqa: E402
from bridge.jax._ops.bias_gelu import bias_gelu  # noqa: E402
from bridge.jax._ops.cross_entropy import cross_entropy  # noqa: E402
from bridge.jax._ops.gates import geglu, glu, reglu, squared_relu, swiglu  # noqa: E402
from bridge.jax._ops.linear_cross_entropy import linear_cross_entropy  # noqa: E402
from bridge.jax._ops.log_probs import log_softmax, logsumexp, token_log_probs  # noqa: E402
from bridge.jax._ops.norms import layer_norm, rms_norm  # noqa: E402
from bridge.jax._ops.rotary import rotary  # noqa: E402
from bridge.jax._ops.softmax import (  # noqa: E402
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
)
from bridge.jax._ops.viewless import make_viewless  # noqa: E402
from bridge.jax.recording import record  # noqa: E402

if TYPE_CHECKING:
    from bridge.jax._from_torch.errors import torch_errors as torch_errors
    from bridge.jax._from_torch.functions import from_torch as from_torch

# These are public as well, but need torch, which is imported when they are asked for.
_OF_TORCH = {"from_torch": "_from_torch.functions", "torch_errors": "_from_torch.errors"}

__all__ = [
    "all_gather",
    "bias_dropout_add",
    "bias_gelu",
    "cross_entropy",
    "geglu",
    "glu",
    "layer_norm",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "make_viewless",
    "record",
    "reglu",
    "rms_norm",
    "rotary",
    "scaled_causal_softmax",
    "scaled_masked_softmax",
    "scaled_softmax",
    "squared_relu",
    "swiglu",
    "token_log_probs",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(f"{__name__}.{_OF_TORCH[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"bridge.jax.{name} runs torch functions in JAX and needs torch, which is not "
            "installed: pip install torch"
        ) from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TORCH})
