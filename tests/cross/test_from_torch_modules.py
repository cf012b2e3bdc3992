"""Torch modules as JAX functions of their parameters and buffers."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from jax import numpy as jnp
from torch import nn
from torch.nn.utils import prune

from bridge.jax import from_torch


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    torch.manual_seed(0)
    with jax.enable_x64(True):
        yield


def as_it_is(function: Any) -> Any:
    return function


where = pytest.mark.parametrize("where", [as_it_is, jax.jit], ids=["eager", "jit"])


def near(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        expected = expected.detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@where
def test_gradients_towards_parameters(where: Any) -> None:
    module = perceptron()
    x = torch.randn(5, 4, dtype=torch.float64)
    loss = (module(x) ** 2).sum()
    loss.backward()
    g = from_torch(module)
    value, gradients = where(jax.value_and_grad(lambda params, x: (g(params, x) ** 2).sum()))(
        g.params(), x.numpy()
    )
    near(value, loss)
    expected = dict(module.named_parameters())
    assert gradients.keys() == expected.keys()
    for name, parameter in expected.items():
        near(gradients[name], parameter.grad)


def test_params_are_copies(monkeypatch: Any) -> None:
    module = perceptron()
    g = from_torch(module)
    params = g.params()
    before = np.array(params["0.weight"])
    with torch.no_grad():
        module[0].weight.zero_()
    near(params["0.weight"], before)
    assert not np.any(g.params()["0.weight"])


@where
def test_the_module_itself_stays_as_it_is(where: Any) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    g = from_torch(module, train=True)
    x = np.random.default_rng(0).standard_normal((5, 4))
    where(lambda params, buffers, x: g(params, x, buffers=buffers))(g.params(), g.buffers(), x)
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(p.grad is None and p.device.type == "cpu" for p in module.parameters())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3, dtype=torch.float64)
        self.head = nn.Linear(3, 6, bias=False, dtype=torch.float64)
        self.head.weight = self.embedding.weight

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(index))


@where
def test_tied_weights_come_once(where: Any) -> None:
    module = Tied()
    g = from_torch(module)
    params = g.params()
    assert list(params) == ["embedding.weight"]
    index = torch.tensor([1, 5, 1])
    (module(index) ** 2).sum().backward()
    found = where(jax.grad(lambda p: (g(p, jnp.asarray(index.numpy())) ** 2).sum()))(params)
    near(found["embedding.weight"], module.embedding.weight.grad)
    changed = where(lambda p: g(p, jnp.asarray(index.numpy())))(
        jax.tree.map(lambda p: p * 2, params)
    )
    near(changed, module(index) * 4)


@where
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d, lambda d: nn.InstanceNorm1d(d, track_running_stats=True)]
)
def test_buffers_come_back_new(where: Any, norm: Any) -> None:
    module = norm(3).double()
    g = from_torch(module, train=True)
    x = torch.randn(5, 3, 7, dtype=torch.float64)
    given = g.buffers()
    expected = module(x)
    y, buffers = where(lambda p, b, x: g(p, x, buffers=b))(g.params(), given, x.numpy())
    near(y, expected)
    after = dict(module.named_buffers())
    assert buffers.keys() == after.keys()
    for name, buffer in after.items():
        near(buffers[name], buffer)
    near(given["running_mean"], np.zeros(3))
    # Evaluation with the new buffers as constants of the call.
    evaluate = from_torch(module, train=False)
    near(where(evaluate)(evaluate.params(), x.numpy()), module.eval()(x))
    same, unchanged = evaluate(evaluate.params(), x.numpy(), buffers=buffers)
    near(same, module(x))
    near(unchanged["running_mean"], after["running_mean"])


def test_gradients_in_training_mode_with_buffers() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    c = torch.randn(5, 3, dtype=torch.float64)
    g = from_torch(module, train=True)

    def loss(params: Any, buffers: Any) -> Any:
        y, buffers = g(params, x.numpy(), buffers=buffers)
        # Gradients do not flow through buffers.
        return (y * c.numpy()).sum() + buffers["1.running_mean"].sum(), buffers

    gradients, buffers = jax.jit(jax.grad(loss, has_aux=True))(g.params(), g.buffers())
    (module(x) * c).sum().backward()
    for name, parameter in module.named_parameters():
        near(gradients[name], parameter.grad)
    near(buffers["1.running_var"], module[1].running_var)
    tangents = jax.jvp(lambda p: loss(p, g.buffers())[0], (g.params(),), (gradients,))[1]
    near(tangents, sum((parameter.grad**2).sum() for parameter in module.parameters()))


def test_buffers_set_anew_are_returned() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return x * self.count

    g = from_torch(Counter())
    y, buffers = jax.jit(lambda x, b: g({}, x, buffers=b))(jnp.ones(3), g.buffers())
    y, buffers = g({}, y, buffers=buffers)
    near(y, np.full(3, 2.0))
    near(buffers["count"], 2)


def test_wide_buffers_are_narrow_without_x64() -> None:
    module = nn.BatchNorm1d(3)
    g = from_torch(module, train=True)
    with jax.enable_x64(False):
        buffers = g.buffers()
        assert buffers["num_batches_tracked"].dtype == jnp.int32
        _, buffers = jax.jit(lambda b: g(g.params(), jnp.ones((2, 3)), buffers=b))(buffers)
        assert buffers["num_batches_tracked"].dtype == jnp.int32
        assert int(buffers["num_batches_tracked"]) == 1


def test_modes_are_kept_or_set() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    module[1].eval()
    x = jnp.ones(400, jnp.float32)
    as_now = from_torch(module, seeded=True)({}, x, seed=0)
    module.eval()
    near(from_torch(module)({}, x), x)
    near(from_torch(module.train(), train=False)({}, x), x)
    both = from_torch(module, train=True, seeded=True)({}, x, seed=0)
    assert set(np.unique(as_now)) == {0.0, 2.0}
    assert set(np.unique(both)) == {0.0, 4.0}


@where
@pytest.mark.parametrize("kind", ["lstm", "encoder", "weight norm"])
def test_modules_that_hold_their_weights_in_other_ways(where: Any, kind: str) -> None:
    if kind == "lstm":
        module: nn.Module = nn.LSTM(3, 4, num_layers=2)
    elif kind == "encoder":
        module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    else:
        module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    module = module.double()
    x = torch.randn(2, 5, 8 if kind == "encoder" else 3, dtype=torch.float64)

    def loss(y: Any) -> Any:
        y = y[0] if kind == "lstm" else y
        return (y * y).sum()

    loss(module(x)).backward()
    g = from_torch(module, train=True)
    gradients = where(jax.grad(lambda p: loss(g(p, x.numpy()))))(g.params())
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize("kind", ["weight norm", "spectral norm", "pruned"])
def test_weights_that_hooks_compute(kind: str) -> None:
    """torch's older functions leave the weight of the last call in an attribute."""
    module: nn.Module = nn.Sequential(nn.Linear(3, 4).double())
    if kind == "weight norm":
        nn.utils.weight_norm(module[0], dim=0)  # type: ignore[index]
    elif kind == "spectral norm":
        nn.utils.spectral_norm(module[0])  # type: ignore[index]
    else:
        prune.random_unstructured(module[0], "weight", 0.5)  # type: ignore[index]
    x = torch.randn(2, 3, dtype=torch.float64)
    module(x)
    module.eval()
    (module(x) ** 2).sum().backward()
    g = from_torch(module)
    for of in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        gradients = of(lambda p: (g(p, x.numpy()) ** 2).sum())(g.params())
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-7, atol=1e-9)


