"""Torch functions in JAX: values, gradients and transforms against the same function in JAX."""

from __future__ import annotations

import copy
import pickle
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax
from jax import numpy as jnp
from jax.experimental.jet import jet
from jax.test_util import check_grads

import bridge.jax
import bridge.torch
from bridge.jax import from_torch

Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def draw(rng: np.random.Generator) -> Callable[..., Any]:
    def draw(*shape: int, dtype: Any = np.float64) -> Any:
        values = rng.standard_normal(shape)
        if np.issubdtype(dtype, np.complexfloating):
            values = values + 1j * rng.standard_normal(shape)
        return jnp.asarray(values, dtype)

    return draw


def in_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).sum(-1) * x[..., 0]


def in_jax(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w).sum(-1) * x[..., 0]


def as_it_is(function: Any) -> Any:
    return function


where = pytest.mark.parametrize("where", [as_it_is, jax.jit], ids=["eager", "jit"])
near = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


# Values


@where
def test_values(where: Any, draw: Any) -> None:
    x, w = draw(3, 4), draw(4, 5)
    near(where(from_torch(in_torch))(x, w), in_jax(x, w))


@where
@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32"),
        *("float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
    ],
)
def test_every_dtype_crosses_bit_for_bit(where: Any, dtype: str, rng: np.random.Generator) -> None:
    kind = jnp.dtype(dtype)
    draws = []
    for shape in [(), (0,), (1,), (3, 0, 2), (5, 7)]:
        size = int(np.prod(shape)) * kind.itemsize
        bits = rng.integers(0, 2 if dtype == "bool" else 256, size).astype(np.uint8)
        draws.append(jnp.asarray(bits.view(kind).reshape(shape)))
    results = where(from_torch(lambda xs: [x.clone() for x in xs]))(draws)
    for x, y in zip(draws, results, strict=True):
        assert y.dtype == x.dtype
        assert y.shape == x.shape
        assert np.asarray(y).tobytes() == np.asarray(x).tobytes()


@where
def test_lazy_conjugates_and_strides_are_resolved(where: Any, draw: Any) -> None:
    z = draw(3, 4, dtype=np.complex128)
    conjugate, negative, turned, spread = where(
        from_torch(lambda z: (z.conj(), z.conj().imag, z.T, z.sum().expand(5)))
    )(z)
    near(conjugate, z.conj())
    near(negative, -z.imag)
    near(turned, z.T)
    near(spread, np.broadcast_to(z.sum(), 5))


@dataclass
class Found:
    value: torch.Tensor
    rest: Any


@where
def test_pytrees_and_static_leaves(where: Any, draw: Any) -> None:
    def function(tree: Any, *, mode: str, dim: int, flag: bool) -> Any:
        assert mode == "sum"
        assert type(flag) is bool
        first = tree["a"].sum(dim) if flag else tree["a"]
        return {3: Pair(first, [tree["b"][0]]), None: (tree["b"][1], None)}

    a, b, c = draw(3, 4), draw(2), draw()
    g = from_torch(function)
    result = where(lambda a, b, c: g({"a": a, "b": (b, c)}, mode="sum", dim=1, flag=True)[3])(
        a, b, c
    )
    assert type(result) is Pair
    near(result.first, a.sum(1))
    near(result.second[0], b)
    # 1 and True are different static values: both are traced.
    near(g({"a": a, "b": (b, c)}, mode="sum", dim=1, flag=False)[3].first, a)
    assert list(g({"a": a, "b": (b, c)}, mode="sum", dim=1, flag=False)) == [3, None]


@where
def test_numbers_that_are_equal_and_not_the_same(where: Any, draw: Any) -> None:
    g = from_torch(lambda x, s: torch.copysign(x, torch.tensor(float(s))))
    x = draw(3)
    nan = float("nan")
    for number in (0.0, -0.0, 0, nan, nan):
        found = where(lambda x, s=number: g(x, s))(x)
        near(found, np.copysign(np.asarray(x), number))
    assert len(g._calls) == 4


