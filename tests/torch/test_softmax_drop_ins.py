"""bridge.torch.megatron: the softmax Functions and FusedScaleMaskSoftmax, against float64."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck

from bridge.torch import megatron
from bridge.torch.megatron import FusedScaleMaskSoftmax
from tests.torch.attention import above_diagonal, outside_window, softmax64
from tests.torch.expected import DTYPES, assert_close, assert_same_bits


class AttnMaskType(enum.Enum):
    """The enumeration in code that uses the originals, which is not installed here."""

    padding = 1
    causal = 2
    no_mask = 3


def never_called(*_: Any) -> Tensor:
    raise AssertionError("mask_func was called")


def module(mask_type: Any = "padding", scale: Any = 0.5, **changes: Any) -> FusedScaleMaskSoftmax:
    arguments: dict[str, Any] = {
        "input_in_fp16": False,
        "input_in_bf16": False,
        "attn_mask_type": mask_type,
        "scaled_masked_softmax_fusion": True,
        "mask_func": never_called,
        "softmax_in_fp32": True,
        "scale": scale,
    }
    return FusedScaleMaskSoftmax(**{**arguments, **changes})


def some_mask(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
    """Returns a mask that hides about a third, and the whole first row if there are several."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.35
    mask[..., : shape[-2] // 2 and 1, :] = True
    return (mask.to(dtype) * 3) if dtype != torch.bool else mask


def check(function: Any, x: Tensor, hidden: Tensor | None, scale: float | None) -> None:
    """Checks values and the gradient of a random cotangent, and that neither input is written."""
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(3)).to(x.dtype)
    before = x.detach().clone(), g.clone()
    y = function(x)
    reference = softmax64(x, hidden, scale)
    assert y.dtype == x.dtype
    assert_close(y, reference, ulps=8)
    (dx,), (expected,) = grad(y, x, g), grad(reference, x, g)
    assert_close(dx, expected, ulps=32)
    if hidden is not None:
        assert not y[hidden.bool().expand(y.shape)].any()
        assert not dx[hidden.bool().expand(y.shape)].any()
    assert_same_bits(x, before[0])
    assert_same_bits(g, before[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.3, -2.0])
class TestFunctions:
    def test_scaled(self, draw: Any, dtype: Any, scale: float) -> None:
        x = draw(2, 3, 5, 7, dtype=dtype, grad=True)
        check(lambda x: megatron.ScaledSoftmax.apply(x, scale), x, None, scale)

    @pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8], ids=str)
    @pytest.mark.parametrize("name", ["ScaledMaskedSoftmax", "GenericScaledMaskedSoftmax"])
    def test_masked(self, draw: Any, dtype: Any, scale: float, name: str, mask_dtype: Any) -> None:
        x, mask = draw(2, 3, 5, 7, dtype=dtype, grad=True), some_mask(2, 1, 5, 7, dtype=mask_dtype)
        check(lambda x: getattr(megatron, name).apply(x, mask, scale), x, mask, scale)

    @pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 8), (8, 3)])
    def test_upper_triangle(
        self, draw: Any, dtype: Any, scale: float, queries: int, keys: int
    ) -> None:
        x = draw(4, queries, keys, dtype=dtype, grad=True)
        apply = megatron.ScaledUpperTriangMaskedSoftmax.apply
        check(lambda x: apply(x, scale), x, above_diagonal(queries, keys), scale)


MASK_TYPES = ["padding", "causal", "no_mask", "padding_causal", "arbitrary", "causal_bottom_right"]


@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("mask_shape", [None, (2, 1, 6, 8), (1, 1, 6, 8), (2, 1, 1, 8), (6, 1)])
@pytest.mark.parametrize("window", [None, (2, 0), (1, 1), (-1, 0), (2, -1), (-1, -1)])
@pytest.mark.parametrize("offset", [False, True])
def test_mask_causal_rule_window_and_offset_apply_at_once(
    draw: Any, mask_type: str, mask_shape: Any, window: Any, offset: bool
) -> None:
    x = draw(2, 3, 6, 8, grad=True)
    hidden = torch.zeros(2, 1, 6, 8, dtype=torch.bool)
    mask = None if mask_shape is None else some_mask(*mask_shape)
    if mask is not None:
        hidden = hidden | mask
    if "causal" in mask_type:
        hidden = hidden | above_diagonal(6, 8)
    if window is not None:
        left, right = (99 if size == -1 else size for size in window)
        hidden = hidden | outside_window(6, 8, left, right)
    layer = module(mask_type, window_size=window)
    if not offset:
        check(lambda x: layer(x, mask), x, hidden, 0.5)
        return
    logits = draw(3, grad=True)
    wide = torch.cat([x * 0.5, logits.reshape(1, 3, 1, 1).expand(2, 3, 6, 1)], -1)
    shown = torch.zeros(2, 1, 6, 1, dtype=torch.bool)
    reference = softmax64(wide, torch.cat([hidden, shown], -1))[..., :-1]
    y, g = layer(x, mask, logits), draw(2, 3, 6, 8)
    assert_close(y, reference, ulps=8)
    for ours, theirs in zip(grad(y, (x, logits), g), grad(reference, (x, logits), g), strict=True):
        assert_close(ours, theirs, ulps=256)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mask_type", ["padding", "causal"])