def test_a_tensor_that_was_computed_from_parameters_is_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 4))
    module[0].doubled = 2 * module[0].weight
    with pytest.raises(TypeError, match=r"0\.doubled of the module, Sequential, is computed from"):
        from_torch(module)


def test_per_sample_gradients_by_vmap() -> None:
    module = perceptron()
    x = np.random.default_rng(0).standard_normal((3, 4))
    g = from_torch(module, vmap_method="vmap")
    params = g.params()
    each = jax.jit(jax.vmap(jax.grad(lambda p, x: g(p, x).sum()), (None, 0)))(params, x)
    for i in range(3):
        one = jax.grad(lambda p, x: g(p, x).sum())(params, x[i])
        jax.tree.map(lambda a, b, i=i: near(a[i], b), each, one)


def test_an_ensemble_by_vmap_over_parameters() -> None:
    g = from_torch(perceptron(), vmap_method="vmap")
    members = [from_torch(perceptron()).params() for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    x = np.random.default_rng(0).standard_normal((5, 4))
    y = jax.vmap(g, (0, None))(stacked, x)
    for i, member in enumerate(members):
        near(y[i], g(member, x))


def test_calls_at_once_do_not_mix_parameters() -> None:
    """Each thread has its own parameters, while a module holds one set at a time."""
    g = from_torch(perceptron())
    x = np.random.default_rng(0).standard_normal((5, 4))
    sets = [jax.tree.map(lambda p, k=k: p * k, g.params()) for k in range(4)]
    expected = [np.asarray(g(params, x)) for params in sets]
    jitted = jax.jit(g)
    wrong = []

    def work(k: int) -> None:
        for i in range(50):
            found = (g if i % 2 else jitted)(sets[k], x)
            if not np.allclose(found, expected[k]):
                wrong.append(k)

    with jax.enable_x64(True):
        threads = [threading.Thread(target=_wide, args=(work, k)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def _wide(work: Any, k: int) -> None:
    with jax.enable_x64(True):
        work(k)


class Table(nn.Module):
    """Creates a tensor at its first call, and keeps it."""

    mask: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)
        return (x * self.mask).t()


def test_what_a_traced_module_made_itself_is_made_again() -> None:
    x = jnp.ones((2, 8))
    expected = np.linspace(0, 1, 8)[:, None] * np.ones((1, 2))
    np.testing.assert_allclose(jax.jit(from_torch(Table()))({}, x), expected)
    g = from_torch(Table())
    assert jax.eval_shape(g, {}, x).shape == (8, 2)
    np.testing.assert_allclose(g({}, x), expected)
    slope = jax.jit(jax.grad(lambda x: from_torch(Table())({}, x).sum()))(x)
    np.testing.assert_allclose(slope, expected.T)


def test_a_function_that_keeps_what_it_made_when_it_was_traced_is_refused() -> None:
    table = functools.cache(lambda count: torch.linspace(0, 1, count))
    f = from_torch(lambda x: x * table(x.shape[-1]))
    with pytest.raises(Exception, match="has kept a tensor from its trace"):
        jax.block_until_ready(jax.jit(f)(jnp.ones((2, 8))))
    with pytest.raises(ValueError, match="has kept a tensor from its trace"):
        f(jnp.ones((2, 8)))


class Again(nn.Module):
    """Computes its inner module again in the backward pass, and counts its runs."""

    def __init__(self, inner: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant
        self.runs: list[int] = []

    def __deepcopy__(self, memo: Any) -> Again:
        copied = Again(copy.deepcopy(self.inner, memo), self.reentrant)
        copied.runs = self.runs
        return copied

    def forward(self, x: torch.Tensor) -> Any:
        def run(x: torch.Tensor) -> Any:
            self.runs.append(1)
            return self.inner(x)

        return torch.utils.checkpoint.checkpoint(run, x, use_reentrant=self.reentrant)


@where
def test_checkpoints(where: Any) -> None:
    inner = nn.Sequential(perceptron(), nn.BatchNorm1d(2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    again = Again(inner)
    once, twice = from_torch(inner, train=True), from_torch(again, train=True)

    def penalty(params: Any, g: Any, prefix: str) -> Any:
        """Returns the gradients of a module, differentiated again."""

        def loss(params: Any) -> Any:
            named = {prefix + name: value for name, value in params.items()}
            y, buffers = g(named, x.numpy(), buffers=g.buffers())
            return (y**3).sum(), {n.removeprefix(prefix): b for n, b in buffers.items()}

        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return value + sum((d**2).sum() for d in gradients.values()), buffers

    def values(g: Any, prefix: str) -> Any:
        of = where(jax.value_and_grad(lambda p: penalty(p, g, prefix), has_aux=True))
        return jax.tree.map(np.asarray, of(once.params()))

    expected, before = values(once, ""), len(again.runs)
    jax.tree.map(near, values(twice, "inner."), expected)
    assert len(again.runs) > before
    # The modules of these calls are back in the pool with their own tensors.
    jax.tree.map(near, values(twice, "inner."), expected)


@where
def test_checkpoints_draw_the_same_again(where: Any) -> None:
    inner = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1)).double()
    x = np.ones((5, 4))
    found = []
    for module, prefix in ((inner, ""), (Again(inner), "inner.")):
        g = from_torch(module, train=True, seeded=True)
        gradient = where(jax.grad(lambda p, g=g: (g(p, x, seed=3) ** 2).sum()))
        state = torch.get_rng_state()
        found.append({n.removeprefix(prefix): d for n, d in gradient(g.params()).items()})
        assert torch.equal(torch.get_rng_state(), state)
    jax.tree.map(near, *found)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_are_refused_by_torch() -> None:
    g = from_torch(Again(perceptron(), reentrant=True))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        jax.grad(lambda x: g(g.params(), x).sum())(np.ones((2, 4)))


@where
def test_sparse_gradients_are_dense_in_jax(where: Any) -> None:
    g = from_torch(nn.Embedding(10, 3, sparse=True))
    i = jnp.array([1, 2, 1])
    (gradient,) = where(jax.grad(lambda p: g(p, i).sum()))(g.params()).values()
    np.testing.assert_array_equal(gradient.sum(-1), 3.0 * np.array([0, 2, 1, *[0] * 7]))


def test_derivatives_at_a_number_of_python() -> None:
    sine = from_torch(torch.sin)
    np.testing.assert_allclose(jax.grad(sine)(1.0), np.cos(1.0), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.grad(sine))(1.0), -np.sin(1.0), rtol=1e-6)
