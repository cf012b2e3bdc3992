"""Ports under vmap, cond, while, shard_map and in Equinox; names and gradients in their reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, PartitionSpec
from torch import Tensor, nn
from torch.nn import functional as F

import bridge
import bridge.jax


class Model(nn.Module):
    """Calls one of its layers twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.last = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.inner(x))
        x = F.gelu(self.inner(x))
        return self.last(torch.tanh(self.norm(x)))


torch.manual_seed(0)
MODEL = Model()
with torch.no_grad():
    for parameter in MODEL.parameters():
        parameter.normal_()
P = {name: jnp.asarray(p.detach().numpy()) for name, p in MODEL.named_parameters()}
X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


def dense(x: Any, name: str) -> Any:
    return x @ P[f"{name}.weight"].T + P[f"{name}.bias"]


def gelu(x: Any, mistake: str = "") -> Any:
    return jax.nn.gelu(x, approximate=mistake == "gelu")


def norm(x: Any, mistake: str = "") -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    eps = 1e-3 if mistake == "eps" else 1e-5
    return (x - mean) / jnp.sqrt(variance + eps) * P["norm.weight"] + P["norm.bias"]


def port(x: Any, first: str = "", second: str = "", eps: str = "") -> Any:
    x = gelu(dense(x, "inner"), first)
    x = gelu(dense(x, "inner"), second)
    return dense(jnp.tanh(norm(x, eps)), "last")


def branches(x: Any, mistake: str = "") -> Any:
    x = gelu(dense(x, "inner"))
    right, wrong = (lambda y: gelu(dense(y, "inner"), mistake)), jnp.sin
    x = jax.lax.cond(jnp.sum(x) < 1e9, right, wrong, x)
    x = jax.lax.switch(jnp.int32(1), [jnp.cos, norm, jnp.sin], x)
    return dense(jnp.tanh(x), "last")


def loops(x: Any, mistake: str = "") -> Any:
    def body(carry: Any) -> Any:
        k, y = carry
        return k + 1, gelu(dense(y, "inner"), mistake)

    _, x = jax.lax.while_loop(lambda carry: carry[0] < 2, body, (0, x))
    return dense(jnp.tanh(norm(x)), "last")


def sharded(x: Any, mistake: str = "", is_checked: bool = True) -> Any:
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    rows = PartitionSpec("rows")

    def run(x: Any) -> Any:
        y = gelu(dense(x, "inner"))
        y = gelu(dense(y, "inner"), mistake)
        if not is_checked:
            y = jax.lax.all_gather(jax.lax.psum(y, "rows"), "rows", axis=0, tiled=True)
        return dense(jnp.tanh(norm(y)), "last")

    return jax.shard_map(run, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=is_checked)(x)


class Module(eqx.Module):
    """The port as an Equinox module for one row."""

    inner: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear
    mistake: str = ""

    def __call__(self, x: Any) -> Any:
        x = gelu(self.inner(x))
        x = gelu(self.inner(x), self.mistake)
        return self.last(jnp.tanh(self.norm(x)))


def module(mistake: str = "") -> Module:
    def filled(layer: Any, name: str) -> Any:
        new = (P[f"{name}.weight"], P[f"{name}.bias"])
        return eqx.tree_at(lambda one: (one.weight, one.bias), layer, new)

    key = jax.random.key(0)
    inner, last = eqx.nn.Linear(6, 6, key=key), eqx.nn.Linear(6, 5, key=key)
    return Module(
        filled(inner, "inner"), filled(eqx.nn.LayerNorm(6), "norm"), filled(last, "last"), mistake
    )


class Batched(eqx.Module):
    """An Equinox module that holds another one."""

    rows: Module

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.rows)(x)


