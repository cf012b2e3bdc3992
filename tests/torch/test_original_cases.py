"""The cases that the originals publish for themselves, put to the drop-ins.

Shapes, dtypes and tolerances are theirs. On top of each: a comparison with float64 that scales with
the values themselves (a tolerance of 1e-3 passes on zeros where rows have 2048 keys), and gradients
of random cotangents. The last tests plant faults and see that the comparison fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from bridge.torch import megatron
from tests.torch.attention import above_diagonal, outside_window, softmax64

# Elements of a case in the default run; the marked ones are full size.
_MOST = 1 << 19


def generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) & 0xFFFF_FFFF)


def unfused(x: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """The composition that the originals compare with: in the dtype of x, filled with −10000."""
    z = x if scale is None else x * scale
    if mask is None:
        return z.softmax(-1)
    y = z.masked_fill(mask, -10000.0).softmax(-1)
    return y.masked_fill(mask.all(-1, keepdim=True), 0.0)


def assert_within(actual: Tensor, expected: Tensor, tolerance: Tensor) -> None:
    error = (actual.double() - expected).abs()
    assert bool((error <= tolerance).all()), f"off by {(error / tolerance).max():.3g} tolerances"


def check_softmax(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    hidden: Tensor | None,
    scale: float | None,
    cotangent: Tensor,
) -> tuple[Tensor, Tensor]:
    """Holds values to a rounding, gradients to what that and another one do; returns both."""
    x = x.detach().requires_grad_()
    y = function(x)
    (dx,) = grad(y, x, cotangent)
    assert y.dtype == dx.dtype == x.dtype
    unit = torch.finfo(x.dtype).eps / 2
    least = torch.finfo(x.dtype).smallest_normal * unit
    # 16-bit: y is rounded once. float32: scale·x, exponential, sum and quotient are.
    roundings = 1.001 if x.dtype != torch.float32 else 32.0
    factor = 1.0 if scale is None else scale
    with torch.no_grad():
        reference = softmax64(x, hidden, scale)
        error = roundings * unit * reference + least
        assert_within(y, reference, error)
        g = cotangent.double()
        difference = g - (g * reference).sum(-1, keepdim=True)
        gradient = factor * reference * difference
        # dx is computed from the rounded y, in float32, and rounded.
        from_y = error * difference.abs() + reference * (g.abs() * error).sum(-1, keepdim=True)
        terms = reference * (g.abs() + (g.abs() * reference).sum(-1, keepdim=True))
        tolerance = abs(factor) * (from_y + 2.0**-21 * terms)
        assert_within(dx, gradient, 1.01 * (tolerance + unit * gradient.abs() + least))
        if hidden is not None:
            everywhere = hidden.expand(y.shape)
            assert not y[everywhere].any()
            assert not dx[everywhere].any()
    return y.detach(), dx


def check_masked_case(
    apply: Any, batch: int, heads: int, queries: int, keys: int, forward: Any, backward: Any
) -> None:
    """Random mask [batch, 1, queries, keys] and all-true mask, in float16, scale 1."""
    random = generator(batch, heads, queries, keys)
    shape = (batch, heads, queries, keys)
    x = (torch.randn(shape, generator=random) * 2).half()
    g = torch.rand(shape, generator=random).half()
    mask = torch.rand(batch, 1, queries, keys, generator=random) < 0.5
    y, dx = check_softmax(lambda x: apply(x, mask, 1.0), x, mask, 1.0, g)

    x.requires_grad_()
    composed = unfused(x, mask, 1.0)
    torch.testing.assert_close(y, composed.detach(), **forward)
    torch.testing.assert_close(dx, grad(composed, x, g)[0], **backward)

    nothing = apply(x, torch.ones_like(mask), 1.0)
    assert not nothing.any()
    assert not grad(nothing, x, g)[0].any()


# Megatron-LM, megatron/legacy/fused_kernels/tests/test_fused_kernels.py: batch 2, 16 heads.
MEGATRON = [(q, k) for q in (128, 256, 1024, 2048, 4096) for k in (128, 256, 1024, 2048)]
MEGATRON_TOLERANCES = ({"atol": 1e-3, "rtol": 0.0}, {"atol": 1e-3, "rtol": 0.0})
# apex, tests/L0/run_transformer/test_fused_softmax.py: the generic kernel, batch 2, 16 heads.
APEX_KEYS = (1, 2, 3, 4, 5, 8, 10, 11, 13, 128, 256, 1200, 1234, 2048, 3123, 4096, 4128, 7234, 8192)
APEX = [(q, k) for q in (1, 2, 1234, 2322, 2348) for k in APEX_KEYS]
APEX_TOLERANCES = ({"atol": 1e-3, "rtol": 1e-3}, {"atol": 1.5e-1, "rtol": 5e-3})


def heads_within(elements: int, queries: int, keys: int) -> tuple[int, int]:
    """Batch and heads of a case: 2 and 16, or what stays within so many elements."""
    heads = min(16, max(1, elements // (2 * queries * keys)))
    return (2 if 2 * queries * keys <= 2 * elements else 1), heads


@pytest.mark.parametrize(("queries", "keys"), MEGATRON)
def test_megatron_masked(queries: int, keys: int) -> None:
    batch, heads = heads_within(_MOST, queries, keys)
    apply = megatron.ScaledMaskedSoftmax.apply
    check_masked_case(apply, batch, heads, queries, keys, *MEGATRON_TOLERANCES)


@pytest.mark.parametrize(("queries", "keys"), [case for case in APEX if case[0] <= 2])
def test_apex_generic(queries: int, keys: int) -> None:
    apply = megatron.GenericScaledMaskedSoftmax.apply
    check_masked_case(apply, 2, 16, queries, keys, *APEX_TOLERANCES)


@pytest.mark.parametrize(("queries", "keys"), [(1234, 1), (1234, 1200), (2322, 13), (2348, 3123)])
def test_apex_generic_long(queries: int, keys: int) -> None:
    batch, heads = heads_within(_MOST, queries, keys)
    apply = megatron.GenericScaledMaskedSoftmax.apply
    check_masked_case(apply, batch, heads, queries, keys, *APEX_TOLERANCES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queries", "keys"), [*MEGATRON, (1234, 3123), (2322, 4128), (2348, 7234), (2348, 8192)]
)
def test_full_size(queries: int, keys: int) -> None:
    """All heads in one call; the comparison a head at a time, for its memory."""
    shape = (2, 16, queries, keys)
    random = generator(*shape)
    x, g = torch.empty(shape, dtype=torch.float16), torch.empty(shape, dtype=torch.float16)
    for part in range(32):
        x.view(32, queries, keys)[part] = torch.randn(queries, keys, generator=random) * 2
        g.view(32, queries, keys)[part] = torch.rand(queries, keys, generator=random)
    mask = torch.rand(2, 1, queries, keys, generator=random) < 0.5
    y = megatron.ScaledMaskedSoftmax.apply(x.requires_grad_(), mask, 1.0)
    (dx,) = grad(y, x, g, retain_graph=True)
    for b in range(2):
        for head in range(16):

            def whole(_: Tensor, part: Any = (b, head)) -> Tensor:
                return _Given.apply(_, y.detach()[part], dx[part])

            check_softmax(whole, x.detach()[b, head], mask[b, 0], 1.0, g[b, head])
    nothing = megatron.ScaledMaskedSoftmax.apply(x, torch.ones_like(mask), 1.0)
    assert not nothing.any()
    assert not grad(nothing, x, g)[0].any()


class _Given(torch.autograd.Function):
    """A function of which value and gradient are known already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient, None, None


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


