"""Derivatives of every order and mode, as requested by autograd."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck

import bridge.torch as bt
from bridge.ops import PROGRAM, Role
from bridge.ops.splitting import wanted_roles
from bridge.torch import (
    bias_gelu,
    cross_entropy,
    linear_cross_entropy,
    log_softmax,
    rms_norm,
    scaled_softmax,
    swiglu,
)
from bridge.torch._ops.bias_gelu import _bias_gelu
from tests.torch.expected import DTYPES, FORMS, assert_close, assert_same_bits, gelu


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_gradcheck_in_every_mode(draw: Any, form: str, with_bias: bool) -> None:
    inputs = (draw(3, 5, grad=True), draw(5, grad=True))[: 1 + with_bias]

    def function(*inputs: Any) -> Any:
        return bias_gelu(*inputs, approximate=form)

    assert gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_backward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    assert gradgradcheck(
        function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_first_derivatives(draw: Any, dtype: torch.dtype, form: str) -> None:
    x, bias, g = draw(37, 21, dtype=dtype), draw(21, dtype=dtype), draw(37, 21, dtype=dtype)
    x.requires_grad_()
    bias.requires_grad_()
    dx, dbias = grad(bias_gelu(x, bias, approximate=form), (x, bias), g)
    expected = gelu(x, bias, form, 1, g)
    assert_close(dx, expected)
    assert_close(dbias, expected.sum(0), ulps=8)


def test_triple_backward(draw: Any) -> None:
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(4, 3)
    (first,) = grad(bias_gelu(x, bias), x, g, create_graph=True)
    (second,) = grad(first, x, g, create_graph=True)
    third_x, third_bias = grad(second, (x, bias), g)
    assert_close(first, gelu(x, bias, "tanh", 1, g))
    assert_close(second, gelu(x, bias, "tanh", 2, g, g))
    expected = gelu(x, bias, "tanh", 3, g, g, g)
    assert_close(third_x, expected, ulps=64)
    assert_close(third_bias, expected.sum(0), ulps=64)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_only_what_is_needed_is_computed(draw: Any, wanted: tuple[bool, bool]) -> None:
    x, bias = draw(4, 3, grad=wanted[0]), draw(3, grad=wanted[1])
    y = bias_gelu(x, bias)
    plan = _bias_gelu.recorded((x, bias), "tanh")
    y.backward(draw(4, 3))
    step = plan.vjp_steps(wanted, (True,))
    computed = wanted_roles(PROGRAM, step.plan.params)
    assert (Role.FULL in computed, Role.ROW in computed) == wanted
    assert ((x.grad is not None), (bias.grad is not None)) == wanted


def test_unused_output_of_the_double_backward(draw: Any) -> None:
    """Only one of two gradients is used further, so the cotangent of the other is None."""
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(4, 3)
    _, dbias = grad(bias_gelu(x, bias), (x, bias), g, create_graph=True)
    v = draw(3)
    (mixed,) = grad(dbias, x, v)
    assert_close(mixed, gelu(x, bias, "tanh", 2, g, v.expand(4, 3)))


def test_retain_graph_and_freeing(draw: Any) -> None:
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(4, 3)
    y = bias_gelu(x, bias)
    first = grad(y, (x, bias), g, retain_graph=True)
    second = grad(y, (x, bias), g)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        grad(y, (x, bias), g)


def test_stale_saved_tensor_raises(draw: Any) -> None:
    x, bias = draw(4, 3, grad=True), draw(3, grad=True)
    h = x * 1.0
    y = bias_gelu(h, bias)
    h.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(draw(4, 3))


def test_dual_tensors(draw: Any) -> None:
    x, bias, t, t_bias = draw(4, 3), draw(3), draw(4, 3), draw(3)
    with forward_ad.dual_level():
        y = bias_gelu(forward_ad.make_dual(x, t), forward_ad.make_dual(bias, t_bias))
        both = forward_ad.unpack_dual(y).tangent
        alone = forward_ad.unpack_dual(bias_gelu(x, forward_ad.make_dual(bias, t_bias))).tangent
        none = forward_ad.unpack_dual(bias_gelu(x, bias)).tangent
    assert_close(both, gelu(x, bias, "tanh", 1, t + t_bias))
    assert_close(alone, gelu(x, bias, "tanh", 1, t_bias.expand(4, 3)))
    assert none is None


def test_forward_over_reverse(draw: Any) -> None:
    x, bias, g, t = draw(4, 3, grad=True), draw(3), draw(4, 3), draw(4, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        (dx,) = grad(bias_gelu(dual, bias), dual, g)
        tangent = forward_ad.unpack_dual(dx).tangent
    assert_close(tangent, gelu(x, bias, "tanh", 2, g, t))


def test_batched_gradients(draw: Any) -> None:
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(6, 4, 3)
    dx, dbias = grad(bias_gelu(x, bias), (x, bias), g, is_grads_batched=True)
    expected = torch.stack([gelu(x, bias, "tanh", 1, one) for one in g])
    assert_close(dx, expected)
    assert_close(dbias, expected.sum(1), ulps=8)


def test_mixed_dtypes(draw: Any) -> None:
    """The result promotes like x + bias; each gradient has its own input's dtype."""
    for first in DTYPES:
        for second in DTYPES:
            x, bias = draw(9, 5, dtype=first, grad=True), draw(5, dtype=second, grad=True)
            y = bias_gelu(x, bias)
            assert y.dtype == torch.promote_types(first, second)
            g = draw(9, 5, dtype=y.dtype)
            dx, dbias = grad(y, (x, bias), g)
            assert (dx.dtype, dbias.dtype) == (first, second)
            expected = gelu(x, bias, "tanh", 1, g)
            assert_close(y, gelu(x, bias))
            assert_close(dx, expected)
            assert_close(dbias, expected.sum(0), ulps=8)