def test_dtypes_of_the_module(draw: Any, dtype: torch.dtype, mask_type: str) -> None:
    """The result has the dtype of the scores, whatever the flags say."""
    x, mask = draw(2, 3, 6, 6, dtype=dtype, grad=True), some_mask(2, 1, 6, 6)
    hidden = mask | above_diagonal(6, 6) if mask_type == "causal" else mask
    for half, bfloat in ((False, False), (True, False), (False, True)):
        for fusion in (True, False):
            layer = module(
                mask_type,
                input_in_fp16=half,
                input_in_bf16=bfloat,
                scaled_masked_softmax_fusion=fusion,
            )
            check(lambda x, layer=layer: layer(x, mask), x, hidden, 0.5)
    logits = draw(1, dtype=dtype)
    y = module(mask_type, scale=0.3)(x, mask, logits)
    assert y.dtype == dtype
    wide = torch.cat([x.double() * 0.3, logits.double().expand(2, 3, 6, 1)], -1)
    padded = torch.cat([hidden, torch.zeros(2, 1, 6, 1, dtype=torch.bool)], -1)
    expected = softmax64(wide, padded)[..., :-1].detach()
    roundings = 1.01 if dtype.itemsize == 2 else 32.0  # y is rounded once, scale·x is not
    tolerance = roundings * torch.finfo(dtype).eps / 2
    torch.testing.assert_close(y.detach().double(), expected, rtol=tolerance, atol=2.0**-25)


def test_what_hidden_scores_hold_does_not_matter(draw: Any) -> None:
    clean, mask = draw(2, 3, 6, 6), some_mask(2, 1, 6, 6)
    dirty = clean.clone()
    dirty[mask.expand(dirty.shape)] = torch.tensor(torch.nan)
    for layer, arguments in (
        (module(), ()),
        (module("causal"), ()),
        (module(window_size=(3, 3)), ()),
        (module(), (draw(3),)),
    ):
        assert_same_bits(layer(dirty, mask, *arguments), layer(clean, mask, *arguments))


def test_a_row_with_nothing_to_see(draw: Any) -> None:
    x = draw(2, 3, 4, 4, grad=True)
    everything = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    y = module()(x, everything)
    (dx,) = grad(y, x, draw(2, 3, 4, 4))
    assert not y.any()
    assert not dx.any()


def test_mask_types_by_enum_name_and_number(draw: Any) -> None:
    x = draw(1, 2, 4, 4)
    for name, number, member in (
        ("padding", 1, AttnMaskType.padding),
        ("causal", 2, AttnMaskType.causal),
        ("no_mask", 3, AttnMaskType.no_mask),
    ):
        expected = module(name)(x, None)
        for given in (number, member):
            layer = module(given)
            assert layer.attn_mask_type is given
            assert_same_bits(layer(x, None), expected)
    assert not torch.equal(module(1)(x, None), module(2)(x, None))
    with pytest.raises(
        ValueError, match="attn_mask_type is 'upside-down', expected one of padding"
    ):
        module("upside-down")
    with pytest.raises(ValueError, match="attn_mask_type is 9"):
        module(9)


def test_scale_none_is_one(draw: Any) -> None:
    x = draw(1, 2, 4, 4)
    for in_fp32 in (True, False):
        layer = module(scale=None, softmax_in_fp32=in_fp32)
        assert_same_bits(layer(x, None), module(scale=1.0)(x, None))


def test_constructor_errors() -> None:
    with pytest.raises(AssertionError, match="input_in_fp16 and input_in_bf16 are both true"):
        module(input_in_fp16=True, input_in_bf16=True)
    with pytest.raises(AssertionError, match=r"scale is 0\.5 without softmax_in_fp32"):
        module(softmax_in_fp32=False)
    for window in (3, (1,), (1, -2), (1.0, 0), "ab"):
        with pytest.raises(ValueError, match=r"window_size is .*, expected"):
            module(window_size=window)


