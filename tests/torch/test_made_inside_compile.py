"""Modules that are made inside a compiled function, which torch's own modules allow."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import Unsupported

MODULES = ("", ".apex", ".megatron", ".liger", ".slapo", ".huggingface", ".towhee")
CONFIG = SimpleNamespace(
    hidden_size=8,
    intermediate_size=16,
    ffn_dim=16,
    moe_intermediate_size=16,
    hidden_act="silu",
    hidden_activation="gelu_pytorch_tanh",
    mlp_bias=False,
    mlp_multipliers=(1.0, 1.0),
    normalization="LayerNorm",
    num_experts=4,
    num_local_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    num_kv_shared_layers=0,
    use_double_wide_mlp=False,
    memory_efficient_layer_norm=False,
    layernorm_zero_centered_gamma=False,
    sequence_parallel=False,
    persist_layer_norm=False,
)
# Arguments other than sizes and configurations.
ARGUMENTS = {
    "FusedScaleMaskSoftmax": (True, False, "padding", True, None, True, None),
    "LigerMegatronRMSNorm": (SimpleNamespace(**{**vars(CONFIG), "normalization": "RMSNorm"}), 8),
    "LigerTiledGEGLUMLP": (SimpleNamespace(**{**vars(CONFIG), "hidden_act": "gelu_pytorch_tanh"}),),
}


def _classes() -> dict[str, type[nn.Module]]:
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"bridge.torch{name}")
        for each in module.__all__:
            value = getattr(module, each)
            if isinstance(value, type) and issubclass(value, nn.Module) and each != "JaxModule":
                found[f"{name[1:]}.{each}"] = value
    return found


def _arguments(kind: type[nn.Module]) -> tuple[Any, ...]:
    if kind.__name__ in ARGUMENTS:
        return ARGUMENTS[kind.__name__]
    parameters = inspect.signature(kind).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return tuple(CONFIG if p.name == "config" else 8 for p in needed)


CLASSES = _classes()


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES.keys())
def test_a_module_is_made_inside(kind: type[nn.Module]) -> None:
    arguments = _arguments(kind)

    def function(x: torch.Tensor) -> torch.Tensor:
        module = kind(*arguments)
        return x + sum([parameter.numel() for parameter in module.parameters()])

    x = torch.ones(3)
    expected = function(x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(function, backend="aot_eager")(x), expected)
    torch._dynamo.reset()
    whole = torch.compile(function, backend="aot_eager", fullgraph=True)
    if any(True for _ in kind(*arguments).parameters()):
        with pytest.raises(Unsupported, match=r"nn\.Parameter"):  # like torch's own modules
            whole(x)
    else:
        assert torch.equal(whole(x), expected)