def test_dataclasses_come_back(draw: Any) -> None:
    x = draw(3)
    found = from_torch(lambda x: Found(x + 1, [x]))(x)
    assert type(found) is Found
    near(found.value, x + 1)


def test_results_share_memory_with_no_argument(draw: Any) -> None:
    x = draw(64)
    g = from_torch(lambda x: (x, x.view(8, 8), x))
    pointers = {r.unsafe_buffer_pointer() for r in g(x)} | {x.unsafe_buffer_pointer()}
    assert len(pointers) == 4


@from_torch
def decorated(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def test_decorated_functions_are_pickled_by_name() -> None:
    decorated(jnp.ones(3))
    for again in (copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))):
        assert again(decorated) is decorated


def test_eager_call_makes_no_callback_and_no_copy(draw: Any) -> None:
    x = draw(1000)
    seen = []
    g = from_torch(lambda x: (seen.append(x.data_ptr()), x * 2)[1])
    g(x)
    assert seen == [x.unsafe_buffer_pointer()]
    assert "callback" in jax.jit(g).lower(x).as_text()


def test_one_callback_per_call(draw: Any) -> None:
    text = jax.jit(from_torch(lambda x: (x, x + 1, {"a": x.sum()}))).lower(draw(3)).as_text()
    assert text.count("custom_call") == 1


@where
def test_no_arguments_and_no_results(where: Any) -> None:
    near(where(from_torch(lambda: torch.arange(3.0)))(), np.arange(3.0))
    assert where(from_torch(lambda x: ()))(jnp.ones(3)) == ()


def test_inside_scan_cond_and_while(draw: Any) -> None:
    w = draw(4, 4)
    g = from_torch(lambda x, w: torch.tanh(x @ w))

    def loop(g: Any, x: Any) -> Any:
        x, ys = lax.scan(lambda x, _: (g(x, w),) * 2, x, length=3)
        x = lax.cond(x.sum() > 0, lambda x: g(x, w), lambda x: -g(x, w), x)
        return lax.fori_loop(0, 2, lambda _, x: g(x, w), x), ys

    x = draw(4)
    for found, expected in zip(
        jax.jit(partial(loop, g))(x), loop(lambda x, w: jnp.tanh(x @ w), x), strict=True
    ):
        near(found, expected)


def test_bridge_ops_inside(draw: Any) -> None:
    x, b = draw(5, 7), draw(7)
    g = from_torch(lambda x, b: bridge.torch.scaled_softmax(bridge.torch.bias_gelu(x, b), 0.5))
    h = lambda x, b: bridge.jax.scaled_softmax(bridge.jax.bias_gelu(x, b), 0.5)  # noqa: E731
    assert np.asarray(jax.jit(g)(x, b)).tobytes() == np.asarray(h(x, b)).tobytes()
    c = draw(5, 7)
    found = jax.jit(jax.grad(lambda x, b: (g(x, b) * c).sum(), (0, 1)))(x, b)
    expected = jax.grad(lambda x, b: (h(x, b) * c).sum(), (0, 1))(x, b)
    jax.tree.map(near, found, expected)


# Derivatives


@where
@pytest.mark.parametrize("argument", [0, 1, (0, 1)])
def test_gradients(where: Any, argument: Any, draw: Any) -> None:
    x, w, c = draw(3, 4), draw(4, 5), draw(3)
    found = where(jax.grad(lambda x, w: from_torch(in_torch)(x, w) @ c, argument))(x, w)
    expected = jax.grad(lambda x, w: in_jax(x, w) @ c, argument)(x, w)
    jax.tree.map(near, found, expected)


@where
def test_finite_differences_of_first_and_second_order(where: Any, draw: Any) -> None:
    check_grads(where(from_torch(in_torch)), (draw(3, 4), draw(4, 5)), order=2)


