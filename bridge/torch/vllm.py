"""bridge's ops inside vLLM: functions with the signatures of its kernels, and their registration.

Originals: `vllm/_custom_ops.py` (`rms_norm`, `fused_add_rms_norm`, `silu_and_mul`, `gelu_and_mul`,
`gelu_tanh_and_mul`, which write into given tensors and return nothing) and `log_softmax` of
`vllm/model_executor/layers/batch_invariant.py`. `register` needs vLLM; the functions do not.
Differences:

- A 16-bit result is rounded once. The originals round x·r before the weight, and act(gate) before
  the product.
- `epsilon` must be positive.
- The functions have no derivatives, like the originals: tensors must not require gradients.
"""

# Annotations are evaluated (no `from __future__ import annotations`): vLLM reads the schema of an
# implementation from them.

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.torch._ops.gates import glu
from bridge.torch._ops.log_probs import log_softmax as _log_softmax
from bridge.torch._ops.norms import rms_norm as _rms_norm

__all__ = [
    "fused_add_rms_norm",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "log_softmax",
    "plugin",
    "register",
    "rms_norm",
    "silu_and_mul",
]

_PROVIDER = "bridge"
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rms_norm(out: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """Writes `bridge.torch.rms_norm(input, weight, eps=epsilon)` into `out`.

    Args:
      out: of the shape of `input`; the result is converted to its dtype.
      input: `[..., d]`; weight: `[d]` or None; of dtype float16, bfloat16, float32 or float64.
      epsilon: a positive number.

    Raises:
      TypeError, ValueError: as `bridge.torch.rms_norm`, or `out` has another shape.
    """
    if out.dtype == input.dtype and (weight is None or weight.dtype == input.dtype):
        _rms_norm(input, weight, eps=epsilon, out=out)
    else:
        _write("rms_norm", "out", out, _rms_norm(input, weight, eps=epsilon))


def fused_add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float
) -> None:
    """Writes input + residual into `residual`, and its norm into `input`.

    The sum is rounded to its dtype before the norm, as in the original.

    Args:
      input, residual: `[..., d]`; weight: `[d]` or None.
      epsilon: a positive number.

    Raises:
      TypeError, ValueError: as `bridge.torch.rms_norm`, or a tensor to write into is expanded.
      RuntimeError: a tensor requires gradients while they are enabled. Nothing is written then.
    """
    for name, each in (("input", input), ("residual", residual), ("weight", weight)):
        if each is None:
            continue
        if each.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"fused_add_rms_norm: {name} requires gradients, expected torch.no_grad() or a "
                "detached tensor: the function has no derivatives"
            )
        is_expanded = any(
            n > 1 and not step for n, step in zip(each.shape, each.stride(), strict=True)
        )
        if is_expanded and each is not weight:
            raise ValueError(
                f"fused_add_rms_norm: {name} is expanded, with strides {list(each.stride())}, "
                "expected memory of its own for each element"
            )
    y, h = _rms_norm(input, weight, residual, eps=epsilon)
    input.copy_(y)
    residual.copy_(h)


def silu_and_mul(out: Tensor, input: Tensor) -> None:
    """Writes silu(gate)·up into `out`; the gate is the first half of each row.

    Args:
      out: `[..., d]`, of the dtype of `input`.
      input: `[..., 2d]`, of dtype float16, bfloat16, float32 or float64.

    Raises:
      TypeError, ValueError: as `bridge.torch.glu`, or `out` is not `[..., d]` of input's dtype.
    """
    glu(input, activation="silu", out=out)


def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """`silu_and_mul` with gate·Φ(gate).

    Args:
      out, input: as for `silu_and_mul`.
    """
    glu(input, activation="gelu", out=out)


def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """`silu_and_mul` with GELU by tanh.

    Args:
      out, input: as for `silu_and_mul`.
    """
    glu(input, activation="gelu_tanh", out=out)


