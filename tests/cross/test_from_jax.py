"""JAX functions in torch: their arguments and results, compared with torch's own."""

from __future__ import annotations

import copy
import enum
import pickle
import threading
from collections import namedtuple
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

import bridge.jax
import bridge.torch
from bridge.torch import from_jax
from tests.cross.affine import affine, affine_arguments, torch_affine

pytestmark = pytest.mark.usefixtures("wide")

Pair = namedtuple("Pair", ["first", "second"])


def test_static_arguments_that_are_equal_and_not_the_same() -> None:
    inverse = from_jax(lambda x, n: x / jnp.float32(n), static_argnums=1)
    kind = from_jax(lambda x, n: x * (2 if isinstance(n[0], bool) else 3), static_argnums=1)
    x = torch.ones(1)
    assert [inverse(x, n).item() for n in (0.0, -0.0, 0)] == [np.inf, -np.inf, np.inf]
    assert [kind(x, n).item() for n in ((1,), (True,), (1.0,))] == [3, 2, 3]


def test_a_trace_outlives_the_caches_of_jax() -> None:
    """With a gradient and without one, a call has the variables of its trace."""
    factor = 2.0
    f, x = from_jax(lambda x: x * factor), torch.ones(1, requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x), x)
    factor = 3.0
    jax.clear_caches()
    assert f(x).item() == f(x.detach()).item() == gradient.item() == 2
    f.cache_clear()
    assert f(x).item() == f(x.detach()).item() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_backward_is_that_of_torch(draw: Any, dtype: torch.dtype) -> None:
    params, x = affine_arguments(draw, dtype)
    cotangent = draw(5, 3, dtype=dtype)
    y, expected = from_jax(affine)(params, x), torch_affine(params, x)
    torch.testing.assert_close(y, expected)
    inputs = list(params.values())
    ours = torch.autograd.grad(y, inputs, cotangent)
    for got, want in zip(ours, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(got, want)


def test_a_training_loop(draw: Any) -> None:
    """An optimizer that writes in place takes the same steps with either framework's function."""
    _, x = affine_arguments(draw)
    target = draw(5, 3)
    losses = []
    start = {"w": draw(4, 3), "b": draw(3)}
    for function in (from_jax(affine), torch_affine):
        params = {name: value.clone().requires_grad_() for name, value in start.items()}
        optimizer = torch.optim.Adam(params.values(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            loss = (function(params, x) - target).square().sum()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)


def test_pytrees_in_and_out(draw: Any) -> None:
    def fn(pair: Any, *, extra: Any) -> Any:
        out = {"sum": pair.first + pair.second[0], 3: (pair.first * 2, None)}
        return Pair(out["sum"], [out[3], extra["a"] - 1])

    a, b, c = draw(3), draw(3), draw(2)
    result = from_jax(fn)(Pair(a, [b, None]), extra={"a": c})
    assert type(result) is Pair
    assert type(result.second) is list
    assert result.second[0][1] is None
    torch.testing.assert_close(result.first, a + b)
    torch.testing.assert_close(result.second[0][0], a * 2)
    torch.testing.assert_close(result.second[1], c - 1)


def test_numbers_are_traced_and_other_leaves_static(draw: Any) -> None:
    seen = []

    def fn(x: Any, scale: float, how: str, dtype: Any) -> Any:
        seen.append(how)
        assert not isinstance(scale, float)
        return (x * scale if how == "times" else x + scale).astype(dtype)

    f, x = from_jax(fn), draw(3)
    torch.testing.assert_close(f(x, 2.0, "times", jnp.float64), x * 2)
    torch.testing.assert_close(f(x, 3.0, "times", jnp.float64), x * 3)
    torch.testing.assert_close(f(x, 3.0, "plus", jnp.float64), x + 3)
    assert f(x, 2, "times", jnp.float32).dtype == torch.float32
    assert seen == ["times", "plus", "times"]
    assert f.cache_info().calls == 4


def test_enums_are_static(draw: Any) -> None:
    class Mode(enum.IntEnum):
        PLUS = 1
        MINUS = 2

    f, x = from_jax(lambda x, mode: x if mode is Mode.PLUS else -x), draw(3)
    assert torch.equal(f(x, Mode.PLUS), x)
    assert torch.equal(f(x, Mode.MINUS), -x)


def test_a_number_does_not_widen() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    assert from_jax(lambda x, s: x * s)(x, 2.0).dtype == torch.bfloat16


def test_arrays_and_keys_pass(draw: Any) -> None:
    def fn(key: Any, x: Any, array: Any, other: Any) -> Any:
        new, sub = jax.random.split(key)
        return x + jax.random.normal(sub, x.shape) + array + other, new

    f, x = from_jax(fn), draw(3, grad=True)
    key, array, other = jax.random.key(3), jnp.arange(3.0), np.arange(3) * 10.0
    (y, new), (expected, expected_new) = (
        f(key, x, array, other),
        fn(key, jnp.asarray(x.detach()), array, other),
    )
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    assert jnp.all(jax.random.key_data(new) == jax.random.key_data(expected_new))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.ones(3, dtype=torch.float64))
    again, _ = f(new, x, array, other)
    assert not torch.equal(again, y)
    assert f.cache_info().traces == 1


def test_raw_keys_are_tensors(draw: Any) -> None:
    key = torch.tensor([0, 7], dtype=torch.uint32)
    y = from_jax(lambda k: jax.random.uniform(k, (4,)))(key)
    np.testing.assert_array_equal(y.numpy(), jax.random.uniform(jax.random.PRNGKey(7), (4,)))


@pytest.mark.parametrize(
    "statics", [{"static_argnums": 1}, {"static_argnums": (-1,)}, {"static_argnames": "n"}]
)
def test_static_arguments(draw: Any, statics: Any) -> None:
    def fn(x: Any, n: int) -> Any:
        assert type(n) is int
        return x**n

    f, x = from_jax(fn, **statics), draw(3)
    for call in (lambda n: f(x, n), lambda n: f(x, n=n)):
        torch.testing.assert_close(call(2), x**2)
        torch.testing.assert_close(call(3), x**3)
    assert from_jax(lambda x, n: x if n is True else -x, **statics)(x, True).equal(x)


def test_static_values_of_equal_hash_are_told_apart(draw: Any) -> None:
    f = from_jax(lambda x, n: x * 2 if n is True else x * 3, static_argnames="n")
    x = draw(2)
    torch.testing.assert_close(f(x, n=True), x * 2)
    torch.testing.assert_close(f(x, n=1), x * 3)
    torch.testing.assert_close(f(x, True), x * 2)
    torch.testing.assert_close(f(x, 1), x * 3)


def test_empty_tensors(draw: Any) -> None:
    x = draw(0, 3, grad=True)
    from_jax(lambda x: jnp.sin(x).sum())(x).backward()
    assert x.grad.shape == (0, 3)


def test_subclasses_without_a_meaning_of_their_own(draw: Any) -> None:
    class Image(torch.Tensor):
        pass

    x = draw(3, grad=True)
    y = from_jax(jnp.sin)(x.as_subclass(Image))
    torch.testing.assert_close(torch.Tensor(y), torch.sin(x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient.as_subclass(torch.Tensor), torch.cos(x))


def test_copies_and_pickles(draw: Any) -> None:
    arguments = affine_arguments(draw)
    f = from_jax(affine)
    for other in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert torch.equal(other(*arguments), f(*arguments))


@from_jax
def decorated(x: Any) -> Any:
    return jnp.sin(x)


class Methods:
    @from_jax
    def method(x: Any) -> Any:
        return jnp.sin(x)


@pytest.mark.parametrize("f", [decorated, Methods.method], ids=["function", "method"])
def test_decorated_functions_are_pickled_by_name(f: Any) -> None:
    x = torch.ones(3)
    expected = f(x)
    for again in (copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))):
        assert again(f) is f
    assert torch.equal(pickle.loads(cloudpickle.dumps(f))(x), expected)