@where
def test_finite_differences_complex(where: Any, draw: Any) -> None:
    """The function is not holomorphic, so that a wrong number of conjugations is seen."""

    def function(z: torch.Tensor, x: torch.Tensor) -> Any:
        y = (z.conj() * z * z + x * z).sum() * (1 + 2j)
        return y, (z.abs() ** 2 * x).sum(), torch.view_as_real(z * z)

    check_grads(where(from_torch(function)), (draw(4, dtype=np.complex128), draw(4)), order=2)


def test_taylor_mode(draw: Any) -> None:
    x, w, a, b = draw(2, 3), draw(3, 4), draw(2, 3), draw(2, 3)
    for terms in ([a], [a, b]):
        found, expected = (
            jet(lambda x, f=f: f(x, w), (x,), (terms,)) for f in (from_torch(in_torch), in_jax)
        )
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            near(one, other)


@where
def test_complex_gradient_is_that_of_jax(where: Any, draw: Any) -> None:
    z, c = draw(4, dtype=np.complex128), draw(4, dtype=np.complex128)
    g = from_torch(lambda z: torch.exp(z) * z.conj())
    h = lambda z: jnp.exp(z) * z.conj()  # noqa: E731
    near(
        where(jax.grad(lambda z: (g(z) * c).sum().real))(z),
        jax.grad(lambda z: (h(z) * c).sum().real)(z),
    )
    near(jax.vjp(g, z)[1](c)[0], jax.vjp(h, z)[1](c)[0])
    near(jax.jvp(g, (z,), (c,))[1], jax.jvp(h, (z,), (c,))[1])


@where
@pytest.mark.parametrize(
    "transform",
    [
        jax.hessian,
        lambda f: jax.jacfwd(jax.jacfwd(f)),
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
    ],
    ids=["forward over reverse", "forward twice", "reverse twice", "reverse over forward"],
)
def test_second_order(where: Any, transform: Any, draw: Any) -> None:
    x, w, c = draw(3, 4), draw(4, 2), draw(3)
    g = from_torch(in_torch, vmap_method="vmap")
    found = where(transform(lambda w: g(x, w) @ c))(w)
    near(found, jax.hessian(lambda w: in_jax(x, w) @ c)(w))


def test_third_order(draw: Any) -> None:
    g = from_torch(lambda x: torch.sin(x) * x)
    h = lambda x: jnp.sin(x) * x  # noqa: E731
    x = draw()
    near(jax.grad(jax.grad(jax.grad(g)))(x), jax.grad(jax.grad(jax.grad(h)))(x))
    near(jax.jit(jax.grad(jax.grad(jax.grad(g))))(x), jax.grad(jax.grad(jax.grad(h)))(x))


@where
def test_linearize_transpose_and_checkpoint(where: Any, draw: Any) -> None:
    x, w, t, c = draw(3, 4), draw(4, 5), draw(3, 4), draw(3)
    g = from_torch(in_torch)
    near(
        jax.linearize(where(lambda x: g(x, w)), x)[1](t),
        jax.jvp(lambda x: in_jax(x, w), (x,), (t,))[1],
    )
    tangent = where(lambda t: jax.jvp(lambda x: g(x, w), (x,), (t,))[1])
    near(jax.linear_transpose(tangent, t)(c)[0], jax.vjp(lambda x: in_jax(x, w), x)[1](c)[0])
    once = where(jax.grad(lambda w: jax.checkpoint(g)(x, w) @ c))(w)
    near(once, jax.grad(lambda w: in_jax(x, w) @ c)(w))


def test_gradient_through_scan(draw: Any) -> None:
    x, w = draw(4), draw(4, 4)
    g = from_torch(lambda x, w: torch.tanh(x @ w))

    def loss(step: Any, w: Any) -> Any:
        return lax.scan(lambda x, _: (step(x, w), None), x, length=4)[0].sum()

    expected = jax.grad(partial(loss, lambda x, w: jnp.tanh(x @ w)))(w)
    near(jax.jit(jax.grad(partial(loss, g)))(w), expected)
    near(jax.grad(partial(loss, g))(w), expected)