def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    """Returns `bridge.torch.log_softmax(input)`.

    Args:
      input: `[..., d]`, of dtype float16, bfloat16, float32 or float64.
      dim: the last dimension.

    Raises:
      TypeError, ValueError: as `bridge.torch.log_softmax`, or `dim` is not the last dimension.
    """
    if dim not in (-1, input.ndim - 1):
        raise ValueError(f"log_softmax: dim is {dim}, expected the last dimension")
    return _log_softmax(input)


def _write(function: str, name: str, out: Tensor, result: Tensor) -> None:
    if out.dtype not in _FLOATING:  # copy_ would truncate
        raise TypeError(f"{function}: {name} has dtype {out.dtype}, expected a floating-point one")
    if out.shape != result.shape:  # copy_ would broadcast
        raise ValueError(
            f"{function}: {name} has shape {list(out.shape)}, expected {list(result.shape)}"
        )
    out.copy_(result)


def register() -> dict[str, str]:
    """Puts bridge's ops into the vLLM of this process.

    The layers `RMSNorm`, `GemmaRMSNorm`, `SiluAndMul` and `GeluAndMul` that vLLM makes from now on
    run on bridge, with and without `torch.compile`. Where vLLM has `vllm.ir`, its ops get a
    provider named "bridge", which `--ir-op-priority` selects. The batch-invariant mode computes
    `log_softmax` by bridge. A second call changes nothing.

    Returns:
      Each registered name of vLLM, and how it was registered.

    Raises:
      ModuleNotFoundError: vLLM is not installed.
      ValueError: another package has registered one of the layers; nothing has been changed then.
    """
    try:
        custom_op = importlib.import_module("vllm.model_executor.custom_op")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "vllm":
            raise
        raise ModuleNotFoundError(
            "bridge.torch.vllm.register needs vllm with vllm.model_executor.custom_op, which is "
            "not installed: pip install vllm",
            name=error.name,
        ) from None
    kind = custom_op.CustomOp
    registry = getattr(custom_op, "op_registry_oot", None)
    registry = kind.op_registry_oot if registry is None else registry
    classes = [*_layers(kind)]
    for original, _ in classes:
        other = registry.get(original.__name__)
        if other is not None and not hasattr(other, "by_bridge"):
            raise ValueError(
                f"register: vLLM's {original.__name__} is {other.__module__}.{other.__qualname__} "
                "already, expected the layer of vLLM: leave out the other plugin"
            )
    done = {}
    for original, forward in classes:
        name = original.__name__
        if name not in registry:
            kind.register_oot(name=name)(_layer(original, forward))
        done[name] = "layer"
    done |= _register_providers() | _register_batch_invariant()
    return done


def plugin() -> None:
    """vLLM's entry point "bridge": calls `register` if VLLM_PLUGINS names "bridge".

    vLLM calls the entry points of all installed packages while VLLM_PLUGINS is not set. An
    installed bridge then changes nothing.
    """
    if _PROVIDER in os.environ.get("VLLM_PLUGINS", "").split(","):
        register()


def _layers(kind: type) -> Any:
    """Yields the layers that this vLLM has as classes of custom ops, and their computations."""
    layers = "vllm.model_executor.layers"
    for module, name, forward in (
        (f"{layers}.layernorm", "RMSNorm", _rms_norm_layer),
        (f"{layers}.layernorm", "GemmaRMSNorm", _gemma_rms_norm_layer),
        (f"{layers}.activation", "SiluAndMul", _silu_layer),
        (f"{layers}.activation", "GeluAndMul", _gelu_layer),
    ):
        original = getattr(importlib.import_module(module), name, None)
        if isinstance(original, type) and issubclass(original, kind):
            yield original, forward


# vLLM chooses one of these for its platform, and `forward_native` under torch.compile.
_FORWARDS = ("native", "cuda", "hip", "xpu", "cpu", "tpu", "oot")


