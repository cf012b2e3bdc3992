"""The cases that the originals publish for their modules, bias-dropout-add and viewless tensors.

Shapes, dtypes and tolerances are the originals'; each case is also compared with float64. Where our
results differ on purpose, the test says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from bridge.torch import megatron
from tests.torch.attention import (
    above_diagonal,
    assert_within,
    check_softmax,
    generator,
    outside_window,
    softmax64,
    unfused,
)


def layer(dtype: torch.dtype, mask_type: str, fusion: bool = True, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "input_in_fp16": dtype == torch.float16,
        "input_in_bf16": dtype == torch.bfloat16,
        "attn_mask_type": mask_type,
        "scaled_masked_softmax_fusion": fusion,
        "mask_func": None,
        "softmax_in_fp32": True,
        "scale": None,
    }
    return megatron.FusedScaleMaskSoftmax(**{**arguments, **changes})


# apex, tests/L0/run_transformer/test_fused_softmax.py: FusedScaleMaskSoftmax, on the fused and the
# composed path.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize("kind", ["mask", "none", "causal"])
@pytest.mark.parametrize("shape", [(4, 12, 24, 24), (32, 12, 4, 214)], ids=str)
@pytest.mark.parametrize("fusion", [True, False])
def test_apex_module(dtype: torch.dtype, scale: Any, kind: str, shape: Any, fusion: bool) -> None:
    random = generator(*shape)
    x = torch.randn(shape, generator=random).to(dtype)
    g = torch.randn(shape, generator=random).to(dtype)
    b, _, queries, keys = shape
    mask = {
        "mask": torch.rand(b, 1, queries, keys, generator=random) < 0.5,
        "none": None,
        "causal": above_diagonal(queries, keys).expand(b, 1, -1, -1),
    }[kind]
    module = layer(dtype, "causal" if kind == "causal" else "padding", fusion, scale=scale)
    y, _ = check_softmax(lambda x: module(x, mask), x, mask, scale, g)
    composed = unfused(x.float(), mask, scale)
    torch.testing.assert_close(y, composed.to(dtype))


def test_apex_module_refuses_a_scale_without_float32() -> None:
    for kind in ("padding", "causal"):
        with pytest.raises(AssertionError, match="softmax_in_fp32"):
            layer(torch.float16, kind, scale=2.0, softmax_in_fp32=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["padding", "causal", "none"])
def test_apex_autocast(dtype: torch.dtype, kind: str) -> None:
    """apex returns the dtype of autocast; bridge that of the scores, which is closer."""
    random = generator(5)
    x, g = torch.randn(2, 4, 12, 24, 24, generator=random)
    mask = torch.rand(4, 1, 24, 24, generator=random) < 0.5
    hidden = {"padding": mask, "causal": above_diagonal(24, 24), "none": None}[kind]
    module = layer(dtype, "causal" if kind == "causal" else "padding")
    with torch.autocast("cpu", dtype=dtype):
        check_softmax(lambda x: module(x, hidden), x, hidden, None, g)
        y = module(x.to(dtype), hidden)
    torch.testing.assert_close(y, unfused(x.to(dtype).float(), hidden, None).to(dtype))


# Megatron-LM, megatron/legacy/fused_kernels/tests/test_fused_kernels.py: scores of BERT
# (32 tokens) and GPT-2 (24), 4 sentences.
@pytest.mark.parametrize(("tokens", "kind"), [(32, "padding"), (24, "causal")])
def test_megatron_module_on_sentences(tokens: int, kind: str) -> None:
    random = generator(tokens)
    x = (torch.randn(4, 12, tokens, tokens, generator=random) * 3).half()
    g = torch.randn(4, 12, tokens, tokens, generator=random).half()
    padded = torch.arange(tokens) >= torch.tensor([[tokens], [tokens - 3], [7], [tokens // 2]])
    mask = padded[:, None, None, :].repeat(1, 1, tokens, 1)
    if kind == "causal":
        mask = mask | above_diagonal(tokens, tokens)
    y, _ = check_softmax(lambda x: layer(x.dtype, kind)(x, mask), x, mask, None, g)
    assert (y - unfused(x, mask, None)).abs().double().mean() <= 1e-3


# Megatron-LM, tests/unit_tests/fusions/test_torch_softmax.py.
class TestMegatronCore:
    def test_equal_scores(self) -> None:
        y = layer(torch.float32, "causal", fusion=False)(torch.zeros(8, 2, 32, 32), None, None)
        expected = torch.ones(8, 2, 32, 32).tril() / torch.arange(1, 33)[:, None]
        torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-8)

    def test_equal_scores_with_an_offset(self) -> None:
        x, offset = torch.zeros(8, 2, 32, 32), torch.zeros(2)
        y = layer(torch.float32, "causal", fusion=False)(x, None, offset)
        expected = torch.ones(8, 2, 32, 32).tril() / (1 + torch.arange(1, 33))[:, None]
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=0.0)

    def test_more_keys_than_queries(self) -> None:
        """The original asserts; bridge treats the queries as the last of a longer sequence."""
        x = torch.randn(1, 1, 16, 16, generator=generator(1))
        module = layer(torch.float32, "causal", fusion=False)
        torch.testing.assert_close(module(x[:, :, 12:], None, None), module(x, None)[:, :, 12:])

    @pytest.mark.parametrize("kind", ["padding", "causal"])
    def test_offsets(self, kind: str) -> None:
        """The published comparison has no causal rule, although its module has one."""
        x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
        hidden = above_diagonal(3, 3) if kind == "causal" else torch.zeros(3, 3, dtype=torch.bool)
        learned = torch.nn.Parameter(torch.randn(1, generator=generator(2)) * 0.01)
        for offset in (torch.zeros(1), learned):
            y = layer(torch.float32, kind)(x, None, offset)
            wide = torch.cat([x, offset.reshape(1, 1, 1, 1).expand(1, 1, 3, 1)], -1)
            padded = torch.cat([hidden, torch.zeros(3, 1, dtype=torch.bool)], -1)
            expected = softmax64(wide, padded)[..., :-1].float()
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-8)
        g = torch.tensor([[1.0, -2.0, 4.0]]) * torch.tensor([[1.0], [-3.0], [2.0]])
        gradients = (grad((result * g).sum(), learned)[0] for result in (y, expected))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)

    def test_large_scores_beside_an_offset(self) -> None:
        big = 1e10
        x = torch.tensor([[[[big, -big, big], [-big, big, -big], [big, -big, big]]]])
        y = layer(torch.float32, "padding")(x, None, torch.zeros(1))
        assert y.tolist() == [[[[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]]]

    @pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("kind", ["causal", "padding"])
    def test_scales_and_masks(self, scale: float, kind: str) -> None:
        """Cotangents are random, because the published gradient, of a sum over rows, is zero."""
        x, g = torch.randn(2, 2, 4, 8, 8, generator=generator(3))
        mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
        mask[:, :, :, -2:] = False
        hidden = mask | above_diagonal(8, 8) if kind == "causal" else mask
        module = layer(torch.float32, kind, fusion=False, scale=scale)
        check_softmax(lambda x: module(x, mask, None), x, hidden, scale, g)
        y = module(x, None, None)
        torch.testing.assert_close(y.sum(-1), torch.ones(2, 4, 8), rtol=1e-5, atol=0.0)

    def test_scores_are_left_alone(self) -> None:
        """Two published comparisons hold only if `mask_func` has written into the scores."""
        x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
        before = x.clone()

        def fill(scores: Tensor, mask: Tensor) -> Tensor:
            return scores.masked_fill_(mask, -10000.0)

        module = layer(torch.float32, "causal", fusion=False, mask_func=fill)
        y = module(x, None, torch.zeros(1))
        assert torch.equal(x, before)
        wide = torch.cat([fill(x, above_diagonal(3, 3)), torch.zeros(1, 1, 3, 1)], -1)
        torch.testing.assert_close(y, wide.softmax(-1)[..., :-1], rtol=1e-5, atol=0.0)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
    def test_precisions(self, dtype: torch.dtype) -> None:
        x, g = torch.randn(2, 2, 4, 8, 8, generator=generator(4)).to(dtype)
        module = layer(dtype, "causal", False, softmax_in_fp32=dtype != torch.float32)
        check_softmax(lambda x: module(x, None, None), x, above_diagonal(8, 8), None, g)


# Megatron-LM, tests/unit_tests/fusions/test_fused_softmax_swa_mask.py.
def test_megatron_window_beside_a_padding_mask() -> None:
    module = layer(torch.float32, "causal", fusion=False, window_size=(4, 0))
    mask = torch.zeros(2, 1, 8, 8, dtype=torch.bool)
    mask[1, :, :, -3:] = True
    probs = module(torch.zeros(2, 1, 8, 8), mask)
    assert not probs[1, :, :, -3:].any()
    assert probs.isfinite().all()
    assert probs[0, 0, 5, 5] > 0.0
    assert probs[0, 0, 5, 0] == 0.0
    hidden = mask | outside_window(8, 8, 4, 0)
    torch.testing.assert_close(probs, softmax64(torch.zeros(2, 1, 8, 8), hidden).float())


def test_megatron_window_on_the_fused_path() -> None:
    """The published fault gives 0.03125 to a key outside the window."""
    module = layer(torch.bfloat16, "causal", window_size=(4, 0))
    probs = module(torch.zeros(8, 1, 32, 32, dtype=torch.bfloat16), None)
    assert not probs[:, 0, 31, :27].any()
    assert torch.equal(probs[:, 0, 31, 27:], torch.full((8, 5), 0.2, dtype=torch.bfloat16))


# Megatron-LM, tests/unit_tests/fusions/test_bias_dropout_fusion.py.
class TestMegatronBiasDropout:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("fused", [True, False])
    def test_same_dtype(self, dtype: torch.dtype, training: bool, fused: bool) -> None:
        x, residual, g = torch.randn(3, 16, 64, generator=generator(6)).to(dtype)
        bias = torch.randn(64, generator=generator(7)).to(dtype)
        tolerances = (
            {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
        )
        inputs = [t.detach().requires_grad_() for t in (x, bias, residual)]
        function = megatron.get_bias_dropout_add(training=training, fused=fused)
        y = function((inputs[0], inputs[1]), inputs[2], prob=0.0)
        assert y.dtype == dtype
        torch.testing.assert_close(y, residual + (x + bias), **tolerances)
        exact = residual.double() + x.double() + bias.double()
        terms = residual.double().abs() + x.double().abs() + bias.double().abs()
        single = torch.finfo(torch.float32).eps * terms
        assert_within(y, exact, torch.finfo(dtype).eps / 2 * exact.abs() + single)
        dx, dbias, dresidual = grad(y, inputs, g)
        assert torch.equal(dx, g)
        assert torch.equal(dresidual, g)
        sums = g.double().sum(0)
        single = torch.finfo(torch.float32).eps * g.double().abs().sum(0)
        assert_within(dbias, sums, torch.finfo(dtype).eps / 2 * sums.abs() + single)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("with_bias", [True, False])
    def test_inference_in_the_memory_of_x(
        self, dtype: torch.dtype, fused: bool, with_bias: bool
    ) -> None:
        x = torch.randn(16, 64, generator=generator(8)).to(dtype)
        residual = torch.randn(16, 64, generator=generator(10)).to(dtype)
        bias = torch.randn(64, generator=generator(9)).to(dtype) if with_bias else None
        exact = residual.double() + x.double() + (bias.double() if with_bias else 0.0)
        address = x.data_ptr()
        y = megatron.get_bias_dropout_add(training=False, fused=fused)((x, bias), residual, 0.0)
        assert y.data_ptr() == x.data_ptr() == address
        assert torch.equal(y, x)
        torch.testing.assert_close(y, exact.to(dtype))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_inference_beside_a_float32_residual(self, dtype: torch.dtype) -> None:
        x = torch.randn(16, 64, generator=generator(8)).to(dtype)
        residual, before = torch.randn(16, 64, generator=generator(9)), x.clone()
        function = megatron._bias_dropout_add_func  # imported by the published test
        y = function((x, None), residual, prob=0.0, training=False)
        assert y.dtype == torch.float32
        assert y.data_ptr() != x.data_ptr()
        assert torch.equal(x, before)
        assert torch.equal(y, residual + x.float())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("with_bias", [True, False])
    def test_float32_residual(self, dtype: torch.dtype, training: bool, with_bias: bool) -> None:
        x = torch.randn(16, 64, generator=generator(9)).to(dtype).requires_grad_()
        residual = torch.randn(16, 64, generator=generator(10)).requires_grad_()
        bias = torch.randn(64, generator=generator(11)).to(dtype).requires_grad_()
        function = megatron.get_bias_dropout_add(training, True)
        y = function((x, bias if with_bias else None), residual, 0.0)
        assert y.dtype == torch.float32
        expected = residual + (x.float() + bias.float() if with_bias else x.float())
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        g = torch.randn(16, 64, generator=generator(12))
        inputs = [x, residual, bias][: 2 + with_bias]
        for ours, theirs in zip(grad(y, inputs, g), grad(expected, inputs, g), strict=True):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs)
        half = megatron.bias_dropout_add_fused_train((x, None), residual, 0.5)
        assert half.dtype == torch.float32
        assert not torch.equal(half, residual + x)

    @pytest.mark.parametrize("with_bias", [True, False])
    def test_residual_stream_of_eight_layers(self, with_bias: bool) -> None:
        random = generator(13)
        residual = torch.randn(4, 32, generator=random)
        exact = residual.double()
        for _ in range(8):
            x, bias = torch.randn(2, 4, 32, generator=random).bfloat16()
            pair = (x, bias[0] if with_bias else None)
            residual = megatron.bias_dropout_add_fused_train(pair, residual, 0.0)
            assert residual.dtype == torch.float32
            exact = exact + x.double() + (bias[0].double() if with_bias else 0.0)
        torch.testing.assert_close(residual.double(), exact, rtol=0.0, atol=1e-5)

    def test_float32_residual_is_closer_after_fifty_layers(self) -> None:
        random = generator(14)
        exact = torch.randn(2, 16, dtype=torch.float64, generator=random)
        single, half = exact.float(), exact.bfloat16()
        for _ in range(50):
            x = torch.randn(2, 16, dtype=torch.float64, generator=random)
            exact = exact + x
            pair = (x.bfloat16(), None)
            single = megatron.bias_dropout_add_fused_train(pair, single, 0.0)
            half = megatron.bias_dropout_add_fused_train(pair, half, 0.0)
        error, coarse = ((stream - exact).abs().mean() for stream in (single, half))
        assert error < coarse / 2


# Megatron-LM, tests/unit_tests/test_utils.py.
def test_megatron_viewless() -> None:
    x = torch.rand(3, 4)
    for keep_graph in (True, False):
        assert torch.equal(megatron.make_viewless_tensor(x, True, keep_graph), x)
        assert torch.equal(megatron.make_viewless_tensor(x.mT, True, keep_graph), x.mT)
    zeros, new = torch.zeros(3, 4), torch.from_numpy(np.random.default_rng(0).random((3, 4)))
    megatron.safely_set_viewless_tensor_data(zeros, new)
    assert torch.equal(zeros, new)
    assert megatron.assert_viewless_tensor(x) is x
    same = megatron.assert_viewless_tensor([x, x, x])
    assert all(item is x for item in same)
