"""Liger-Kernel's functions for Megatron-LM: norm, SwiGLU, rotary, and losses of one rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, silu

from bridge.torch import liger, megatron
from tests.torch.expected import assert_same_bits
from tests.torch.replay import replay
from tests.torch.test_liger import BOTH, of_parameters, rms_norm


@BOTH
@pytest.mark.parametrize("centred", [False, True])
def test_rms_norm(draw: Any, dtype: torch.dtype, centred: bool) -> None:
    config = SimpleNamespace(layernorm_zero_centered_gamma=centred, sequence_parallel=True)
    module = liger.LigerMegatronRMSNorm(config, 123, eps=1e-5)
    assert torch.equal(module.weight, torch.full((123,), 0.0 if centred else 1.0))
    assert module.weight.sequence_parallel
    assert f"zero_centered_gamma={centred}" in repr(module)

    def exact(x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight + centred, 1e-5)

    weight = draw(123, dtype=dtype)
    replay(of_parameters(module), exact, (draw(6, 2, 123, dtype=dtype), weight))
    with pytest.raises(ValueError, match="normalization is 'LayerNorm', expected 'RMSNorm'"):
        liger.LigerMegatronRMSNorm(SimpleNamespace(normalization="LayerNorm"), 8)


@BOTH
def test_swiglu(draw: Any, dtype: torch.dtype) -> None:
    module = liger.LigerMegatronSwiGLU(in_place=True)
    x, bias = draw(5, 2, 82, dtype=dtype), draw(82, dtype=dtype)

    def exact(x: Tensor, bias: Tensor) -> Tensor:
        a, b = (x + bias).chunk(2, -1)
        return silu(a) * b

    replay(module, exact, (x, bias))
    assert_same_bits(module(x), megatron.bias_swiglu_impl(x, None))
    with pytest.raises(NotImplementedError, match="fp8_input_store is True, expected False"):
        module(x, None, True)
    stored = liger.LigerMegatronSwiGLU(lambda *given: given)
    assert stored(x, None, True, False) == (x, None, True, False)


@BOTH
@pytest.mark.parametrize("part", [32, 12])
def test_rotary(draw: Any, dtype: torch.dtype, part: int) -> None:
    """Cosines and sines are rounded to the tensor's dtype; the rest of a head passes unchanged."""
    freqs = torch.outer(torch.arange(7.0), torch.rand(part // 2)).repeat(1, 2)[:, None, None]

    def exact(t: Tensor) -> Tensor:
        turned, rest = t[..., :part], t[..., part:]
        cos, sin = (table.to(dtype).double() for table in (freqs.cos(), freqs.sin()))
        first, second = turned.chunk(2, -1)
        return torch.cat((turned * cos + torch.cat((-second, first), -1) * sin, rest), -1)

    t = draw(7, 2, 3, 32, dtype=dtype)
    replay(lambda t: liger.liger_apply_rotary_pos_emb_bshd(t, freqs), exact, (t,))
    if part == 32:
        tables = [table.to(dtype)[:, 0, 0][None] for table in (freqs.cos(), freqs.sin())]
        turned = liger.LigerMegatronRopeFunction.apply(t.permute(1, 2, 0, 3), *tables)
        expected = liger.liger_apply_rotary_pos_emb_bshd(t, freqs)
        assert_same_bits(turned.permute(2, 0, 1, 3).contiguous(), expected)


@BOTH
def test_losses(draw: Any, dtype: torch.dtype) -> None:
    labels = torch.randint(0, 37, (6, 2))
    labels[0, 1] = -100

    def exact(logits: Tensor, smoothing: float = 0.1 * 37 / 36) -> Tensor:
        options: Any = {"reduction": "none", "label_smoothing": smoothing}
        return cross_entropy(logits.flatten(0, -2), labels.flatten(), **options).view(6, 2)

    loss = liger.LigerMegatronCrossEntropy(label_smoothing=0.1)
    logits = draw(6, 2, 37, dtype=dtype)
    replay(lambda x: loss(x, labels), exact, (logits,), dtypes=[torch.float32], ulps=32)
    assert loss.label_smoothing_mode == "partition"
    with pytest.raises(ValueError, match="reduction is 'mean', expected 'none'"):
        liger.LigerMegatronCrossEntropy(reduction="mean")


def test_linear_loss(draw: Any) -> None:
    labels = torch.randint(0, 37, (6, 2))
    labels[0, 1] = 5
    module = liger.LigerMegatronFusedLinearCrossEntropy(ignore_index=5)

    def exact(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = linear(hidden, weight, bias).flatten(0, -2)
        options: Any = {"reduction": "none", "ignore_index": 5}
        return cross_entropy(rows, labels.flatten(), **options).view(6, 2)

    given = draw(6, 2, 16), draw(37, 16), draw(37)
    replay(lambda h, w, b: module(h, w, labels, b), exact, given, ulps=32)
    assert "ignore_index=5" in repr(module)
