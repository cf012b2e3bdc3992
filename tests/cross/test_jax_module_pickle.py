"""JaxModule through copy, torch.save and spawned processes; and modules that pickle refuses."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from typing import Any

import cloudpickle
import equinox as eqx
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp

from bridge.torch import JaxModule


class Net(nnx.Module):
    """A module that is hard to pickle: JAX functions as attributes, random streams, tied arrays."""

    def __init__(self, rngs: nnx.Rngs, activation: Any = jax.nn.relu) -> None:
        self.layers = nnx.List([nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.activation = activation
        self.tied = self.layers[0].bias

    def __call__(self, x: Any) -> Any:
        x = self.drop(self.activation(self.norm(self.layers[0](x))))
        return self.layers[1](x) + self.tied.sum()


class Dense(eqx.Module):
    linear: eqx.nn.Linear
    drop: eqx.nn.Dropout
    activation: Any
    times: Any = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.times(self.activation(self.linear(x)))


def twice(x: Any) -> Any:
    return 2 * x


class Stubborn:
    def __call__(self, x: Any) -> Any:
        return jnp.abs(x)

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def affine(variables: Any, x: Any) -> Any:
    return x @ variables["w"] + variables["b"]


def each_row(module: Any, x: Any) -> Any:
    return jax.vmap(module)(x)


def dense() -> JaxModule:
    linear = eqx.nn.Linear(4, 3, key=jax.random.key(1))
    return JaxModule(Dense(linear, eqx.nn.Dropout(0.5), jnp.tanh, twice), each_row)


MODULES = {
    "Flax NNX": lambda: JaxModule(Net(nnx.Rngs(0))),
    "Equinox": dense,
    "a pytree": lambda: JaxModule({"w": jnp.eye(4, 3), "b": jnp.arange(3.0)}, affine),
}
each = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())


def saved_and_loaded(module: torch.nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved_and_loaded,
    "cloudpickle": lambda module: pickle.loads(cloudpickle.dumps(module)),
}


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.long
@each
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_copies_compute_the_same_and_are_independent(make: Any, way: Any, x: Any) -> None:
    module = make()
    with torch.no_grad():  # values other than the JAX module's
        for parameter in module.parameters():
            parameter.mul_(1.5)
    module(x)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), module)
    other = way(model)
    assert list(other.state_dict()) == list(model.state_dict())
    for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()
    assert repr(other) == repr(model)
    for training in (True, False):
        model.train(training), other.train(training)
        values = [m(x) for m in (model, other)]
        assert torch.equal(*values)
        gradients = [
            torch.autograd.grad(y.square().sum(), list(m.parameters()))
            for m, y in zip((model, other), values, strict=True)
        ]
        for ours, theirs in zip(*gradients, strict=True):
            assert torch.equal(ours, theirs)
    before = model(x)
    with torch.no_grad():
        for parameter in other[1].parameters():
            parameter.mul_(2)
    assert torch.equal(model(x), before)
    assert not torch.equal(other(x), before)
    ours, theirs = (jax.tree.leaves(m[1].jax_module()) for m in (model, other))
    assert [np.shape(leaf) for leaf in ours] == [np.shape(leaf) for leaf in theirs]


def test_a_pickle_holds_each_array_once() -> None:
    module = JaxModule({"w": jnp.ones((64, 64)), "b": jnp.ones(64)}, affine)
    assert len(pickle.dumps(module)) < 1.5 * 4 * 64 * 64


def _answer(modules: Any, x: torch.Tensor, results: Any) -> None:
    results.put([module(x).detach().numpy() for module in modules])


@pytest.mark.long
def test_spawn(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    modules = torch.nn.ModuleList([make() for make in MODULES.values()]).eval()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_answer, args=(modules, x, results))
    child.start()
    try:
        answers = results.get(timeout=240)
    finally:
        child.join(60)
    assert child.exitcode == 0
    for module, answer in zip(modules, answers, strict=True):
        np.testing.assert_array_equal(answer, module(x).detach().numpy())


def _local() -> Any:
    def inner(variables: Any, x: Any) -> Any:
        return affine(variables, x)

    return inner


UNNAMED = {
    "a lambda as method": (
        lambda: JaxModule({"w": jnp.eye(4, 3), "b": jnp.ones(3)}, lambda v, x: affine(v, x)),
        r"JaxModule: dict holds the function .*<lambda> \(.*test_jax_module_pickle.py, line \d+\)",
    ),
    "a local function as method": (
        lambda: JaxModule({"w": jnp.eye(4, 3), "b": jnp.ones(3)}, _local()),
        r"JaxModule: dict holds the function _local\.<locals>\.inner \(",
    ),
    "a lambda in the module": (
        lambda: JaxModule(Net(nnx.Rngs(0), lambda x: jnp.maximum(x, 0))),
        r"JaxModule: Net holds the function .*<lambda> \(",
    ),
    "what no pickle takes": (
        lambda: JaxModule(Net(nnx.Rngs(0), Stubborn())),
        r"JaxModule: Net holds a value that cannot be pickled \(not to be pickled\)",
    ),
}


@pytest.mark.parametrize(("make", "message"), UNNAMED.values(), ids=UNNAMED.keys())
def test_what_has_no_name(make: Any, message: str, x: torch.Tensor) -> None:
    module = make().eval()
    for save in (pickle.dumps, lambda m: torch.save(m, io.BytesIO())):
        with pytest.raises(pickle.PicklingError, match=message):
            save(torch.nn.Sequential(module))
    assert torch.equal(copy.deepcopy(module)(x), module(x))


def test_cloudpickle_takes_functions_by_value(x: torch.Tensor) -> None:
    module = UNNAMED["a lambda as method"][0]()
    assert torch.equal(pickle.loads(cloudpickle.dumps(module))(x), module(x))