FORMS: dict[str, Callable[[str], Any]] = {
    "vmap": lambda m: jax.vmap(lambda x: port(x, second=m)),
    "jit of vmap": lambda m: jax.jit(jax.vmap(lambda x: port(x, second=m))),
    "cond": lambda m: lambda x: branches(x, m),
    "while": lambda m: lambda x: loops(x, m),
    "shard_map": lambda m: lambda x: sharded(x, m),
    "collectives": lambda m: lambda x: sharded(x, m, False),
    "Equinox": lambda m: Batched(module(m)),
    "vmap of Equinox": lambda m: jax.vmap(module(m)),
    "filter_vmap": lambda m: eqx.filter_vmap(module(m)),
    "filter_jit": lambda m: eqx.filter_jit(Batched(module(m))),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_transformed_port(form: str) -> None:
    report = bridge.compare(MODEL, FORMS[form](""), X, gradients=form != "while")
    assert not report.parts, str(report)
    assert not report.gradients, str(report)
    report = bridge.compare(MODEL, FORMS[form]("gelu"), X)
    assert len(report.parts) == 1, str(report)
    part = report.parts[0]
    assert part.cause == "GELU: erf here, tanh there", str(report)
    assert part.count == (2 if form == "while" else 1)
    assert part.jax.code == 'return jax.nn.gelu(x, approximate=mistake == "gelu")'


def test_arrays_that_a_transformation_was_given_directly() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    rows = PartitionSpec("rows")
    direct = jax.shard_map(port, mesh=mesh, in_specs=rows, out_specs=rows)
    for function in (direct, jax.vmap(port), jax.jit(direct), jax.checkpoint(port)):
        report = bridge.compare(MODEL, function, X, gradients=True)
        assert not report.parts, str(report)
        assert not report.gradients, str(report)


def test_an_eps_inside_of_shard_map_is_read() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    rows = PartitionSpec("rows")
    wrong = jax.shard_map(lambda x: port(x, eps="eps"), mesh=mesh, in_specs=rows, out_specs=rows)
    report = bridge.compare(MODEL, wrong, X)
    assert [part.cause for part in report.parts] == ["eps 1e-05 here, 0.001 there"], str(report)


@pytest.mark.parametrize(("first", "second"), [("gelu", ""), ("", "gelu"), ("gelu", "gelu")])
def test_calls_of_one_module_are_counted(first: str, second: str) -> None:
    report = bridge.compare(MODEL, lambda x: port(x, first, second), X)
    assert len(report.parts) == 1, str(report)
    assert report.parts[0].count == bool(first) + bool(second)


def test_a_part_has_the_recorded_name_of_its_value() -> None:
    record = bridge.jax.record

    def named(x: Any, second: str = "", eps: str = "") -> Any:
        x = record("first", gelu(dense(x, "inner")))
        x = record("second", gelu(dense(x, "inner"), second))
        x = record("normalized", norm(x, eps))
        return record("output", dense(jnp.tanh(x), "last"))

    report = bridge.compare(MODEL, lambda x: named(x, "gelu", "eps"), X)
    assert [part.name for part in report.parts] == ["second", "normalized"], str(report)
    assert str(report.parts[0]).startswith("second: error")
    report = bridge.compare(MODEL, jax.jit(lambda x: record("output", port(x, eps="eps"))), X)
    assert [part.name for part in report.parts] == ["norm"], str(report)


@pytest.mark.parametrize("name", ["inner.weight", "last.weight"])
def test_a_gradient_that_never_pairs_is_named_by_its_parameter(name: str) -> None:
    def stopped(x: Any) -> Any:
        def of(x: Any, layer: str) -> Any:
            weight, bias = P[f"{layer}.weight"], P[f"{layer}.bias"]
            if name == f"{layer}.weight":
                weight = jax.lax.stop_gradient(weight)
            return x @ weight.T + bias

        x = gelu(of(gelu(dense(x, "inner")), "inner"))
        return of(jnp.tanh(norm(x)), "last")

    assert not bridge.compare(MODEL, stopped, X).parts
    report = bridge.compare(MODEL, stopped, X, gradients=True)
    assert report.gradients == [name], str(report)
    assert f"no gradient in JAX equals that of {name}" in str(report)
    assert "nan" not in str(report)


def test_a_wrong_derivative_is_named_at_its_line() -> None:
    @jax.custom_vjp
    def activation(x: Any) -> Any:
        return gelu(x)

    def backward(x: Any, g: Any) -> Any:
        return (g * jax.vmap(jax.vmap(jax.grad(lambda v: gelu(v, "gelu"))))(x),)

    activation.defvjp(lambda x: (gelu(x), x), backward)

    def wrong(x: Any) -> Any:
        x = activation(dense(activation(dense(x, "inner")), "inner"))
        return dense(jnp.tanh(norm(x)), "last")

    report = bridge.compare(MODEL, wrong, X, gradients=True)
    assert len(report.parts) == 1, str(report)
    assert report.parts[0].torch.op == "gelu_backward"
    assert report.parts[0].count == 2


@pytest.mark.parametrize("gradients", [False, True])
def test_a_carry_that_is_fixed_to_float32(gradients: bool) -> None:
    def scanned(x: Any, mistake: str = "") -> Any:
        def body(carry: Any, k: Any) -> Any:
            y, total = carry
            y = gelu(dense(y, "inner"), mistake)
            return (y, total + y), k

        start = (x, jnp.zeros(x.shape, jnp.float32))
        (x, _), _ = jax.lax.scan(body, start, jnp.arange(2))
        return dense(jnp.tanh(norm(x)), "last")

    report = bridge.compare(MODEL, scanned, X, gradients=gradients)
    assert not report.parts, str(report)
    assert not report.gradients, str(report)
    assert any("traced in float32" in note for note in report.notes), report.notes
    report = bridge.compare(MODEL, lambda x: scanned(x, "gelu"), X)
    assert [part.count for part in report.parts] == [2], str(report)
    assert report.parts[0].cause == "GELU: erf here, tanh there"
