"""Modules of JAX in torch: names, training, modes, buffers, copies."""

from __future__ import annotations

import copy
import io
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax import numpy as jnp
from torch.utils.checkpoint import checkpoint

from bridge.torch import JaxModule


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(6, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.tied = self.layers[0].bias

    def __call__(self, x: Any, scale: Any = 1.0) -> Any:
        x = self.drop(self.norm(self.layers[0](x)))
        return self.layers[1](x) * scale + self.tied.sum()

    def first(self, x: Any, flip: bool = False) -> Any:
        return -self.layers[0](x) if flip else self.layers[0](x)


@pytest.fixture
def net() -> Net:
    return Net(nnx.Rngs(0))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_random_numbers_are_not_drawn_again(net: Net, x: torch.Tensor, use_reentrant: bool) -> None:
    """A checkpoint would draw others in the backward pass; without any it may recompute."""
    module = JaxModule(net)
    x.requires_grad_()
    y = checkpoint(module, x, use_reentrant=use_reentrant)
    with pytest.raises(RuntimeError, match=r"draws random numbers .drop.rngs.count. while"):
        y.sum().backward()
    module(x).sum().backward()
    module.eval()
    checkpoint(module, x, use_reentrant=use_reentrant).sum().backward()


class Changing(nnx.Module):
    def __init__(self, value: Any, change: Any) -> None:
        self.weight, self.value = nnx.Param(jnp.ones(3)), nnx.Variable(value)
        self.change = change

    def __call__(self, x: Any, name: float = 1.0, module: float = 1.0) -> Any:
        self.value.set_value(self.change(self.value.get_value()))
        return x * self.weight[...] * name


@pytest.mark.parametrize(
    ("value", "change", "words"),
    [
        (jnp.zeros((), jnp.int32), lambda v: v + 0.5, "by torch.float32 of shape .., expected"),
        (jnp.zeros(3), jnp.sum, r"by torch.float32 of shape .., expected torch.float32 of sh"),
        (jnp.zeros(()), lambda v: v + jnp.ones(3), r"by torch.float32 of shape .3., expected"),
    ],
)
def test_state_of_another_kind_is_refused(value: Any, change: Any, words: str) -> None:
    module = JaxModule(Changing(value, change))
    with pytest.raises(ValueError, match=words):
        module(torch.ones(3))
    assert torch.equal(module.value, torch.zeros(value.shape, dtype=module.value.dtype))


def test_arguments_of_any_name() -> None:
    module = JaxModule(Changing(jnp.zeros(()), lambda v: v + 1))
    assert torch.equal(module(torch.ones(3), name=2.0, module=3.0).detach(), torch.full((3,), 2.0))


def test_names_kinds_and_values(net: Net) -> None:
    module = JaxModule(net)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    # The tied bias appears once.
    assert sorted(parameters) == sorted(
        [
            *("layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel"),
            *("norm.bias", "norm.scale"),
        ]
    )
    assert sorted(buffers) == ["drop.rngs.count", "drop.rngs.key", "norm.mean", "norm.var"]
    kernel = parameters["layers.0.kernel"]
    np.testing.assert_array_equal(kernel.detach().numpy(), net.layers[0].kernel[...])
    # Much of torch, such as process groups, does not support uint32.
    assert buffers["drop.rngs.key"].dtype == buffers["drop.rngs.count"].dtype == torch.int32
    with torch.no_grad():
        kernel.add_(1)
    assert not np.array_equal(kernel.detach().numpy(), net.layers[0].kernel[...])


def test_a_step_is_that_of_flax(net: Net, x: torch.Tensor) -> None:
    """Gradients, batch statistics and the dropout stream agree with Flax in training mode."""
    module = JaxModule(net)
    expected = nnx.clone(net)

    def loss(model: Net) -> Any:
        return jnp.sum(model(jnp.asarray(x), 2.0) ** 2)

    value, gradients = nnx.value_and_grad(loss)(expected)
    ours = module(x, 2.0).square().sum()
    ours.backward()
    np.testing.assert_allclose(ours.item(), value, rtol=1e-6)
    for name, parameter in module.named_parameters():
        want = gradients
        for part in name.split("."):
            want = want[int(part) if part.isdigit() else part]
        np.testing.assert_allclose(parameter.grad.numpy(), want[...], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(module.norm.mean.numpy(), expected.norm.mean[...], rtol=1e-6)
    assert int(module.drop.rngs.count) == int(expected.drop.rngs.count[...])


def test_modes(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net)
    assert module.training
    first, second = module(x), module(x)
    assert not torch.equal(first, second), "dropout draws anew"
    module.eval()
    before = {name: value.clone() for name, value in module.named_buffers()}
    assert torch.equal(module(x), module(x))
    assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())
    assert module.cache_info().traces == 2
    module.train()
    module(x)
    assert not torch.equal(module.norm.mean, before["norm.mean"])
    assert module.cache_info().traces == 2


def test_two_calls_before_a_backward_pass(net: Net, x: torch.Tensor) -> None:
    """Statistics are written after each call; the residuals of earlier calls do not change."""
    module = JaxModule(net)
    (module(x).square().sum() + module(2 * x).square().sum()).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_state_dict(net: Net, x: torch.Tensor) -> None:
    module, other = JaxModule(net), JaxModule(Net(nnx.Rngs(7)))
    module(x)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(module(x), other(x), rtol=0, atol=0)


def test_back_to_jax(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net)
    module(x)
    module.eval()
    back = module.jax_module()
    assert isinstance(back, Net)
    np.testing.assert_allclose(back(x.numpy()), module(x).detach().numpy(), rtol=1e-5)
    assert back.norm.use_running_average
    assert back.tied is back.layers[0].bias


def test_what_cannot_go_back_to_jax_is_named(net: Net) -> None:
    module = JaxModule(net)
    name = next(name for name, _ in module.named_parameters())
    with pytest.raises(ValueError, match=rf"^JaxModule.jax_module: {name}: .*jax_enable_x64"):
        module.double().jax_module()
    with pytest.raises(ValueError, match=rf"^JaxModule.jax_module: {name}: .*meta"):
        module.float().to("meta").jax_module()


def test_copies_are_independent(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net).eval()
    before = module(x)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    assert torch.equal(module(x), before)
    assert not torch.equal(other(x), before)


def test_training(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    target = torch.arange(15.0).reshape(5, 3) / 10
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (module(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.5 * losses[0]
    assert module.cache_info().traces == 1


def test_methods(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net, "first", static_argnames="flip")
    assert torch.equal(module(x), -module(x, flip=True))
    assert torch.equal(module(x), JaxModule(net, lambda m, x: m.first(x))(x))


def test_torch_func(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net).eval()
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, (parameters, buffers), (x,)).square().sum()

    gradients = torch.func.grad(loss)(parameters, x)
    module(x).square().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(gradients[name], parameter.grad)
    rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x[:, None])
    for name, parameter in parameters.items():
        torch.testing.assert_close(rows[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-5)


def test_under_compile(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net)
    expected = copy.deepcopy(module)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        ours, theirs = compiled(x), expected(x)
        torch.testing.assert_close(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
    torch.testing.assert_close(module.norm.mean, expected.norm.mean)
    assert int(module.drop.rngs.count) == 2
    for mine, other in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_dtype_changes(net: Net, x: torch.Tensor) -> None:
    module = JaxModule(net, "first").to(torch.bfloat16)
    assert module.drop.rngs.key.dtype == torch.int32
    module(x.to(torch.bfloat16)).sum().backward()
    assert module.layers.get_submodule("0").kernel.grad.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_sown_values_are_left_behind(x: torch.Tensor) -> None:
    class Sowing(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            y = self.linear(x)
            self.sow(nnx.Intermediate, "y", y)
            return y

    assert JaxModule(Sowing(nnx.Rngs(0)))(x).shape == (5, 2)


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 0.0), ("cold", "warm"), (False, True)])
def test_changes_of_plain_attributes_are_refused(before: Any, after: Any) -> None:
    """The next call would start from the same value, while nnx.jit keeps the change."""

    class Counting(nnx.Module):
        def __init__(self) -> None:
            self.weight, self.layers = nnx.Param(jnp.ones(3)), nnx.List([nnx.Module()])
            self.layers[0].state = before

        def __call__(self, x: Any) -> Any:
            self.eval()  # a mode is no state
            self.deterministic = True
            self.layers[0].state = after
            return x

    with pytest.raises(TypeError, match=f"changed layers.0.state from {before!r} to {after!r}"):
        JaxModule(Counting())(torch.ones(3))


@pytest.mark.parametrize("kind", [list, tuple, lambda layers: {"all": layers}])
def test_modules_in_containers(kind: Any, x: torch.Tensor) -> None:
    """Their buffers, random streams and modes are those of modules in an NNX module."""
    rngs = nnx.Rngs(0)
    layers = [nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)]

    def run(layers: Any, x: Any) -> Any:
        norm, drop = layers["all"] if isinstance(layers, dict) else layers
        return drop(norm(x))

    module, expected = JaxModule(kind(layers), run), JaxModule(nnx.Sequential(*layers))
    x = x + 10
    assert len(list(module.parameters())) == 2
    for _ in range(2):
        assert torch.equal(module(x), expected(x))
    assert torch.equal(module.eval()(x), expected.eval()(x))
    ours, wanted = module.state_dict().values(), expected.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))


