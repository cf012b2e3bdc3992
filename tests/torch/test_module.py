"""BiasGELU in the usual life of a module: copied, pickled, loaded, parametrised, moved."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize

from bridge.torch import BiasGELU, bias_gelu
from tests.torch.expected import assert_close, assert_same_bits, gelu


@pytest.fixture
def layer(draw: Any) -> BiasGELU:
    layer = BiasGELU(5, "none", dtype=torch.float64)
    with torch.no_grad():
        layer.bias.copy_(draw(5))
    return layer


def test_forward_and_gradient(layer: BiasGELU, draw: Any) -> None:
    x, g = draw(3, 5), draw(3, 5)
    y = layer(x)
    y.backward(g)
    assert_close(y, gelu(x, layer.bias, "none"))
    assert_close(layer.bias.grad, gelu(x, layer.bias, "none", 1, g).sum(0), ulps=16)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(layer: BiasGELU, draw: Any, clone: Any) -> None:
    x, other = draw(3, 5), clone(layer)
    assert other.bias is not layer.bias
    assert_same_bits(other(x), layer(x))


def test_state_dict(layer: BiasGELU, draw: Any) -> None:
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other = BiasGELU(5, "none", dtype=torch.float64)
    other.load_state_dict(torch.load(buffer))
    x = draw(3, 5)
    assert_same_bits(other(x), layer(x))


def test_parametrized(layer: BiasGELU, draw: Any) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, bias: Any) -> Any:
            return 2 * bias

    x, bias = draw(3, 5), layer.bias.detach().clone()
    parametrize.register_parametrization(layer, "bias", Doubled())
    assert_same_bits(layer(x), bias_gelu(x, 2 * bias, approximate="none"))


def test_without_bias_and_on_meta(draw: Any) -> None:
    x = draw(3, 5)
    layer = BiasGELU(5, bias=False)
    assert list(layer.parameters()) == []
    assert_close(layer(x), gelu(x, None))
    late = BiasGELU(5, device="meta").to_empty(device="cpu")
    late.reset_parameters()
    assert torch.count_nonzero(late.bias) == 0
    assert repr(late) == "BiasGELU(5, approximate='tanh', bias=True)"


def test_functional_call(layer: BiasGELU, draw: Any) -> None:
    x, biases = draw(3, 5), draw(4, 5)
    many = torch.func.vmap(lambda b: torch.func.functional_call(layer, {"bias": b}, (x,)))(biases)
    for one, bias in zip(many, biases, strict=True):
        assert_same_bits(one, bias_gelu(x, bias, approximate="none"))