def test_retraces_are_counted(draw: Any) -> None:
    f = from_jax(lambda x: x * 2)
    for size in (3, 3, 4, 3, 4):
        f(draw(size))
    assert f.cache_info() == (5, 2, 2)
    f(draw(3, dtype=torch.float32))
    assert f.cache_info().traces == 3
    f(draw(3, grad=True)).sum().backward()
    info = f.cache_info()
    assert info.traces == 3, "a derivative does not run the function again"
    assert info.programs > 3
    f.cache_clear()
    f(draw(3))
    assert f.cache_info()[1:] == (4, 1)


def test_traced_once_however_differentiated(draw: Any) -> None:
    f, x = from_jax(lambda x: jnp.sin(x).sum()), draw(3)
    f(x.clone().requires_grad_()).backward()
    torch.func.hessian(f)(x)
    torch.func.vmap(torch.func.grad(f))(draw(2, 3))
    assert f.cache_info().traces == 1


def test_settings_of_jax_are_followed(draw: Any) -> None:
    """Derivatives follow them too, although they come from an earlier trace."""
    f = from_jax(lambda x: jnp.sin(x) * jnp.arange(3.0))
    for leaf in (torch.ones(3), torch.ones(3, requires_grad=True)):
        assert f(leaf).dtype == torch.float64
        with jax.enable_x64(False):
            assert f(leaf).dtype == torch.float32
    assert f.cache_info().traces == 2


def test_types_of_numbers_are_told_apart(draw: Any) -> None:
    f, x = from_jax(lambda x, s: (x * 1, s * 1)), draw(3, grad=True)
    assert f(x, 2.0)[1].dtype == torch.float64
    assert f(x, 2)[1].dtype == torch.int64
    assert f(x, True)[1].dtype == torch.int64
    assert f.cache_info().traces == 3


def test_ops_of_bridge_inside(draw: Any) -> None:
    f = from_jax(lambda x, b: bridge.jax.bias_gelu(x, b))
    x, b = draw(5, 4, grad=True), draw(4, grad=True)
    y, expected = f(x, b), bridge.torch.bias_gelu(x, b)
    assert torch.equal(y, expected)
    g = draw(5, 4)
    ours = torch.autograd.grad(y, (x, b), g)
    theirs = torch.autograd.grad(expected, (x, b), g)
    assert all(map(torch.equal, ours, theirs))
    torch.testing.assert_close(
        torch.func.vmap(f, (0, None))(x, b),
        torch.func.vmap(bridge.torch.bias_gelu, (0, None))(x, b),
    )


def test_methods_and_nested_calls(draw: Any) -> None:
    class Model:
        scale = 3.0

        @from_jax
        def apply(self, x: Any) -> Any:
            return x * self.scale

        __hash__ = object.__hash__

    x = draw(3)
    torch.testing.assert_close(Model().apply(x), x * 3)
    assert Model.apply.__name__ == "apply"


def test_threads(draw: Any) -> None:
    f = from_jax(lambda x: jnp.sin(x) * jnp.exp(x))
    errors: list[Any] = []

    def work(seed: int) -> None:
        try:
            with jax.enable_x64(True):
                generator = torch.Generator().manual_seed(seed)
                for step in range(20):
                    x = torch.randn(3 + step % 3, dtype=torch.float64, generator=generator)
                    x.requires_grad_()
                    f(x).sum().backward()
                    expected = (torch.cos(x) + torch.sin(x)) * torch.exp(x)
                    torch.testing.assert_close(x.grad, expected.detach())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    assert f.cache_info().traces == 3
