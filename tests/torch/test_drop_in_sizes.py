"""Impossible sizes in the constructors of drop-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bridge.torch import apex, huggingface, liger, megatron

CONFIG = {"hidden_size": 8, "intermediate_size": 12, "num_experts": 2, "hidden_act": "silu"}
CONFIG |= {"mlp_multipliers": (1.0, 1.0), "normalization": "LayerNorm"}
CONFIG |= {"layernorm_zero_centered_gamma": False, "persist_layer_norm": True}
CONFIG |= {"sequence_parallel": False}

OF_CONFIG: list[tuple[Any, tuple[str, ...]]] = [
    (liger.LigerExperts, ("num_experts", "intermediate_size", "hidden_size")),
    *(
        (module, ("hidden_size", "intermediate_size"))
        for module in (
            *(liger.LigerSwiGLUMLP, liger.LigerGEGLUMLP, liger.LigerPhi3SwiGLUMLP),
            *(liger.LigerBlockSparseTop2MLP, liger.LigerFalconH1SwiGLUMLP),
            *(liger.LigerTiledSwiGLUMLP, huggingface.LlamaMLP),
        )
    ),
]
OF_SIZE = [
    *(apex.FusedLayerNorm, apex.FusedRMSNorm, apex.MixedFusedLayerNorm, apex.FastLayerNorm),
    *(liger.LigerRMSNorm, liger.LigerLayerNorm, liger.LigerFusedAddRMSNorm),
    *(huggingface.LlamaRMSNorm, huggingface.GemmaRMSNorm),
    lambda size: megatron.FusedLayerNorm(SimpleNamespace(**CONFIG), size),
]


@pytest.mark.parametrize("size", [-1, -(2**40), 2.5, None, "8"])
def test_sizes_of_a_config(size: Any) -> None:
    for module, names in OF_CONFIG:
        module(SimpleNamespace(**CONFIG))
        for name in names:
            error = ValueError if isinstance(size, int) else TypeError
            with pytest.raises(
                error, match=rf"^{module.__name__}: \w+ .*expected an integer from 0"
            ):
                module(SimpleNamespace(**{**CONFIG, name: size}))


@pytest.mark.parametrize("module", OF_SIZE)
def test_sizes_by_position(module: Any) -> None:
    module(0), module(3)
    with pytest.raises(ValueError, match=r"^\w+: \w+ is -1, expected an integer from 0 on"):
        module(-1)
    with pytest.raises(TypeError):
        module(2.5)
