"""JAX functions under torch.compile, fake tensors and export: one operation that is not traced."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp
from torch._dynamo.testing import CompileCounter

from bridge.torch import JaxModule, from_jax


def fn(params: Any, x: Any, scale: float, *, flip: bool = False) -> Any:
    y = jnp.tanh(x @ params["w"]) * scale
    return {"y": -y if flip else y, "n": jnp.argmax(x)}


@pytest.fixture
def arguments() -> tuple[Any, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(4, 3, generator=generator).requires_grad_()
    return {"w": w}, torch.randn(5, 4, generator=generator)


def step(f: Any, params: Any, x: torch.Tensor) -> torch.Tensor:
    out = f(params, x * 2, 3.0, flip=True)
    return (out["y"].sin() * (out["n"] + 1)).sum()


# Inductor's modules use features that torch deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_fullgraph(arguments: Any, backend: str) -> None:
    params, x = arguments
    f = from_jax(fn, static_argnames="flip")
    compiled = torch.compile(lambda p, x: step(f, p, x), fullgraph=True, backend=backend)
    ours, expected = compiled(params, x), step(f, params, x)
    torch.testing.assert_close(ours, expected)
    (a,) = torch.autograd.grad(ours, params["w"])
    (b,) = torch.autograd.grad(expected, params["w"])
    torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(compiled(params, x), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_forward_pass_runs_once(arguments: Any, compiled: bool) -> None:
    params, x = arguments
    runs = []

    def counted(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return jnp.exp(jnp.sin(x @ w)) * jnp.arange(3.0)

    f = from_jax(counted)
    loss = lambda w, x: f(w, x * 2).square().sum()  # noqa: E731
    if compiled:
        loss = torch.compile(loss, fullgraph=True, backend="aot_eager")
    loss(params["w"], x).backward()
    jax.effects_barrier()
    assert len(runs) == 1
    w = params["w"].detach().double().requires_grad_()
    (torch.exp(torch.sin(2 * x.double() @ w)) * torch.arange(3.0)).square().sum().backward()
    # Terms of sums cancel: a small gradient has the rounding errors of the large ones.
    assert (params["w"].grad - w.grad).abs().max() < 1e-5 * w.grad.abs().max()


def test_one_graph_for_new_numbers_and_shapes(arguments: Any) -> None:
    params, x = arguments
    f, counter = from_jax(fn, static_argnames="flip"), CompileCounter()
    compiled = torch.compile(lambda p, x: step(f, p, x), fullgraph=True, backend=counter)
    for rows in (5, 5, 3):
        torch.testing.assert_close(compiled(params, x[:rows]), step(f, params, x[:rows]))
    assert counter.frame_count == 2, "one per shape"


def test_random_keys_break_the_graph(arguments: Any) -> None:
    """torch.compile accepts no JAX array in a graph; the call runs between two graphs."""
    _, x = arguments
    key = jax.random.key(0)
    f = from_jax(lambda key, x: x + jax.random.normal(key, x.shape))
    compiled = torch.compile(lambda x: f(key, x * 2) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(x), f(key, x * 2) + 1)


def test_fake_tensors(arguments: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    params, x = arguments
    f = from_jax(fn, static_argnames="flip")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = f({"w": mode.from_tensor(params["w"])}, mode.from_tensor(x), 3.0)
    assert out["y"].shape == (5, 3)
    assert out["n"].dtype == torch.int32
    assert f.cache_info().traces == 1


def test_fake_tensors_of_other_dtypes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with (
        FakeTensorMode(),
        pytest.raises(ValueError, match=r"args\[0\]: .*while jax_enable_x64 is off"),
    ):
        from_jax(jnp.sin)(torch.ones(3, dtype=torch.float64))


def test_make_fx_tells_zeros_of_different_sign_apart() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    f, x = from_jax(jnp.copysign), torch.ones(3)
    graphs = [make_fx(lambda x: f(x, 0.0))(x), make_fx(lambda x: f(x, -0.0))(x)]
    assert [graph(x).tolist() for graph in graphs] == [[1] * 3, [-1] * 3]


def test_make_fx(arguments: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    _, x = arguments
    f = from_jax(lambda x: jnp.sin(x) * 2)
    graph = make_fx(torch.func.grad(lambda x: f(x).sum()))(x)
    torch.testing.assert_close(graph(x), 2 * torch.cos(x))
    assert "jax_program" in graph.code


def test_export(arguments: Any) -> None:
    _, x = arguments
    f = from_jax(lambda x: jnp.sin(x) * 2)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return f(x) + 1

    program = torch.export.export(Model(), (x,))
    torch.testing.assert_close(program.module()(x), f(x) + 1)


def test_the_op_keeps_torchs_rules(arguments: Any) -> None:
    """torch's own check of schema, fake kernel, autograd registration and tracing passes."""
    from bridge.torch._from_jax import carried

    f = from_jax(lambda x: (jnp.sin(x) * 2, jnp.argmax(x)))
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    f(x)
    (entry,) = f._entries.values()
    name = carried.name_of(entry.program, [x])
    torch.library.opcheck(torch.ops.bridge.jax_program.default, ([x.requires_grad_()], name))