@where
def test_integers_have_no_gradient(where: Any, draw: Any) -> None:
    table, index = draw(5, 3), jnp.asarray([4, 0, 4])
    g = from_torch(lambda table, index: (table[index], index + 1))
    loss = lambda table, index: (g(table, index)[0] ** 2).sum()  # noqa: E731
    gradient, none = where(jax.grad(loss, (0, 1), allow_int=True))(table, index)
    near(gradient, 2 * table * jnp.asarray([1, 0, 0, 0, 2])[:, None])
    assert none.dtype == jax.dtypes.float0
    _, (_, tangent) = jax.jvp(g, (table, index), (table, np.zeros(3, jax.dtypes.float0)))
    assert tangent.dtype == jax.dtypes.float0


@where
def test_unused_arguments_and_detached_results(where: Any, draw: Any) -> None:
    x, y = draw(3), draw(3)
    g = from_torch(lambda x, y: (x.detach() * 2, x.sin()))
    for loss in (lambda x, y: g(x, y)[0].sum(), lambda x, y: g(x, y)[1].sum() * 0):
        for gradient in where(jax.grad(loss, (0, 1)))(x, y):
            near(gradient, np.zeros(3))


@where
def test_function_without_setup_context_has_gradients(where: Any, draw: Any) -> None:
    """torch.func refuses such a Function, but most existing code has this kind."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    g = from_torch(Cube.apply)
    x = draw()
    near(where(jax.grad(g))(x), 3 * x * x)
    near(where(jax.grad(jax.grad(g)))(x), 6 * x)


def test_gradient_of_a_penalty_on_gradients(draw: Any) -> None:
    """The torch function itself computes gradients inside."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: (x**3).sum())(x).sum()

    x = draw(4)
    near(jax.grad(from_torch(function))(x), 6 * x)
    near(jax.jit(jax.grad(from_torch(function)))(x), 6 * x)


# Batches

METHODS = ["vmap", "sequential", "broadcast_all", "expand_dims"]
methods = pytest.mark.parametrize("method", METHODS)


def batched_in_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x.unsqueeze(-2) @ w).squeeze(-2)).sum(-1)


def batched_in_jax(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w).sum(-1)


@pytest.mark.sampled(14)
@where
@methods
@pytest.mark.parametrize("dims", [(0, None), (1, None), (0, 2), (None, 1), (-1, 0)])
def test_vmap(where: Any, method: str, dims: Any, draw: Any) -> None:
    x = draw(*_with(dims[0], (4,), 3))
    w = draw(*_with(dims[1], (4, 5), 3))
    g = from_torch(batched_in_torch, vmap_method=method)
    near(where(jax.vmap(g, dims))(x, w), jax.vmap(batched_in_jax, dims)(x, w))


