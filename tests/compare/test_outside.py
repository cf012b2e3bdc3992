"""Layers and tensors that a torch model uses and does not hold are brought to float64 and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bridge

torch.manual_seed(0)
SHARED, RECURRENT = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)
NORM, TABLE = nn.BatchNorm1d(4), torch.randn(4, 4)
TABLES = {"last": torch.randn(4, 4)}
X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


class Part:
    """A plain object that holds a layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer(x)


PART = Part(SHARED)


def shared(x: Tensor) -> Tensor:
    return SHARED(x)


def memoized(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


wrapped = memoized(shared)


class Model(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.first, self.form = nn.Linear(4, 4), form
        self.plain = [SHARED]

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(F.gelu(self.first(x))))

    def second(self, x: Tensor) -> Tensor:
        if self.form == "global":
            return SHARED(x)
        if self.form == "list":
            return self.plain[0](x)
        if self.form == "function":
            return shared(x)
        if self.form == "wrapper":
            return wrapped(x)
        if self.form == "object":
            return PART(x)
        return functools.partial(F.linear, weight=SHARED.weight)(x, bias=SHARED.bias)


def numbers(tensor: Tensor) -> Any:
    return jnp.asarray(tensor.detach().numpy())


def port(model: Model, x: Any, mistake: str = "") -> Any:
    y = jax.nn.gelu(
        x @ numbers(model.first.weight).T + numbers(model.first.bias), approximate=False
    )
    y = y @ numbers(SHARED.weight).T + numbers(SHARED.bias)
    if mistake:
        y = y * 1.25  # mistake
    return jnp.tanh(y)


def state() -> dict[str, Tensor]:
    tensors = {**SHARED.state_dict(), **RECURRENT.state_dict(), **NORM.state_dict()}
    return {**tensors, "table": TABLE, **TABLES}


@pytest.mark.parametrize("mistake", ["", "mistake"])
@pytest.mark.parametrize("form", ["global", "list", "function", "wrapper", "object", "partial"])
def test_a_layer_that_the_model_does_not_hold(form: str, mistake: str) -> None:
    model, before = Model(form), {name: t.clone() for name, t in state().items()}
    report = bridge.compare(model, lambda x: port(model, x, mistake), X)
    assert [part.jax.code.rpartition("# ")[2] for part in report.parts] == [mistake] * bool(mistake)
    assert report.error < 1e-12 or mistake, str(report)
    for name, tensor in state().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_its_gradient_and_its_name() -> None:
    model = Model("global")
    parameters = {
        "first.weight": numbers(model.first.weight), "first.bias": numbers(model.first.bias),
        "SHARED.weight": numbers(SHARED.weight), "SHARED.bias": numbers(SHARED.bias),
    }  # fmt: skip

    def written(x: Any, is_wrong: bool) -> Any:
        p = parameters
        y = jax.nn.gelu(x @ p["first.weight"].T + p["first.bias"], approximate=False)
        weight = p["SHARED.weight"]
        weight = jax.lax.stop_gradient(weight) if is_wrong else weight
        return jnp.tanh(y @ weight.T + p["SHARED.bias"])

    right = bridge.compare(model, lambda x: written(x, False), X, gradients=True)
    assert not right.parts, str(right)
    wrong = bridge.compare(model, lambda x: written(x, True), X, gradients=True)
    assert wrong.gradients == ["SHARED.weight"], str(wrong)
    parameters["SHARED.bias"] = parameters["SHARED.bias"] * 1.25
    named = bridge.compare(model, lambda x: written(x, False), X)
    assert named.first.torch.module == "SHARED", str(named)


def test_tensors_and_layers_with_a_state() -> None:
    class Stateful(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y, _ = RECURRENT(NORM(x)[None])
            return y, x @ TABLE @ TABLES["last"]

    model, table, last = Stateful().train(), numbers(TABLE), numbers(TABLES["last"])
    rows = model(torch.tensor(X))[0].detach()
    before = {name: t.clone() for name, t in state().items()}
    report = bridge.compare(model, lambda x, y: (y, x @ table @ last), X, jax_inputs=(X, rows))
    assert report.error < 1e-6, str(report)
    for name, tensor in state().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_a_function_that_reads_a_tensor_and_a_method_of_a_plain_object() -> None:
    table = np.asarray(TABLE)
    report = bridge.compare(lambda x: x @ TABLE, lambda x: x @ table, X)
    assert not report.parts, str(report)
    report = bridge.compare(
        PART.__call__, lambda x: x @ numbers(SHARED.weight).T + numbers(SHARED.bias), X
    )
    assert not report.parts, str(report)
    report = bridge.compare(PART, lambda x: x @ numbers(SHARED.weight).T + numbers(SHARED.bias), X)
    assert not report.parts, str(report)


def test_a_tensor_that_is_not_found_is_refused_with_its_line() -> None:
    class Built(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.from_numpy(np.ones((4, 4), np.float32))

    line = Built.forward.__code__.co_firstlineno + 1
    words = rf"takes a float32 tensor of shape \(4, 4\) at .*test_outside.py:{line}; compare runs"
    with pytest.raises(ValueError, match=words):
        bridge.compare(Built(), lambda x: x @ jnp.ones((4, 4)), X)
