"""A mistake inside of a jax.custom_vjp function is named at its own line, not at the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bridge
from tests.compare.language import params_of

X = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
MISTAKES = ["function", "rule", "first", "second", "result"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.first(x)
            x = x * torch.sigmoid(1.702 * x)
        return self.last(x)


def activation(m: str) -> Callable[[Any], Any]:
    @jax.custom_vjp
    def call(x: Any) -> Any:
        gate = jax.nn.sigmoid((1.6 if m == "function" else 1.702) * x)  # function
        return x * gate

    def forward(x: Any) -> Any:
        gate = jax.nn.sigmoid((1.6 if m == "rule" else 1.702) * x)  # rule
        return x * gate, (x, gate)

    def backward(kept: Any, g: Any) -> Any:
        x, gate = kept
        slope = gate * (1 - gate) * (1.1 if m == "first" else 1)  # first
        slope = 1.702 * slope + (0.1 if m == "second" else 0)  # second
        return ((g * gate + g * x * slope) * (0.5 if m == "result" else 1),)  # result

    call.defvjp(forward, backward)
    return call


def compared(form: str, m: str, gradients: bool) -> Any:
    torch.manual_seed(0)
    model, call = Model(), activation(m)
    p = params_of(model)

    def layer(x: Any) -> Any:
        return call(x @ p["first.weight"].T + p["first.bias"])

    def port(x: Any) -> Any:
        if form == "scan":
            x, _ = jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=2)
        elif form == "jit":
            inner = jax.jit(layer)
            x = inner(inner(x))
        elif form == "remat":
            inner = jax.checkpoint(layer)
            x = inner(inner(x))
        else:
            x = layer(layer(x))
        return x @ p["last.weight"].T + p["last.bias"]

    return bridge.compare(model, port, X, gradients=gradients)


@pytest.mark.parametrize("m", MISTAKES)
@pytest.mark.parametrize("form", ["plain", "jit", "scan", "remat"])
def test_a_mistake_in_a_rule_is_named_at_its_line(form: str, m: str) -> None:
    report = compared(form, m, gradients=m != "function")
    (part,) = report.parts
    assert part.jax.code.endswith(f"# {m}"), str(report)
    assert part.count >= 2, str(report)


@pytest.mark.parametrize("form", ["plain", "scan"])
def test_right_rules(form: str) -> None:
    report = compared(form, "", gradients=True)
    assert not report.parts, str(report)
    assert not report.gradients, str(report)


def test_a_rule_of_custom_jvp() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    p = params_of(model)

    @jax.custom_jvp
    def tanh(x: Any) -> Any:
        return jnp.tanh(x)

    @tanh.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        y = jnp.tanh(primals[0])
        slope = 1 - y * y * 1.1  # mistake
        return y, tangents[0] * slope

    port = jax.jit(lambda x: tanh(x @ p["0.weight"].T + p["0.bias"]))
    report = bridge.compare(model, port, X, gradients=True)
    assert report.parts[0].jax.code.endswith("# mistake"), str(report)


def test_the_classes_are_as_before_after_an_error() -> None:
    before = jax.custom_vjp.__call__, jax.custom_jvp.__call__

    def port(x: Any) -> Any:
        raise ValueError("a mistake of the port")

    with pytest.raises(ValueError, match="a mistake of the port"):
        bridge.compare(nn.Linear(6, 6), port, X)
    assert (jax.custom_vjp.__call__, jax.custom_jvp.__call__) == before