def test_call_errors(draw: Any) -> None:
    x = draw(2, 3, 4, 4)
    layers = [module(), module("causal"), module(window_size=(1, 1))]
    for layer in layers:
        with pytest.raises(AssertionError, match=r"shape \[3, 4, 4\], expected \[b, np, sq, sk\]"):
            layer(x[0], None)
        with pytest.raises(TypeError, match="mask has dtype float32, expected bool or uint8"):
            layer(x, torch.zeros(2, 1, 4, 4))
        with pytest.raises(ValueError, match="does not broadcast to x"):
            layer(x, some_mask(2, 1, 4, 5))
        with pytest.raises(TypeError, match="has dtype int64"):
            layer(x.long(), None)
    with pytest.raises(TypeError, match="mask has dtype float32"):
        module()(x, torch.zeros(2, 1, 4, 4), draw(3))


def test_as_the_original_module() -> None:
    layer = module("causal", input_in_fp16=True)
    for sizes in ((1, 1, 1, 1), (3, 5, 7, 17), (4, 4, 4096, 100_000)):
        assert layer.is_kernel_available(None, *sizes) is True
        b, np, sq, sk = sizes
        per_block = layer.get_batch_per_block(sq, sk, b, np)
        assert sq % per_block == 0
        assert (b * np) % per_block == 0
    assert layer.input_in_float16
    assert layer.mask_func is never_called
    assert (layer.scale, layer.window_size, layer.softmax_in_fp32) == (0.5, None, True)
    assert layer.scaled_masked_softmax_fusion
    assert not layer.state_dict()
    x = torch.zeros(1, 1, 2, 2)
    layer.attn_mask_type, layer.scale = "padding", None
    assert layer(x, None).tolist() == [[[[0.5, 0.5], [0.5, 0.5]]]]
    layer.window_size = (0, 0)
    assert layer(x, None).tolist() == [[[[1.0, 0.0], [0.0, 1.0]]]]
    assert isinstance(layer.half(), torch.nn.Module)


def test_the_originals_other_methods(draw: Any) -> None:
    x, mask, logits = draw(2, 3, 4, 4), some_mask(2, 1, 4, 4), draw(3)
    layer = module("causal")
    assert_same_bits(layer.forward_fused_softmax(x, mask), layer(x, mask))
    assert_same_bits(layer.forward_torch_softmax(x, mask), layer(x, mask))
    assert_same_bits(layer.forward_torch_softmax(x, mask, logits), layer(x, mask, logits))


def test_functions_without_limits(draw: Any) -> None:
    """One dimension, no batch, odd lengths: cases that no original accepts."""
    x = draw(17)
    assert_close(megatron.ScaledSoftmax.apply(x, 2.0), softmax64(x, None, 2.0))
    mask = some_mask(1, 17)[0]
    mask[3] = False
    assert_close(megatron.ScaledMaskedSoftmax.apply(x, mask, 2.0), softmax64(x, mask, 2.0))
    x = draw(3, 5)
    apply = megatron.ScaledUpperTriangMaskedSoftmax.apply
    assert_close(apply(x, 1.0), softmax64(x, above_diagonal(3, 5)))


def test_derivatives_to_second_order(draw: Any) -> None:
    x, mask, logits = draw(1, 2, 3, 3, grad=True), some_mask(1, 1, 3, 3), draw(2, grad=True)
    for mask_type in ("padding", "causal"):
        layer = module(mask_type)
        assert gradcheck(lambda x, layer=layer: layer(x, mask), (x,), check_forward_ad=True)
        assert gradcheck(layer, (x, mask, logits), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda x, layer=layer: layer(x, mask), (x,))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("mask_type", ["padding", "causal", AttnMaskType.causal], ids=str)
def test_under_compile(draw: Any, mask_type: Any) -> None:
    x, mask, g = draw(2, 3, 6, 8, grad=True), some_mask(2, 1, 6, 8), draw(2, 3, 6, 8)
    for changes in ({}, {"window_size": (2, 1)}):
        layer = module(mask_type, **changes)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for arguments in ((x, mask), (x, None)):
            one, other = compiled(*arguments), layer(*arguments)
            assert_same_bits(one, other)
            assert_same_bits(grad(one, x, g)[0], grad(other, x, g)[0])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scales_that_change_between_compilations(draw: Any) -> None:
    x = draw(2, 3, 4)
    apply = megatron.ScaledSoftmax.apply
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    for scale in (0.5, 0.75, 2.0):
        assert_same_bits(compiled(x, scale), apply(x, scale))


@pytest.mark.parametrize("mask_type", ["padding", "causal"])
@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 2, 2, dtype=torch.bool)])
def test_an_absent_x_is_named(mask_type: str, mask: Any) -> None:
    with pytest.raises(TypeError, match="x has type NoneType"):
        module(mask_type)(None, mask)