def _layer(original: Any, forward: Callable[..., Any]) -> type:
    def by_bridge(self: Any, *given: Any, **named: Any) -> Any:
        result = forward(self, *given, **named)
        return original.forward_native(self, *given, **named) if result is None else result

    own: dict[str, Any] = {f"forward_{each}": by_bridge for each in _FORWARDS}
    own |= {"by_bridge": True, "__module__": __name__, "__doc__": f"vLLM's {original.__name__}."}
    return type(original.__name__, (original,), own)


def _rms_norm_layer(layer: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    if getattr(layer, "variance_size_override", None) is not None:
        return None  # a variance of a part of the columns
    weight = layer.weight if getattr(layer, "has_weight", True) else None
    return _norm(x, weight, residual, layer.variance_epsilon, 0.0)


def _gemma_rms_norm_layer(layer: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    if residual is None or x.dtype != torch.float16:
        return _norm(x, layer.weight, residual, layer.variance_epsilon, 1.0)
    # vLLM keeps the sum of float16 in float32.
    y, h = _rms_norm(x, layer.weight, residual.float(), eps=layer.variance_epsilon, offset=1.0)
    return y.to(x.dtype), h


def _norm(
    x: Tensor, weight: Tensor | None, residual: Tensor | None, epsilon: float, offset: float
) -> Tensor | tuple[Tensor, Tensor]:
    if residual is None:
        return _rms_norm(x, weight, eps=epsilon, offset=offset).to(x.dtype)  # type: ignore[no-any-return]
    y, h = _rms_norm(x, weight, residual, eps=epsilon, offset=offset)
    return y.to(x.dtype), h.to(x.dtype)


def _silu_layer(layer: Any, x: Tensor) -> Tensor:
    return glu(x, activation="silu")


def _gelu_layer(layer: Any, x: Tensor) -> Tensor:
    return glu(x, activation="gelu_tanh" if layer.approximate == "tanh" else "gelu")


def _ir_rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    return _norm(x, weight, None, epsilon, 0.0)  # type: ignore[return-value]


def _takes_rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return variance_size is None and epsilon > 0 and x.dtype in _FLOATING


def _ir_fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    return _norm(x, weight, x_residual, epsilon, 0.0)  # type: ignore[return-value]


def _takes_fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return _takes_rms_norm(x, weight, epsilon, variance_size)


def _ir_silu_and_mul(x: Tensor) -> Tensor:
    return glu(x, activation="silu")


def _takes_silu_and_mul(x: Tensor) -> bool:
    return x.dtype in _FLOATING


_PROVIDED: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "rms_norm": (_ir_rms_norm, _takes_rms_norm),
    "fused_add_rms_norm": (_ir_fused_add_rms_norm, _takes_fused_add_rms_norm),
    "silu_and_mul": (_ir_silu_and_mul, _takes_silu_and_mul),
}


def _register_providers() -> dict[str, str]:
    """Registers implementations of vLLM's IR ops, which older versions do not have."""
    try:
        ops = importlib.import_module("vllm.ir").ops
    except (ModuleNotFoundError, AttributeError):
        return {}
    done = {}
    for name, (function, takes) in _PROVIDED.items():
        op = getattr(ops, name, None)
        if op is None:
            continue
        if _PROVIDER not in op.impls:
            op.register_impl(_PROVIDER, supports_args=takes)(function)
        done[f"ir.ops.{name}"] = f'provider "{_PROVIDER}"'
    return done


def _register_batch_invariant() -> dict[str, str]:
    """Sets the function that vLLM's override of `aten::_log_softmax` calls."""
    name = "vllm.model_executor.layers.batch_invariant"
    try:
        module = importlib.import_module(name)
    except ImportError:  # it needs Triton
        return {}
    if not hasattr(module, "log_softmax"):
        return {}
    module.log_softmax = log_softmax  # type: ignore[attr-defined]
    return {"batch_invariant.log_softmax": "function"}