def test_plain_arrays_beside_nnx_modules_are_refused() -> None:
    layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(0)), jnp.ones(3)]
    with pytest.raises(TypeError, match=r"the array 1, expected nnx\.Param"):
        JaxModule(layers, lambda layers, x: layers[0](x))


def test_names_that_torch_has(x: torch.Tensor) -> None:
    class Odd(nnx.Module):
        def __init__(self) -> None:
            self.training = nnx.Param(jnp.ones(4))
            self.forward = nnx.Param(jnp.ones(4))

        def __call__(self, x: Any) -> Any:
            return x * self.training * self.forward

    module = JaxModule(Odd())
    assert sorted(module.state_dict()) == ["forward_", "training_"]
    assert torch.equal(module(x), x)


def test_equinox(x: torch.Tensor) -> None:
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.Sequential(
        [
            equinox.nn.Linear(4, 3, key=jax.random.key(0)),
            equinox.nn.Lambda(jnp.tanh),
            equinox.nn.Dropout(0.5),
        ]
    )

    def rows(model: Any, x: Any, key: Any) -> Any:
        return jax.vmap(model)(x, key=jax.random.split(key, len(x)))

    module, key = JaxModule(model, rows), jax.random.key(1)
    assert sorted(module.state_dict()) == ["layers.0.bias", "layers.0.weight"]
    y = module(x, key)
    np.testing.assert_allclose(y.detach().numpy(), rows(model, x.numpy(), key), rtol=1e-6)
    assert not torch.equal(module(x, jax.random.key(2)), y)
    y.sum().backward()
    assert module.layers.get_submodule("0").weight.grad.abs().sum() > 0
    module.eval()
    assert torch.equal(module(x, jax.random.key(2)), module(x, key))
    assert isinstance(module.jax_module(), equinox.nn.Sequential)


