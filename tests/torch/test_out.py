"""Results written into existing memory: out= and in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import grad

from bridge.torch import bias_gelu, bias_gelu_, scaled_softmax, scaled_softmax_backward
from tests.torch.expected import DTYPES, FORMS, assert_close, assert_same_bits, gelu


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_out(draw: Any, dtype: torch.dtype, form: str) -> None:
    x, bias = draw(5, 7, dtype=dtype), draw(7, dtype=dtype)
    expected = bias_gelu(x, bias, approximate=form)
    wide = torch.full((5, 20), 7.0, dtype=dtype)
    for out in (torch.empty_like(x), wide[:, 3:10], torch.empty(10, 7, dtype=dtype)[::2]):
        version = out._version
        assert bias_gelu(x, bias, approximate=form, out=out) is out
        assert_same_bits(out, expected)
        assert out._version > version
    assert (wide[:, :3] == 7).all()
    assert (wide[:, 10:] == 7).all()


def test_out_is_x(draw: Any) -> None:
    x, bias = draw(5, 7), draw(7)
    expected = bias_gelu(x, bias)
    assert bias_gelu(x, bias, out=x) is x
    assert_same_bits(x, expected)


def test_out_beside_x_in_one_matrix(draw: Any) -> None:
    """Two column ranges interleave in memory and share no element."""
    both, bias = draw(5, 14), draw(7)
    x, out = both.chunk(2, -1)
    expected = bias_gelu(x, bias)
    assert_same_bits(bias_gelu(x, bias, out=out), expected)


BAD_OUTS = {
    "dtype": (lambda x: torch.empty(5, 7), TypeError, "out has dtype float32, expected float64"),
    "shape": (
        lambda x: x.new_empty(5, 8),
        ValueError,
        r"out has shape \[5, 8\], expected \[5, 7\]",
    ),
    "type": (lambda x: x.numpy(), TypeError, "out has type ndarray, expected torch.Tensor"),
    "device": (
        lambda x: torch.empty(5, 7, dtype=torch.float64, device="meta"),
        ValueError,
        "out is on meta, expected cpu, where x is",
    ),
    "sparse": (lambda x: x.to_sparse(), TypeError, "out is sparse_coo, expected a dense tensor"),
    "expanded": (
        lambda x: x.new_empty(7).expand(5, 7),
        ValueError,
        "out has elements that share memory",
    ),
    "shifted": (lambda x: x.view(-1).as_strided((5, 7), (6, 1)), ValueError, "memory"),
    "one row on": (lambda x: x._base[1:], ValueError, "out overlaps an operand in memory"),
    "negative": (
        lambda x: torch.complex(x, x).conj().imag,
        ValueError,
        "out has its negative bit set",
    ),
}


@pytest.mark.parametrize("what", BAD_OUTS)
def test_bad_out(draw: Any, what: str) -> None:
    whole, bias = draw(6, 7), draw(7)
    x = whole[:5]
    before = whole.clone()
    make, error, message = BAD_OUTS[what]
    with pytest.raises(error, match=f"^bias_gelu: .*{message}"):
        bias_gelu(x, bias, out=make(x))
    assert torch.equal(whole, before)


def test_out_whose_columns_lie_apart(draw: Any) -> None:
    x, bias = draw(5, 7), draw(7)
    out = x.new_zeros(7, 10)[:, ::2].mT
    assert bias_gelu(x, bias, out=out) is out
    assert_same_bits(out, bias_gelu(x, bias))


def test_out_over_bias(draw: Any) -> None:
    x = draw(5, 7)
    with pytest.raises(ValueError, match="overlaps an operand in memory"):
        bias_gelu(x, x[2], out=x)


def test_out_that_overlaps_is_told_in_the_words_of_the_caller(draw: Any) -> None:
    x = draw(5, 7)
    with pytest.raises(ValueError, match=r"^scaled_softmax: out overlaps an operand in memory"):
        scaled_softmax(x[:3], out=x[1:4])
    with pytest.raises(ValueError, match=r"^scaled_softmax_backward: out overlaps an operand"):
        scaled_softmax_backward(x[:3], x[:3], out=x[1:4])
    h = draw(5, 7, grad=True) * 1.0
    with pytest.raises(ValueError, match=r"^bias_gelu_: x overlaps an operand in memory"):
        bias_gelu_(h, h[2])


def test_out_and_autograd(draw: Any) -> None:
    x, bias, out = draw(5, 7, grad=True), draw(7), torch.empty(5, 7, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="does not support automatic differentiation"):
        bias_gelu(x, bias, out=out)
    with pytest.raises(RuntimeError, match="does not support automatic differentiation"):
        bias_gelu(x.detach(), bias, out=out.requires_grad_())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), bias.expand(5, 7))
        with pytest.raises(RuntimeError, match="does not support automatic differentiation"):
            bias_gelu(dual, bias, out=torch.empty_like(x))
    with torch.no_grad():
        assert_close(bias_gelu(x, bias, out=out), gelu(x, bias))


def test_out_counts_as_a_change(draw: Any) -> None:
    x, y = draw(5, 7, grad=True), draw(5, 7)
    z = (x * y).sum()
    bias_gelu(x.detach(), out=y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("form", FORMS)
def test_in_place(draw: Any, form: str) -> None:
    x, bias, g = draw(5, 7, grad=True), draw(7, grad=True), draw(5, 7)
    h = x * 1.0
    assert bias_gelu_(h, bias, approximate=form) is h
    assert_same_bits(h, bias_gelu(x, bias, approximate=form))
    dx, dbias = grad(h, (x, bias), g, create_graph=True)
    expected = grad(bias_gelu(x, bias, approximate=form), (x, bias), g)
    assert_same_bits(dx, expected[0])
    assert_same_bits(dbias, expected[1])
    (second,) = grad(dx, x, g)
    assert_close(second, gelu(x, bias, form, 2, g, g))


def test_in_place_without_gradient(draw: Any) -> None:
    x, bias = draw(5, 7), draw(7)
    expected = bias_gelu(x, bias)
    address, version = x.data_ptr(), x._version
    bias_gelu_(x, bias)
    assert (x.data_ptr(), x._version > version) == (address, True)
    assert_same_bits(x, expected)
    leaf = draw(5, 7, grad=True)
    expected = bias_gelu(leaf.detach(), bias)
    with torch.no_grad():
        bias_gelu_(leaf, bias)
    assert_same_bits(leaf, expected)


def test_in_place_where_only_the_bias_is_followed(draw: Any) -> None:
    x, bias, g = draw(5, 7), draw(7, grad=True), draw(5, 7)
    before = x.clone()
    bias_gelu_(x, bias).backward(g)
    assert_close(bias.grad, gelu(before, bias, "tanh", 1, g).sum(0))


def test_in_place_on_views(draw: Any) -> None:
    x, g = draw(5, 14, grad=True), draw(5, 14)
    h = x * 1.0
    bias_gelu_(h[:, 3:10])
    expected = x.detach().clone()
    expected[:, 3:10] = bias_gelu(x.detach()[:, 3:10])
    assert_same_bits(h, expected)
    (dx,) = grad(h, x, g)
    slope = torch.ones_like(x)
    slope[:, 3:10] = gelu(x[:, 3:10], None, "tanh", 1)
    assert_close(dx, slope * g)
    turned = draw(4, 6).mT
    expected = bias_gelu(turned)
    bias_gelu_(turned)
    assert_same_bits(turned, expected)


def test_in_place_guards(draw: Any) -> None:
    leaf = draw(5, 7, grad=True)
    before = leaf.detach().clone()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        bias_gelu_(leaf)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        bias_gelu_(leaf[1:])
    part = (leaf * 1.0).unbind(0)[0]
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        bias_gelu_(part)
    assert torch.equal(leaf, before)
    with pytest.raises(ValueError, match=r"^bias_gelu_: x has elements that share memory"):
        bias_gelu_(draw(7).expand(5, 7))
    with pytest.raises(TypeError, match="the result has dtype float32 and does not fit into x"):
        bias_gelu_(draw(5, 7, dtype=torch.bfloat16), draw(7, dtype=torch.float32))
    h = leaf * 1.0
    z = (h * h).sum()
    bias_gelu_(h)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_in_place_on_inference_tensors(draw: Any) -> None:
    with torch.inference_mode():
        x = draw(5, 7) * 1.0
        expected = bias_gelu(x)
        assert_same_bits(bias_gelu_(x), expected)
    with pytest.raises(RuntimeError, match="outside InferenceMode is not allowed"):
        bias_gelu_(x)
    assert_same_bits(x, expected)


def test_in_place_under_transforms(draw: Any) -> None:
    x, bias, g, t = draw(6, 5, 7), draw(7), draw(6, 5, 7), draw(6, 5, 7)

    def function(x: Any) -> Any:
        return bias_gelu_(x * 1.0, bias)

    assert_same_bits(torch.func.vmap(function)(x), bias_gelu(x, bias))
    assert_close(torch.func.jvp(function, (x,), (t,))[1], gelu(x, bias, "tanh", 1, t))
    assert_close(torch.func.vjp(function, x)[1](g)[0], gelu(x, bias, "tanh", 1, g))
    with torch.autograd.forward_ad.dual_level():
        dual = function(torch.autograd.forward_ad.make_dual(x, t))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert_close(tangent, gelu(x, bias, "tanh", 1, t))