# apex, the same file: FusedScaleMaskSoftmax with the fused and the composed path.
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
    """There the result has the dtype of autocast; here that of the scores, which is closer."""
    random = generator(5)
    x, g = torch.randn(2, 4, 12, 24, 24, generator=random)
    mask = torch.rand(4, 1, 24, 24, generator=random) < 0.5
    hidden = {"padding": mask, "causal": above_diagonal(24, 24), "none": None}[kind]
    module = layer(dtype, "causal" if kind == "causal" else "padding")
    with torch.autocast("cpu", dtype=dtype):
        check_softmax(lambda x: module(x, hidden), x, hidden, None, g)
        y = module(x.to(dtype), hidden)
    torch.testing.assert_close(y, unfused(x.to(dtype).float(), hidden, None).to(dtype))


# Megatron-LM, the same file: attention scores of BERT (32 tokens) and GPT-2 (24), 4 sentences.
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
        """AssertionError there; the last queries of a longer sequence here."""
        x = torch.randn(1, 1, 16, 16, generator=generator(1))
        module = layer(torch.float32, "causal", fusion=False)
        torch.testing.assert_close(module(x[:, :, 12:], None, None), module(x, None)[:, :, 12:])

    @pytest.mark.parametrize("kind", ["padding", "causal"])
    def test_offsets(self, kind: str) -> None:
        """The published comparison has no causal rule in it, while its module has one."""
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
        """Random cotangents, where the published gradient is that of a sum over rows: zero."""
        x, g = torch.randn(2, 2, 4, 8, 8, generator=generator(3))
        mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
        mask[:, :, :, -2:] = False
        hidden = mask | above_diagonal(8, 8) if kind == "causal" else mask
        module = layer(torch.float32, kind, fusion=False, scale=scale)
        check_softmax(lambda x: module(x, mask, None), x, hidden, scale, g)
        y = module(x, None, None)
        torch.testing.assert_close(y.sum(-1), torch.ones(2, 4, 8), rtol=1e-5, atol=0.0)

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
    """The published fault is 0.03125 for a key outside of the window."""
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
    def test_inference_leaves_x_alone(self, dtype: torch.dtype) -> None:
        """Published the other way round: there the result must lie in the memory of x."""
        x, residual = torch.randn(2, 16, 64, generator=generator(8)).to(dtype)
        before = x.clone()
        y = megatron.bias_dropout_add_fused_inference((x, None), residual, 0.0)
        assert y.data_ptr() != x.data_ptr()
        assert torch.equal(x, before)
        assert torch.equal(y, residual + x)

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


FAULTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "mask dropped": lambda x, mask, scale: megatron.ScaledSoftmax.apply(x, scale),
    "scale dropped": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(x, mask, 1.0),
    "first mask for every sample": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(
        x, mask[:1], scale
    ),
    "mask the other way round": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(
        x, ~mask, scale
    ),
    "zeros": lambda x, mask, scale: x * 0.0,
    "a row in a hundred off": lambda x, mask, scale: (
        megatron.ScaledMaskedSoftmax.apply(x, mask, scale)
        * (1.0 + 0.01 * (torch.arange(x.shape[-2]) % 100 == 7).to(x.dtype)[:, None])
    ),
    "scale rounded to the dtype": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(
        x, mask, float(torch.tensor(scale).to(x.dtype))
    ),
    "filled with -10000": lambda x, mask, scale: unfused(x, mask, scale),
    "no gradient": lambda x, mask, scale: (
        megatron.ScaledMaskedSoftmax.apply(x, mask, scale).detach() + x * 0.0
    ),
    "gradient without the scale": lambda x, mask, scale: _Given.apply(
        x,
        megatron.ScaledMaskedSoftmax.apply(x.detach(), mask, scale),
        _gradient(x, mask, scale) / scale,
    ),
}


def _gradient(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    x = x.detach().requires_grad_()
    return grad(megatron.ScaledMaskedSoftmax.apply(x, mask, scale), x, _faulty_inputs()[1])[0]


def _faulty_inputs() -> tuple[Tensor, Tensor, Tensor]:
    random = generator(15)
    x, g = (torch.randn(2, 2, 4, 128, 256, generator=random) * 2).half()
    return x, g, torch.rand(2, 1, 128, 256, generator=random) < 0.5


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_comparison_sees(fault: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    x, g, mask = _faulty_inputs()
    scale = 0.70710678
    good = megatron.ScaledMaskedSoftmax.apply
    check_softmax(lambda x: good(x, mask, scale), x, mask, scale, g)
    with pytest.raises(AssertionError, match=r"off by|any\(\)|not"):
        check_softmax(lambda x: fault(x, mask, scale), x, mask, scale, g)


def test_the_comparison_sees_a_dropped_causal_rule() -> None:
    x, g = torch.randn(2, 1, 2, 16, 16, generator=generator(16)).half()
    check_softmax(
        lambda x: megatron.ScaledUpperTriangMaskedSoftmax.apply(x, 1.0),
        x,
        above_diagonal(16, 16),
        1.0,
        g,
    )
    with pytest.raises(AssertionError, match="off by"):
        check_softmax(
            lambda x: megatron.ScaledSoftmax.apply(x, 1.0), x, above_diagonal(16, 16), 1.0, g
        )