@pytest.mark.parametrize("is_profiled", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        log_softmax,
        scaled_softmax,
        swiglu,
        rms_norm,
        bias_gelu,
        lambda x: bt.linear(x, x),
        lambda x: bt.matmul(x, x.mT @ x),
    ],
)
def test_sparse_cotangents(draw: Any, function: Any, is_profiled: bool) -> None:
    """torch.gather can have sparse gradients. Under a profiler no C++ node records the call."""
    x, places = draw(4, 8, grad=True), torch.tensor([[1], [3], [0], [2]])
    with torch.profiler.profile() if is_profiled else contextlib.nullcontext():
        y = function(x)
        (expected,) = grad(y.gather(1, places).sum(), x, create_graph=True)
        (found,) = grad(y.gather(1, places, sparse_grad=True).sum(), x, create_graph=True)
        assert_same_bits(found, expected)
        second = [grad(each.square().sum(), x, retain_graph=True)[0] for each in (found, expected)]
        assert_close(*second)


def test_sparse_cotangents_of_convolutions(draw: Any) -> None:
    x, w = draw(2, 3, 9, grad=True), draw(4, 3, 2, grad=True)
    places = torch.tensor([1, 0, 3, 7])[:, None].expand(2, 4, 1)

    def gradients(is_sparse: bool) -> Any:
        y = bt.conv1d(x, w)
        return grad(y.gather(2, places, sparse_grad=is_sparse).sum(), (x, w))

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("kind", ["losses", "overwritten", "in chunks"])
def test_sparse_cotangents_of_losses(draw: Any, kind: str) -> None:
    weight, labels, places = draw(8, 8, grad=True), torch.tensor([0, 7, 3, 3]), torch.tensor([2, 0])

    def gradient(is_sparse: bool) -> Any:
        hidden = x.clone().requires_grad_()
        if kind == "in chunks":
            losses = linear_cross_entropy(hidden, weight, labels, reduction="none", chunk=3)
        else:
            is_free = kind == "overwritten"
            losses = cross_entropy(hidden * 1, labels, reduction="none", overwrite_logits=is_free)
        return grad(losses.gather(0, places, sparse_grad=is_sparse).sum(), hidden)[0]

    x = draw(4, 8)
    assert_same_bits(gradient(True), gradient(False))
