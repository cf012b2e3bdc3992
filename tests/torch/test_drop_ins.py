"""bridge.torch.megatron and bridge.torch.slapo: the originals' names, orders, values, gradients.

The originals are written here from their formulas, in float64 operations.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import grad, gradcheck
from torch.nn.functional import gelu as torch_gelu

from bridge.torch import megatron, slapo
from tests.torch.expected import assert_close, assert_same_bits, gelu

SHAPES = [
    ((2, 4, 6), (6,)),
    ((2, 4, 6), (1, 1, 6)),
    ((2, 4, 6), (4, 6)),
    ((2, 4, 6), (4, 1)),
    ((2, 4, 6), (1,)),
    ((2, 4, 6), ()),
    ((4, 6), (2, 4, 6)),
    ((6,), (4, 6)),
    ((4, 1), (6,)),
    ((), (6,)),
]


@pytest.mark.parametrize(("shape", "bias_shape"), SHAPES)
@pytest.mark.parametrize(
    "function",
    [
        megatron.GeLUFunction.apply,
        megatron.bias_gelu_impl,
        lambda x, b: megatron.bias_gelu(b, x),
        slapo.BiasGeLUFunction.apply,
        lambda x, b: slapo.BiasGeLUFunction.bias_gelu(b, x),
        slapo.bias_new_gelu,
    ],
    ids=[
        "GeLUFunction",
        "impl",
        "bias_gelu",
        "BiasGeLUFunction",
        "slapo.bias_gelu",
        "bias_new_gelu",
    ],
)
def test_values_and_gradients(draw: Any, function: Any, shape: Any, bias_shape: Any) -> None:
    x, bias = draw(*shape, grad=True), draw(*bias_shape, grad=True)
    expected = torch_gelu(x + bias, approximate="tanh")
    y = function(x, bias)
    assert_close(y, expected, ulps=16)
    g = draw(*y.shape)
    for ours, theirs in zip(grad(y, (x, bias), g), grad(expected, (x, bias), g), strict=True):
        assert_close(ours, theirs, ulps=256)


@pytest.mark.parametrize(("shape", "bias_shape"), SHAPES)
def test_bias_gelu_back(draw: Any, shape: Any, bias_shape: Any) -> None:
    y, bias = draw(*shape), draw(*bias_shape)
    full = torch.broadcast_shapes(shape, bias_shape)
    h = (y + bias).reshape(full)
    for g in (draw(*full), draw(full[-1])):
        back = megatron.bias_gelu_back(g, bias, y)
        assert_close(back, gelu(h, None, "tanh", 1, g.expand(full)), ulps=16)
        assert_same_bits(slapo.BiasGeLUFunction.bias_gelu_back(g, bias, y), back)


def test_bias_gelu_back_is_differentiable(draw: Any) -> None:
    inputs = draw(3, 4, grad=True), draw(4, grad=True), draw(3, 4, grad=True)
    assert gradcheck(megatron.bias_gelu_back, inputs, check_forward_ad=True)


def test_bias_gelu_back_checks(draw: Any) -> None:
    y, bias = draw(3, 4), draw(4)
    with pytest.raises(TypeError, match="has dtype int64, expected one of float16"):
        megatron.bias_gelu_back(torch.ones(3, 4, dtype=torch.int64), bias, y)
    with pytest.raises(ValueError, match="g has shape \\[5\\], expected a shape that broadcasts"):
        megatron.bias_gelu_back(draw(5), bias, y)


def test_new_gelu(draw: Any) -> None:
    x, g = draw(3, 4, grad=True), draw(3, 4)
    y = slapo.new_gelu(x)
    assert_close(y, gelu(x, None))
    assert_close(grad(y, x, g)[0], gelu(x, None, "tanh", 1, g))


def test_missing_bias(draw: Any) -> None:
    x = draw(3, 4)
    assert_close(megatron.GeLUFunction.apply(x, None), gelu(x, None))


def test_where_the_originals_failed() -> None:
    x = torch.tensor([-torch.inf, torch.inf, 800.0, -800.0, 60000.0], dtype=torch.float16)
    x.requires_grad_()
    y = megatron.bias_gelu_impl(x, torch.zeros(5, dtype=torch.float16))
    y.backward(torch.ones_like(y))
    assert y.tolist() == [0.0, torch.inf, 800.0, 0.0, 60000.0]
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0, 1.0]


def test_scalar_bias_does_not_promote() -> None:
    """The result has the dtype of `x + bias`: a 0-dimensional float32 does not widen bfloat16."""
    x = torch.ones(3, dtype=torch.bfloat16)
    assert megatron.bias_gelu(torch.tensor(1.0), x).dtype == torch.bfloat16
    assert megatron.bias_gelu(torch.ones(3), x).dtype == torch.float32


def test_under_compile(draw: Any) -> None:
    x, bias = draw(2, 3, 4), draw(3, 4)
    compiled = torch.compile(megatron.bias_gelu_impl, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(x, bias), megatron.bias_gelu_impl(x, bias))
