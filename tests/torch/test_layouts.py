"""Any strides and any shape: the memory layout of a tensor changes no value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import grad

from bridge.torch import (
    bias_dropout_add,
    bias_gelu,
    bias_gelu_,
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
)
from bridge.torch._adapter import kernels as _kernels
from tests.torch.cases import CASES
from tests.torch.expected import assert_close, assert_same_bits, gelu

LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "columns sliced": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "every other column": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "rows reversed in memory": lambda t: t.flip(0).contiguous().flip(0),
    "every third row": lambda t: t.repeat_interleave(3, 0)[::3],
    "permuted": lambda t: t.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "misaligned": lambda t: torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_layouts_of_every_operand(draw: Any, layout: str, dtype: torch.dtype) -> None:
    x, bias, g = draw(4, 6, 5, dtype=dtype), draw(5, dtype=dtype), draw(4, 6, 5, dtype=dtype)
    plain = self_and_gradients(x, bias, g)
    assert_close(plain[0], gelu(x, bias))
    change = LAYOUTS[layout]
    for same, other in zip(plain, self_and_gradients(change(x), bias, change(g)), strict=True):
        assert_same_bits(other, same)
    strided_bias = torch.stack([bias, -bias], 1)[:, 0]
    for same, other in zip(plain, self_and_gradients(x, strided_bias, g), strict=True):
        assert_same_bits(other, same)


def self_and_gradients(x: Any, bias: Any, g: Any) -> Any:
    x, bias = x.detach().requires_grad_(), bias.detach().requires_grad_()
    y = bias_gelu(x, bias)
    return y, *grad(y, (x, bias), g)


def test_channels_last(draw: Any) -> None:
    x = draw(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert_close(bias_gelu(x, None), gelu(x, None))


def test_expanded_operands_and_cotangents(draw: Any) -> None:
    x, bias = draw(1, 3, grad=True), draw(1, grad=True)
    y = bias_gelu(x.expand(4, 3), bias.expand(3))
    y.sum().backward()  # a cotangent whose strides are all zero
    expected = gelu(x.expand(4, 3), bias.expand(3), "tanh", 1)
    assert_close(x.grad, expected.sum(0, keepdim=True))
    assert_close(bias.grad, expected.sum().reshape(1))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (1,), (1, 1), (5, 1), (1, 7)])
def test_empty_and_single(draw: Any, shape: tuple[int, ...]) -> None:
    x, bias, g = draw(*shape, grad=True), draw(shape[-1], grad=True), draw(*shape)
    y = bias_gelu(x, bias)
    dx, dbias = grad(y, (x, bias), g)
    assert y.shape == dx.shape == x.shape
    assert dbias.shape == bias.shape
    if x.numel():
        assert_close(y, gelu(x, bias), ulps=256)  # few values, perhaps all near 0
        assert_close(dbias, gelu(x, bias, "tanh", 1, g).reshape(-1, shape[-1]).sum(0), ulps=256)
    else:
        assert torch.count_nonzero(dbias) == 0


def test_zero_dimensional(draw: Any) -> None:
    x = draw(grad=True)
    y = bias_gelu(x)
    assert y.shape == ()
    (first,) = grad(y, x, create_graph=True)
    (second,) = grad(first, x)
    assert_close(y, gelu(x, None))
    assert_close(second, gelu(x, None, "tanh", 2))


def test_negative_bit_is_seen(draw: Any) -> None:
    """The imaginary part of a conjugate is a float tensor whose memory has the opposite sign."""
    z = torch.complex(draw(4, 1), draw(4, 1))
    for x in (z.conj().imag, z.conj().imag[0, 0], z.conj().imag[0]):
        assert x.is_neg()
        assert_close(bias_gelu(x), gelu(x.resolve_neg(), None))
    x, bias = draw(2, 3), torch.complex(draw(3), draw(3)).conj().imag
    assert bias.is_neg()
    assert_close(bias_gelu(x, bias), gelu(x, bias.resolve_neg()))


def lazily_negative(t: Any) -> Any:
    """Returns an equal contiguous tensor whose memory has the opposite sign."""
    view = torch._neg_view(-t.detach())
    assert view.is_neg()
    assert view.is_contiguous()
    return view.requires_grad_(t.requires_grad)


@pytest.mark.parametrize("name", CASES)
def test_negative_bit_of_every_operand(draw: Any, name: str) -> None:
    """Each operand alone has the bit, and the cotangent, in a first and in a later call."""
    case = CASES[name]
    inputs = case.inputs(draw, grad=True)
    expected = case.function(*inputs)
    g = draw(*expected.shape)
    gradients = grad(expected, inputs, g)
    for i in range(len(inputs)):
        changed = [lazily_negative(t) if i == j else t for j, t in enumerate(inputs)]
        y = case.function(*changed)
        assert_same_bits(y, expected)
        for one, other in zip(grad(y, changed, lazily_negative(g)), gradients, strict=True):
            assert_same_bits(one.resolve_neg(), other)
        with torch.no_grad():
            assert_same_bits(case.function(*changed), expected)


def test_negative_bit_of_a_seed(draw: Any) -> None:
    x, seed = draw(4, 6), torch.tensor(1234)
    expected = bias_dropout_add(x, p=0.5, seed=seed)
    for _ in range(2):
        assert_same_bits(bias_dropout_add(x, p=0.5, seed=torch._neg_view(-seed)), expected)


def test_negative_bit_of_a_mask(draw: Any) -> None:
    """A mask of bytes hides the same elements with either sign."""
    x, mask = draw(4, 6), (draw(4, 6) > 0).byte() * 3
    expected = scaled_masked_softmax(x, mask)
    for _ in range(2):
        assert_same_bits(scaled_masked_softmax(x, torch._neg_view(mask)), expected)


def test_negative_bit_of_a_destination(draw: Any) -> None:
    x, bias = draw(4, 6), draw(6)
    expected, out = bias_gelu(x, bias), torch.zeros(4, 6, dtype=torch.float64)
    assert_same_bits(bias_gelu(x, bias, out=out), expected)
    with pytest.raises(ValueError, match="out has its negative bit set"):
        bias_gelu(x, bias, out=torch._neg_view(out))
    assert_same_bits(out, expected)
    assert_same_bits(bias_gelu(lazily_negative(x), bias, out=out.zero_()), expected)
    changed = lazily_negative(x)
    bias_gelu_(changed, bias)
    assert_same_bits(changed.resolve_neg(), expected)


def test_sliced_rows_are_not_copied(draw: Any, monkeypatch: Any) -> None:
    copied: list[Any] = []
    for name in ("_compact", "in_memory"):
        original = getattr(_kernels, name)

        def spy(tensor: Any, role: Any, original: Any = original) -> Any:
            result = original(tensor, role)
            if result.data_ptr() != tensor.data_ptr():
                copied.append(tensor)
            return result

        monkeypatch.setattr(_kernels, name, spy)
    x = draw(6, 8)[:, 2:5]
    assert_close(bias_gelu(x), gelu(x, None))
    assert not copied


def test_results_are_ordinary_tensors(draw: Any) -> None:
    """Results are contiguous, own their memory, and can be resized: they are torch's own memory."""
    y = bias_gelu(draw(4, 6).mT, draw(4))
    assert y.is_contiguous()
    assert y._base is None
    y.resize_(9, 9)