def test_equinox_modules_in_containers() -> None:
    equinox = pytest.importorskip("equinox")
    module = JaxModule(
        {"drop": equinox.nn.Dropout(0.5), "weight": jnp.ones(64)},
        lambda m, x: m["drop"](x * m["weight"], key=jax.random.key(0)),
    )
    assert not torch.equal(module(torch.ones(64)), torch.ones(64))
    assert torch.equal(module.eval()(torch.ones(64)), torch.ones(64))


def test_equinox_state(x: torch.Tensor) -> None:
    equinox = pytest.importorskip("equinox")
    norm, state = equinox.nn.make_with_state(equinox.nn.BatchNorm)(
        4, axis_name="batch", mode="batch"
    )

    def rows(norm: Any, x: Any, state: Any) -> Any:
        return jax.vmap(norm, (0, None), (0, None), axis_name="batch")(x, state)

    module = JaxModule(norm, rows)
    y, new = module(x, state)
    expected, expected_state = rows(norm, jnp.asarray(x), state)
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    again, _ = module(x, new)
    expected_again, _ = rows(norm, jnp.asarray(x), expected_state)
    np.testing.assert_allclose(again.detach().numpy(), expected_again, rtol=1e-5, atol=1e-6)


def test_a_pytree_of_parameters(x: torch.Tensor) -> None:
    from flax import linen

    model = linen.Dense(3)
    variables = model.init(jax.random.key(0), x.numpy())
    module = JaxModule(variables, lambda v, x: model.apply(v, x))
    assert sorted(module.state_dict()) == ["params.bias", "params.kernel"]
    np.testing.assert_allclose(
        module(x).detach().numpy(), model.apply(variables, x.numpy()), rtol=1e-6
    )


def test_refusals(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="torch module, Linear, expected a module of JAX"):
        JaxModule(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="type Net, which has no method 'missing'"):
        JaxModule(net, "missing")
    with pytest.raises(TypeError, match="method has type int, expected a name or a function"):
        JaxModule(net, 3)
    with pytest.raises(TypeError, match="type dict and no arrays, expected a Flax NNX"):
        JaxModule({}, lambda m, x: x)

    class Writing(nnx.Module):
        def __init__(self) -> None:
            self.scale = nnx.Param(jnp.ones(4))

        def __call__(self, x: Any) -> Any:
            self.scale[...] = self.scale[...] * 2
            return x * self.scale

    with pytest.raises(TypeError, match="writes to its parameter scale"):
        JaxModule(Writing())(x)


def test_errors_name_parameters_and_arguments(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"^from_jax: args\[0\]: Tensor, .* is torch.sparse_coo"):
        JaxModule(net)(x.to_sparse())
    module = JaxModule({"a": {"b": jnp.ones(3)}, "a.b": jnp.zeros(3)}, lambda v, x: (v, x))
    (own, _) = module(x)
    assert own["a"]["b"].tolist() == [1, 1, 1]
    assert own["a.b"].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"^from_jax: parameters\['a.b_?'\]: .* is on meta"):
        module.to("meta")(x)
