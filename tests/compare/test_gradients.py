"""The gradient that a port returns for a parameter is that of the same parameter in torch."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bridge
from bridge.testing import assert_same
from tests.compare.language import params_of
from tests.compare.test_planted_mistakes import planted


class Model(nn.Module):
    """Square weights, and a bias of keys, whose gradient is 0 but for its rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.k, self.b = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.a(x)) * torch.linspace(0.25, 1.5, 6, dtype=x.dtype)
        weights = (y @ self.k(y).T).softmax(-1)
        return self.b(self.norm(weights @ y))


TABLE = jnp.linspace(0.25, 1.5, 6)
X = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)


def changed(change: Any) -> Any:
    """Returns a function that passes a value on, and changes its gradient.

    JAX keeps the line of the call for both.
    """

    @jax.custom_vjp
    def same(value: Any) -> Any:
        return value

    same.defvjp(lambda value: (value, None), lambda _, g: (change(g),))
    return same


@jax.custom_vjp
def exchanged(a: Any, b: Any) -> Any:
    return a, b


exchanged.defvjp(lambda a, b: ((a, b), None), lambda _, g: (g[1], g[0]))


def port(p: Any, x: Any, m: str = "") -> Any:
    a, b, bias = p["a.weight"], p["b.weight"], p["a.bias"]
    if m == "zero":
        a = changed(lambda g: g * 0)(a)  # plant: zero
    elif m == "double":
        a = changed(lambda g: g * 2)(a)  # plant: double
    elif m == "turned":
        a = changed(lambda g: g.T)(a)  # plant: turned
    elif m == "reversed":
        bias = changed(lambda g: g[::-1])(bias)  # plant: reversed
    elif m == "exchanged":
        a, b = exchanged(a, b)
    y = jnp.tanh(x @ a.T + bias) * TABLE  # plant: exchanged
    weights = jax.nn.softmax(y @ (y @ p["k.weight"].T + p["k.bias"]).T, -1)
    z = weights @ y
    mean = z.mean(-1, keepdims=True)
    scaled = (z - mean) * jax.lax.rsqrt(z.var(-1, keepdims=True) + 1e-5)
    z = scaled * p["norm.weight"] + p["norm.bias"]
    return z @ b.T + p["b.bias"]  # plant: exchanged


def compared(m: str = "", is_new: bool = False, frozen: str = "") -> Any:
    torch.manual_seed(0)
    model = Model()
    params = params_of(model)
    if is_new:  # as a new layer is: ones and zeros, which many parameters hold
        nn.init.ones_(model.norm.weight)
        for bias in (model.norm.bias, model.a.bias, model.k.bias, model.b.bias):
            nn.init.zeros_(bias)
        params = bridge.to_jax({name: p.detach() for name, p in model.named_parameters()})
    if frozen:
        model.get_parameter(frozen).requires_grad_(False)
    return bridge.compare(model, lambda x: port(params, x, m), X, gradients=True)


@pytest.mark.parametrize("frozen", ["", "a.weight"])
@pytest.mark.parametrize("is_new", [False, True])
def test_right_gradients(is_new: bool, frozen: str) -> None:
    """A table that JAX holds has a gradient there, and none in torch."""
    report = compared(is_new=is_new, frozen=frozen)
    assert not report.parts, str(report)
    assert not report.gradients, str(report)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("mistake", ["zero", "double", "turned", "reversed", "exchanged"])
def test_a_wrong_gradient_whose_right_value_lies_on_the_way(mistake: str, is_new: bool) -> None:
    report = compared(mistake, is_new)
    names = {"reversed": ["a.bias"], "exchanged": ["a.weight", "b.weight"]}
    assert report.gradients == names.get(mistake, ["a.weight"]), str(report)
    lines = [int(part.jax.source.rpartition(":")[2]) for part in report.parts]
    assert len(lines) == len(report.gradients), str(report)
    assert {*lines} <= planted(sys.modules[__name__], mistake), str(report)
    for name in report.gradients:
        assert f"no gradient in JAX equals that of {name}" in str(report)
    assert report.error < 1e-9
    with pytest.raises(AssertionError, match="no gradient in JAX equals that of"):
        assert_same(*arguments(mistake), gradients=True)


def arguments(m: str) -> Any:
    torch.manual_seed(0)
    model = Model()
    params = params_of(model)
    return model, lambda x: port(params, x, m), X


def test_outputs_in_another_layout() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).eval()
    params = params_of(model)
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)

    def function(x: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x,
            params["0.weight"].transpose(2, 3, 1, 0),
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        y = (y + params["0.bias"] - params["1.running_mean"]) * params["1.weight"]
        return y / jnp.sqrt(params["1.running_var"] + 1e-5) + params["1.bias"]

    report = bridge.compare(
        model, function, x, jax_inputs=(x.transpose(0, 2, 3, 1),), gradients=True
    )
    assert not report.parts, str(report)
    assert not report.gradients, str(report)


class Rows(nn.Module):
    """Six layers, whose three products share an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({k: nn.Linear(4, 4) for k in "qkv"}) for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        layer: Any
        for layer in self.layers:
            x = torch.tanh(layer["q"](x)) * torch.sigmoid(layer["k"](x)) + layer["v"](x)
        return x


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("form", ["fused", "stacked"])
def test_parameters_in_pieces_and_stacked(form: str, factor: int) -> None:
    torch.manual_seed(0)
    model = Rows()
    p = params_of(model)
    names = ["q", "k", "v"]
    weights = [jnp.concatenate([p[f"layers.{i}.{k}.weight"] for k in names]) for i in range(6)]
    biases = [jnp.concatenate([p[f"layers.{i}.{k}.bias"] for k in names]) for i in range(6)]
    stacked = jnp.stack(weights), jnp.stack(biases)

    def layer(x: Any, own: Any) -> Any:
        weight = changed(lambda g: g * factor)(own[0]) if factor > 1 else own[0]
        q, k, v = jnp.split(x @ weight.T + own[1], 3, -1)
        return jnp.tanh(q) * jax.nn.sigmoid(k) + v, None

    def function(x: Any) -> Any:
        if form == "stacked":
            return jax.lax.scan(layer, x, stacked)[0]
        for own in zip(weights, biases, strict=True):
            x, _ = layer(x, own)
        return x

    report = bridge.compare(model, function, X[:, :4], gradients=True)
    assert bool(report.gradients) == (factor > 1), str(report)
    assert bool(report.parts) == (factor > 1), str(report)
