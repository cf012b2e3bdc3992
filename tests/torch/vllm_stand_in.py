"""A stand-in for vLLM: the parts of its public interface that `bridge.torch.vllm.register` uses.

Signatures and registries are those of vLLM's documentation ("CustomOp", "vLLM IR"); the
computations are torch's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional


def norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


class Op:
    """An op of vLLM IR: a native implementation, and those of other providers."""

    def __init__(self, native: Callable[..., Any]) -> None:
        self.schema = torch.library.infer_schema(native, mutates_args=[])
        self.count = len(inspect.signature(native).parameters)
        self.impls = {"native": (native, None)}

    def register_impl(
        self,
        provider: str,
        *,
        supported: bool = True,
        supports_args: Callable[..., bool] | None = None,
        inplace: bool = False,
    ) -> Callable[[Callable[..., Any]], None]:
        def register(function: Callable[..., Any]) -> None:
            assert provider not in self.impls
            assert torch.library.infer_schema(function, mutates_args=[]) == self.schema
            assert len(inspect.signature(supports_args).parameters) == self.count
            self.impls[provider] = function, supports_args

        return register

    def __call__(self, provider: str, *given: Any) -> Any:
        function, takes = self.impls[provider]
        return function(*given) if takes(*given) else self.impls["native"][0](*given)


def ir_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> torch.Tensor:
    part = x if variance_size is None else x[..., :variance_size]
    y = x * torch.rsqrt(part.square().mean(-1, keepdim=True) + epsilon)
    return y if weight is None else y * weight


def ir_fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + x_residual
    return ir_rms_norm(h, weight, epsilon, variance_size), h


for _function in (ir_rms_norm, ir_fused_add_rms_norm):
    _function.__annotations__ = inspect.get_annotations(_function, eval_str=True)


def vllm(monkeypatch: pytest.MonkeyPatch, *, has_ir: bool = True) -> SimpleNamespace:
    """Puts new modules named vllm into `sys.modules`, and returns their contents."""
    registry: dict[str, type] = {}

    class CustomOp(nn.Module):
        op_registry_oot = registry
        mode = "cuda"

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return super().__new__(registry.get(cls.__name__, cls))

        def __init__(self) -> None:
            super().__init__()
            self.call = getattr(self, f"forward_{self.mode}")

        def forward(self, *given: Any) -> Any:
            return self.call(*given)

        @classmethod
        def register_oot(cls, _decorated_op_cls: Any = None, name: str | None = None) -> Any:
            def register(kind: Any) -> Any:
                assert name is not None
                assert name not in registry, f"Duplicate op name: {name}"
                kind.name, registry[name] = name, kind
                return kind

            return register

    class RMSNorm(CustomOp):
        def __init__(
            self,
            hidden_size: int,
            eps: float = 1e-6,
            var_hidden_size: int | None = None,
            has_weight: bool = True,
            dtype: torch.dtype | None = None,
        ) -> None:
            super().__init__()
            self.variance_epsilon, self.has_weight = eps, has_weight
            self.variance_size_override = var_hidden_size
            self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype), requires_grad=False)

        def forward_native(self, x: Tensor, residual: Tensor | None = None) -> Any:
            return "native"

        forward_cuda = forward_cpu = forward_native

    class GemmaRMSNorm(RMSNorm):
        def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
            super().__init__(hidden_size, eps)

    class SiluAndMul(CustomOp):
        def forward_native(self, x: Tensor) -> Tensor:
            half = x.shape[-1] // 2
            return functional.silu(x[..., :half]) * x[..., half:]

        forward_cuda = forward_cpu = forward_native

    class GeluAndMul(SiluAndMul):
        def __init__(self, approximate: str = "none") -> None:
            super().__init__()
            self.approximate = approximate

    def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
        return torch.log_softmax(input, dim)

    def module(name: str, **contents: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    made = SimpleNamespace(registry=registry, CustomOp=CustomOp)
    layers = "vllm.model_executor.layers"
    for name in ("vllm", "vllm.model_executor", layers):
        module(name, __path__=[])
    module("vllm.model_executor.custom_op", CustomOp=CustomOp)
    made.norms = module(f"{layers}.layernorm", RMSNorm=RMSNorm, GemmaRMSNorm=GemmaRMSNorm)
    made.gates = module(f"{layers}.activation", SiluAndMul=SiluAndMul, GeluAndMul=GeluAndMul)
    made.batch_invariant = module(f"{layers}.batch_invariant", log_softmax=log_softmax)
    if has_ir:
        made.ops = SimpleNamespace(
            rms_norm=Op(ir_rms_norm), fused_add_rms_norm=Op(ir_fused_add_rms_norm)
        )
        module("vllm.ir", ops=made.ops)
    return made