def test_columns_of_an_expanded_mask_lie_apart(draw: Any) -> None:
    x, mask = draw(2, 3, 8, 6), draw(2, 1, 6, 8).mT > 0.4
    y = scaled_masked_softmax(x, mask.expand(2, 3, 8, 6), 0.5)
    assert_close(y, torch.softmax((0.5 * x).masked_fill(mask, -torch.inf), -1).nan_to_num(0.0))
    assert_same_bits(y, scaled_masked_softmax(x, mask.contiguous(), 0.5))


@pytest.mark.parametrize("first", [0, 1])
def test_more_dimensions_than_the_kernels_walk(draw: Any, first: int) -> None:
    """Every second dimension of the mask repeats, so that no two can be merged."""
    x = draw(*(2,) * 12, 3)
    mask = draw(*(1 if i % 2 == first else n for i, n in enumerate(x.shape))) > 0.4
    whole = mask.expand(x.shape).contiguous()
    assert_same_bits(scaled_masked_softmax(x, mask), scaled_masked_softmax(x, whole))
    apart = x.permute(*range(11, -1, -1), 12)
    assert_same_bits(scaled_causal_softmax(apart), scaled_causal_softmax(apart.contiguous()))


def test_out_of_more_dimensions_than_the_kernels_walk(draw: Any) -> None:
    x = draw(*(2,) * 9, 3)
    out = torch.empty_like(x).permute(*range(8, -1, -1), 9)
    scaled_softmax(x, out=out)
    assert_same_bits(out, scaled_softmax(x))
