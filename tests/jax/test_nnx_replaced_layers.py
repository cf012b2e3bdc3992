"""Layers that `replace` must not mistake for an op, and layers that change after it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bridge.jax.nnx import replace as replace_all

optax = pytest.importorskip("optax")

# The layers of products have tests of their own.
replace = functools.partial(replace_all, products=False)


class Norm(nnx.Module):
    def __init__(self) -> None:
        self.scale, self.eps = nnx.Param(jnp.linspace(0.5, 1.5, 10)), 1e-6
        self.bias, self.deterministic = nnx.data(None), True

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.eps) * self.scale[...]
        return y if self.bias is None else y + self.bias[...]


class Noisy(Norm):
    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x) * (1 if self.deterministic else 2)


class StoppedNorm(Norm):
    def __call__(self, x: jax.Array) -> jax.Array:
        r = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.eps)
        return x * jax.lax.stop_gradient(r) * self.scale[...]


class FrozenNorm(Norm):
    def __call__(self, x: jax.Array) -> jax.Array:
        r = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.eps)
        return x * r * jax.lax.stop_gradient(self.scale[...])


class Normalize(Norm):
    """The smallest divisor differs from an eps only in tiny rows."""

    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.ones(10))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x / jnp.maximum(jnp.sqrt(jnp.mean(x * x, -1, keepdims=True)), 1e-6) * self.scale


class Act(nnx.Module):
    def __init__(self, function: Any) -> None:
        self.act = function

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.act(x)


class OwnGELU(nnx.Module):
    approximate: bool

    def __init__(self) -> None:
        self.approximate = False

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.gelu(x, approximate=self.approximate)


class MLP(nnx.Module):
    def __init__(self, rates: tuple[float, float] = (0.0, 0.0), act: Any = nnx.silu) -> None:
        rngs = nnx.Rngs(3, dropout=4)
        linear = functools.partial(nnx.Linear, rngs=rngs)
        self.gate, self.up, self.down = linear(10, 30), linear(10, 30), linear(30, 10)
        self.first, self.second = (nnx.Dropout(rate, rngs=rngs) for rate in rates)
        self.act_fn = act

    def gated(self, x: jax.Array) -> jax.Array:
        return self.act_fn(self.gate(x)) * self.up(x)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.second(self.gated(x)))


class StoppedMLP(MLP):
    def gated(self, x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(self.act_fn(self.gate(x))) * self.up(x)


class TwoDropouts(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.first(super().__call__(x))


class CastMLP(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x).astype(x.dtype)


class RecomputedMLP(MLP):
    def gated(self, x: jax.Array) -> jax.Array:
        return jax.checkpoint(lambda gate, up: self.act_fn(gate) * up)(self.gate(x), self.up(x))


def straight_through(x: jax.Array) -> jax.Array:
    return x + jax.lax.stop_gradient(nnx.gelu(x) - x)


@jax.custom_vjp
def clipping(x: jax.Array) -> jax.Array:
    return nnx.gelu(x)


clipping.defvjp(lambda x: (nnx.gelu(x), x), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@pytest.fixture
def x(rng: np.random.Generator) -> jax.Array:
    return jnp.asarray(rng.standard_normal((4, 10)), jnp.float32)


def runs_bridge(layer: nnx.Module, x: jax.Array) -> bool:
    definition, state = nnx.split(layer)
    run = jax.make_jaxpr(lambda state, x: nnx.merge(definition, state)(x))
    return "bridge" in str(run(state, x))


DERIVATIVES = "its derivatives are not those of its result, as with stop_gradient or a custom rule"


@pytest.mark.parametrize("make", [StoppedNorm, FrozenNorm, StoppedMLP], ids=lambda x: x.__name__)
def test_layers_with_derivatives_of_their_own_are_left(make: Any) -> None:
    report = replace(nnx.List([make()]))
    assert not report.done
    assert report.left == {"0": DERIVATIVES}


def test_layers_that_recompute_values_are_left() -> None:
    report = replace(nnx.List([RecomputedMLP()]))
    assert report.left == {"0": "it recomputes values inside, as by jax.checkpoint"}


@pytest.mark.parametrize("function", [straight_through, clipping], ids=["through", "clipping"])
def test_functions_with_derivatives_of_their_own_are_left(function: Any) -> None:
    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        y = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return y if function is clipping else jax.lax.stop_gradient(y)

    model = Act(function)
    model.loss = loss
    report = replace(model)
    assert report.done == ({"loss": "cross_entropy"} if function is clipping else {})
    assert model.act is function


@pytest.mark.parametrize("make", [Noisy, Normalize, CastMLP], ids=lambda x: x.__name__)
def test_other_layers_are_left(make: Any) -> None:
    """A mode, tiny rows and 16-bit rows for parameters of float32 reveal them."""
    assert replace(nnx.List([make()])).left == {"0": "it computes something else"}


def _set(name: str, value: Any) -> Any:
    def change(layer: Any) -> None:
        setattr(layer, name, value() if callable(value) and name != "act_fn" else value)

    return change


CHANGES: dict[str, tuple[Any, Any]] = {
    "bias": (Norm, _set("bias", lambda: nnx.Param(jnp.ones(10)))),
    "scale of one": (Norm, _set("scale", lambda: nnx.Param(2 * jnp.ones(1)))),
    "eps": (Norm, _set("eps", 0.0)),
    "axes": (lambda: nnx.LayerNorm(10, rngs=nnx.Rngs(0)), _set("reduction_axes", 0)),
    "gelu": (OwnGELU, _set("approximate", True)),
    "activation": (MLP, _set("act_fn", nnx.relu)),
    "module": (lambda: MLP(act=OwnGELU()), lambda mlp: setattr(mlp.act_fn, "approximate", True)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_with_new_settings_runs_its_original(change: str, x: jax.Array) -> None:
    make, apply = CHANGES[change]
    mine, original = nnx.List([make()]), make()
    assert replace(mine, activations=change != "module").done
    assert runs_bridge(mine[0], x)
    assert runs_bridge(nnx.clone(mine)[0], x)
    apply(mine[0])
    apply(original)
    np.testing.assert_array_equal(mine[0](x), original(x))
    assert not runs_bridge(mine[0], x)


@pytest.mark.parametrize("kind", [MLP, TwoDropouts])
def test_dropouts_without_a_rate_are_found(kind: Any, x: jax.Array) -> None:
    models = [nnx.List([kind()]), nnx.List([kind()])]
    assert replace(models[0]).done
    for model in models:
        model[0].first.rate, model[0].second.rate = 0.75, 0.5
    for _ in range(2):
        mine, expected = (model[0](x) for model in models)
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)
    assert runs_bridge(models[0][0], x)


def test_labels_that_wrap_and_broadcast(rng: np.random.Generator) -> None:
    logits = jnp.asarray(rng.standard_normal((2, 2, 300)), jnp.float32)
    theirs = optax.softmax_cross_entropy_with_integer_labels
    model = nnx.Dict(loss=theirs)
    assert replace(model).done == {"loss": "cross_entropy"}
    for labels in (
        jnp.array([[7, -100], [-300, -1]]),
        jnp.array([[-400, -301], [0, 299]]),  # −400 is −100 of 300 columns
        jnp.array([[7, -100], [127, -1]], jnp.int8),
        jnp.array([[7], [-1]]),
    ):
        mine, expected = (jax.jit(loss)(logits, labels) for loss in (model.loss, theirs))
        np.testing.assert_allclose(mine, expected, rtol=1e-5)


def test_undo_keeps_a_function_that_was_set_since(x: jax.Array) -> None:
    model = Act(nnx.gelu)
    report = replace(model)
    nnx.jit(lambda model, x: model(x))(model, x)
    report.undo()
    assert model.act is nnx.gelu
    report = replace(model)
    model.act = nnx.relu
    with pytest.raises(RuntimeError, match="act has been set since replace: expected the function"):
        report.undo()
    assert model.act is nnx.relu
