"""The optimizers of bridge.jax.optim as gradient transformations of optax."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from bridge.jax import optim
from tests.optim.steps import arrays, assert_same, gradients, tree

both = pytest.mark.parametrize("make", [optim.adamw, optim.sgd], ids=["adamw", "sgd"])

STATIC = {
    optim.adamw: ("b1", "b2", "eps"),
    optim.sgd: ("momentum", "dampening", "nesterov", "weight_decay"),
}


def several(optimizer: Any, start: Any, steps: Any) -> Any:
    params = arrays(start)
    state = optimizer.init(params)
    for grads in steps:
        updates, state = optimizer.update(arrays(grads), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@both
def test_wrappers_of_optax(make: Any, rng: Any) -> None:
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 3))
    expected, _ = several(make(1e-2), start, steps)
    others = {
        "chain": optax.chain(optax.identity(), make(1e-2)),
        "named_chain": optax.named_chain(("only", make(1e-2))),
        "extra": optax.with_extra_args_support(make(1e-2)),
        "finite": optax.apply_if_finite(make(1e-2), 3),
        "masked": optax.masked(make(1e-2), dict.fromkeys(start, True)),
        "several": optax.MultiSteps(make(1e-2), 1),
        "injected": optax.inject_hyperparams(make, static_args=STATIC[make])(1e-2),
    }
    for wrapped in others.values():
        assert_same(expected, several(wrapped, start, steps)[0])


@both
def test_leaves_that_a_mask_of_optax_leaves_out(make: Any, rng: Any) -> None:
    start = tree(rng, "float32")
    chosen = {name: name.endswith("weight") for name in start}
    found, _ = several(optax.masked(make(1e-2), chosen), start, [start])
    whole, _ = several(make(1e-2), start, [start])
    for name, is_chosen in chosen.items():
        expected = whole[name] if is_chosen else start[name] + start[name]  # the gradient passes
        assert np.array_equal(found[name], expected)


@pytest.mark.parametrize("mask", ["tree", "function", "prefix"])
@both
def test_a_mask_of_weight_decay(make: Any, mask: str, rng: Any) -> None:
    start = {"a": tree(rng, "float32"), "b": {"w": np.ones((2, 66), np.float32)}}
    flags: Any = {"a": dict.fromkeys(start["a"], True), "b": {"w": False}}
    given = {"tree": flags, "function": lambda params: flags, "prefix": {"a": True, "b": False}}
    params = jax.tree.map(jnp.asarray, start)
    results = []
    for decay, chosen in ((0.3, given[mask]), (0.3, None), (0.0, None)):
        optimizer = make(1e-2, weight_decay=decay, mask=chosen)
        results.append(jax.jit(optimizer.step)(params, optimizer.init(params), params)[0])
    masked, decayed, plain = results
    assert_same(masked["a"], decayed["a"])
    assert_same(masked["b"], plain["b"])
    assert not np.array_equal(decayed["b"]["w"], plain["b"]["w"])


@both
def test_traced_numbers_and_scan(make: Any, rng: Any) -> None:
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 4))
    rates = np.float32([1e-2, 3e-3, 2e-2, 1e-3])
    params = arrays(start)
    expected, state = params, make(0.0).init(params)
    for rate, grads in zip(rates, steps, strict=True):
        expected, state = make(float(rate), weight_decay=0.25).step(arrays(grads), state, expected)

    @jax.jit
    def train(params: Any, stacked: Any, rates: Any, decay: Any) -> Any:
        def body(carry: Any, each: Any) -> Any:
            grads, rate = each
            return make(rate, weight_decay=decay).step(grads, carry[1], carry[0]), None

        return jax.lax.scan(body, (params, make(0.0).init(params)), (stacked, rates))[0]

    stacked = {name: np.stack([grads[name] for grads in steps]) for name in start}
    found, last = train(params, arrays(stacked), rates, np.float32(0.25))
    assert_same(expected, found)
    assert int(last.count) == 4


@both
def test_donated_parameters_and_state(make: Any, rng: Any) -> None:
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 3))
    optimizer = make(1e-2)
    expected, _ = several(optimizer, start, steps)
    step = jax.jit(optimizer.step, donate_argnums=(1, 2))
    params = arrays(start)
    state = optimizer.init(params)
    for grads in steps:
        params, state = step(arrays(grads), state, params)
    assert_same(expected, params)


def test_a_model_of_flax(rng: Any) -> None:
    x = rng.normal(size=(4, 6)).astype(np.float32)
    model = nnx.Linear(6, 70, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optim.adamw(1e-2), wrt=nnx.Param)
    own = optim.adamw(1e-2)
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    state = own.init(params)

    def loss(model: Any) -> Any:
        return (model(x) ** 2).mean()

    for _ in range(2):
        grads = nnx.grad(loss)(model)
        params, state = own.step(nnx.as_pure(grads), state, params)
        optimizer.update(model, grads)
    assert_same({"w": params["kernel"]}, {"w": model.kernel[...]})
    assert_same({"b": params["bias"]}, {"b": model.bias[...]})


def test_a_model_of_equinox() -> None:
    model = eqx.nn.Linear(6, 70, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    optimizer = optim.sgd(0.1, 0.9)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    changed = eqx.apply_updates(model, updates)
    own = optim.apply_updates(model, updates)
    assert_same({"w": changed.weight}, {"w": own.weight})
    assert_same(
        {"w": optimizer.step(params, optimizer.init(params), params)[0].weight},
        {"w": changed.weight},
    )


def test_updates_of_16_bits_are_rounded_once(rng: Any) -> None:
    """The sum of a parameter and its update is rounded, and not the update before it."""
    start = {"w": jnp.asarray(rng.normal(size=4096), jnp.bfloat16)}
    optimizer = optim.adamw(1e-2)
    updates, state = optimizer.update(start, optimizer.init(start), start)
    assert updates["w"].dtype == state.mu["w"].dtype == jnp.float32
    rounded = start["w"] + updates["w"].astype(jnp.bfloat16)
    assert np.count_nonzero(rounded != optim.apply_updates(start, updates)["w"]) > 10


def test_bad_input_is_named() -> None:
    params = {"a": jnp.ones(2), "b": jnp.ones((2, 3))}
    for make, words in (
        (lambda: optim.adamw(0.1, b1=1.0), "adamw: b1 is 1.0, expected a number from 0 on, below"),
        (lambda: optim.adamw(0.1, eps=-1), "adamw: eps is -1.0, expected a finite number from 0"),
        (lambda: optim.sgd(0.1, -0.5), "sgd: momentum is -0.5, expected a finite number from 0"),
        (lambda: optim.sgd(0.1, nesterov=True), "sgd: nesterov is True with momentum None"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(TypeError, match="adamw: b1 is traced, expected a number"):
        jax.jit(lambda b1: optim.adamw(0.1, b1).init(params))(0.9)
    for optimizer in (optim.adamw(0.1), optim.sgd(0.1, 0.9)):
        state = optimizer.init(params)
        for grads, error, words in (
            ({"a": params["a"]}, ValueError, "params has no gradient for 'b'"),
            ({"a": params["a"], "b": None}, ValueError, "params has no gradient for 'b'"),
            ({**params, "b": jnp.ones((3, 2))}, ValueError, r"b has a gradient of shape \[3, 2\]"),
            ({**params, "b": jnp.ones((2, 3), int)}, TypeError, "b has a gradient of int32"),
            ({**params, "b": 1.0}, TypeError, "b has a gradient of float"),
        ):
            with pytest.raises(error, match=words):
                optimizer.update(grads, state, params)
        with pytest.raises(ValueError, match="params is None, expected the parameters"):
            optimizer.update(params, state)
    with pytest.raises(ValueError, match=r"learning_rate has shape \[2\], expected a number"):
        optim.adamw(jnp.ones(2)).step(params, optim.adamw(0.1).init(params), params)
    with jax.enable_x64(True):
        wide = {**params, "b": jnp.ones((2, 3), jnp.float64)}
        with pytest.raises(TypeError, match="b has a gradient of float64, expected one of"):
            optim.adamw(0.1).step(wide, optim.adamw(0.1).init(params), params)


@pytest.mark.parametrize("make", [lambda: optim.adamw(0.1), lambda: optim.sgd(0.1, 0.9)])
def test_a_state_that_does_not_fit_is_refused(make: Any) -> None:
    """Another shape with as many elements would be read in another order."""
    optimizer, params = make(), {"w": jnp.ones((2, 3))}
    for other in (jnp.ones((3, 2)), jnp.ones((2, 3), jnp.bfloat16)):
        state = jax.tree.map(lambda x, other=other: other if x.ndim else x, optimizer.init(params))
        found = f"w has a state {other.dtype.name} {list(other.shape)}, expected float32 [2, 3]"
        with pytest.raises(ValueError, match=re.escape(found)):
            optimizer.step(params, state, params)
    assert optimizer.init({"w": 1.0}).count == 0
    with pytest.raises(TypeError, match="w has a gradient of float"):
        optimizer.step({"w": 1.0}, optimizer.init({"w": 1.0}), {"w": 1.0})


def test_updates_of_another_shape_are_refused() -> None:
    words = re.escape("an update has shape [3, 2], expected [2, 3]")
    with pytest.raises(ValueError, match=words):
        optim.apply_updates({"w": jnp.ones((2, 3))}, {"w": jnp.ones((3, 2))})
    assert optim.apply_updates({"w": 1.0}, {"w": jnp.float32(1.0)})["w"] == 2.0


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
@pytest.mark.parametrize("value", [None, "large"])
def test_numbers_are_named(name: str, value: Any) -> None:
    params = {"w": jnp.ones(2)}
    optimizer = optim.adamw(**{"learning_rate": 0.1, name: value})
    words = f"adamw: {name} has type {type(value).__name__}, expected a number"
    with pytest.raises(TypeError, match=words):
        optimizer.step(params, optimizer.init(params), params)


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        ({"w": "no"}, TypeError, "mask is 'no', expected True or False"),
        ({"w": np.array([True, False])}, TypeError, "mask is array"),
        ({"v": True}, ValueError, "mask has another structure than the parameters"),
    ],
)
def test_masks_are_checked(mask: Any, error: Any, words: str) -> None:
    params = {"w": jnp.ones(2)}
    for optimizer in (optim.adamw(0.1, mask=mask), optim.sgd(0.1, mask=mask)):
        with pytest.raises(error, match=words):
            optimizer.step(params, optimizer.init(params), params)
    kept = optim.adamw(0.1, mask={"w": np.bool_(True)})
    kept.step(params, kept.init(params), params)


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
def test_numbers_beyond_float32_are_refused(name: str) -> None:
    params = {"w": jnp.ones(2)}
    optimizer = optim.adamw(**{"learning_rate": 0.1, name: 1e40})
    with pytest.raises(ValueError, match=rf"adamw: {name} is 1e\+40, expected a number up to 3.4e"):
        optimizer.step(params, optimizer.init(params), params)


@pytest.mark.filterwarnings("error")
def test_arrays_of_numpy() -> None:
    params = {"w": np.ones((2, 3))}
    optimizer = optim.adamw(0.1)
    found, _ = optimizer.step(params, optimizer.init(params), params)
    assert found["w"].dtype == jnp.float32