def _with(dim: int | None, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if dim is None:
        return shape
    place = dim % (len(shape) + 1)
    return (*shape[:place], size, *shape[place:])


@where
@methods
def test_vmap_of_gradients_and_gradients_of_vmap(where: Any, method: str, draw: Any) -> None:
    x, w, c = draw(3, 4), draw(4, 5), draw(3)
    g = from_torch(batched_in_torch, vmap_method=method)
    for argument in (0, 1):
        near(
            where(jax.vmap(jax.grad(g, argument), (0, None)))(x, w),
            jax.vmap(jax.grad(batched_in_jax, argument), (0, None))(x, w),
        )
        near(
            where(jax.grad(lambda x, w: jax.vmap(g, (0, None))(x, w) @ c, argument))(x, w),
            jax.grad(lambda x, w: batched_in_jax(x, w) @ c, argument)(x, w),
        )
    t = draw(3, 4)
    near(
        where(jax.vmap(lambda x, t: jax.jvp(lambda x: g(x, w), (x,), (t,))[1]))(x, t),
        jax.jvp(lambda x: batched_in_jax(x, w), (x,), (t,))[1],
    )


@where
@methods
def test_vmap_twice(where: Any, method: str, draw: Any) -> None:
    x, w = draw(2, 4), draw(4, 3, 5)
    g = from_torch(batched_in_torch, vmap_method=method)
    both = lambda f: jax.vmap(jax.vmap(f, (None, 1)), (0, None))  # noqa: E731
    near(where(both(g))(x, w), both(batched_in_jax)(x, w))


@methods
def test_transpose_of_a_batched_tangent(method: str, draw: Any) -> None:
    x, w, t = draw(3, 4), draw(4, 5), draw(4)

    def gradient(f: Any) -> Any:
        def tangent(t: Any) -> Any:
            return jax.vmap(lambda x: jax.jvp(lambda x: f(x, w), (x,), (t,))[1])(x)

        return jax.grad(lambda t: (tangent(t) ** 2).sum())(t)

    near(gradient(from_torch(batched_in_torch, vmap_method=method)), gradient(batched_in_jax))


def test_sequential_is_one_callback(draw: Any) -> None:
    calls = []
    g = from_torch(lambda x: (calls.append(1), x * 2)[1], vmap_method="sequential")
    compiled = jax.jit(jax.vmap(g)).lower(draw(5, 2)).compile()
    assert compiled.as_text().count("custom_call_target") == 1
    calls.clear()
    compiled(draw(5, 2)).block_until_ready()
    assert len(calls) == 5


@methods
def test_vmap_over_nothing(method: str, draw: Any) -> None:
    g = from_torch(batched_in_torch, vmap_method=method)
    assert jax.vmap(g, (0, None))(jnp.zeros((0, 4)), draw(4, 5)).shape == (0,)


# Seeds


def test_a_seed_decides_the_draws(draw: Any) -> None:
    g = from_torch(lambda x: torch.nn.functional.dropout(x, 0.5), seeded=True)
    x = jnp.ones(1000)
    before = torch.get_rng_state()
    y = g(x, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    near(y, torch.nn.functional.dropout(torch.ones(1000, dtype=torch.float64), 0.5).numpy())
    for seed in (jnp.int32(3), jax.random.key(3), np.uint32(3)):
        near(jax.jit(lambda x, seed: g(x, seed=seed))(x, seed), y)
    assert not np.array_equal(g(x, seed=4), y)
    near(jax.grad(lambda x: g(x, seed=3).sum())(x), y)
    near(jax.jit(jax.grad(lambda x: g(x, seed=3).sum()))(x), y)


@pytest.mark.parametrize("method", ["vmap", "sequential"])
def test_a_batch_draws_alike_for_one_seed(method: str) -> None:
    g = from_torch(lambda x: torch.nn.functional.dropout(x, 0.5), seeded=True, vmap_method=method)
    x = jnp.ones((3, 50))
    y = jax.vmap(lambda x: g(x, seed=3))(x)
    near(y, np.broadcast_to(g(x[0], seed=3), y.shape))
    if method == "sequential":
        seeds = jnp.arange(3)
        z = jax.jit(jax.vmap(lambda x, seed: g(x, seed=seed)))(x, seeds)
        near(z, np.stack([g(x[i], seed=i) for i in range(3)]))


# Profiles


def test_profiles_name_the_function() -> None:
    """The names are in the `op_name` of the compiled program's callbacks, forward and backward."""

    def layer_norm(x: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape)

    function = from_torch(layer_norm)

    def both(x: Any, g: Any) -> Any:
        y, pull = jax.vjp(function, x)
        return y, pull(g)

    text = jax.jit(both).lower(jnp.ones(3), jnp.ones(3)).compile().as_text()
    names = set(re.findall(r'custom-call\(.*op_name="([^"]*)"', text))
    assert len(names) == 2
    assert all("bridge.from_torch(" in name and "layer_norm)" in name for name in names)
    assert sum("transpose" in name for name in names) == 1