def test_transforms_inside_a_compiled_function(arguments: Any) -> None:
    params, x = arguments
    f = from_jax(lambda w, x: jnp.sum(jnp.tanh(x @ w)))

    def per_row(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(f), (None, 0))(w, x)

    w = params["w"].detach()
    compiled = torch.compile(per_row, backend="aot_eager")
    torch.testing.assert_close(compiled(w, x), per_row(w, x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_place_calls_several_functions(backend: str) -> None:
    """A compiled call site calls the current function, not the one from its compilation."""
    x = torch.ones(3)
    functions = [from_jax(lambda x, k=k: x * k) for k in (2.0, 3.0, 4.0)]
    modules = [JaxModule({"w": jnp.full(3, k)}, lambda v, x, k=k: x * k) for k in (5.0, 6.0)]
    compiled = torch.compile(lambda f, x: f(x) + 1, backend=backend, fullgraph=True)
    found = [compiled(f, x)[0].item() for f in (*functions, *modules, *functions)]
    assert found == [3, 4, 5, 6, 7, 3, 4, 5]
    torch._dynamo.reset()
    direct = [torch.compile(f, backend=backend)(x)[0].item() for f in functions]
    assert direct == [2, 3, 4]


class Sine:
    def __call__(self, x: Any) -> Any:
        return jnp.sin(x)

    def method(self, x: Any) -> Any:
        return jnp.sin(x)


jitted, partial, sine = jax.jit(jnp.sin), functools.partial(jnp.add, 1.0), Sine()
weights = {"w": jnp.ones(4)}
MADE_INSIDE = {
    "a function": lambda x: from_jax(jnp.sin)(x) + 1,
    "a lambda": lambda x: from_jax(lambda x: jnp.sin(x))(x) + 1,
    "jax.jit": lambda x: from_jax(jitted)(x) + 1,
    "jax.jit inside": lambda x: from_jax(jax.jit(jnp.sin))(x) + 1,
    "a partial": lambda x: from_jax(partial)(x) + 1,
    "a partial inside": lambda x: from_jax(functools.partial(jnp.add, 1.0))(x) + 1,
    "a method": lambda x: from_jax(sine.method)(x) + 1,
    "an object": lambda x: from_jax(sine)(x) + 1,
    "static names": lambda x: from_jax(fn, static_argnames="flip")({"w": x}, x, 1.0)["y"],
    "a module": lambda x: JaxModule(weights, lambda v, x: v["w"] * x)(x) + 1,
}


@pytest.mark.parametrize("function", MADE_INSIDE.values(), ids=MADE_INSIDE.keys())
def test_a_function_made_inside(function: Any) -> None:
    """The graph breaks where it is made; a single graph is refused with torch's message."""
    from torch._dynamo.exc import Unsupported

    x = torch.linspace(0, 1, 4)
    compiled = torch.compile(function, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    torch._dynamo.reset()
    with pytest.raises(Unsupported):
        torch.compile(function, backend="aot_eager", fullgraph=True)(x)
