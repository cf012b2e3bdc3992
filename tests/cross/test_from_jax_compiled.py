"""JAX functions under torch.compile, fake tensors and export: one operation that is not traced."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp
from torch._dynamo.testing import CompileCounter

from bridge.torch import from_jax


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


# Inductor's modules are made of what torch deprecates.
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
    # Sums of products cancel: a small gradient has the rounding errors of the large ones.
    assert (params["w"].grad - w.grad).abs().max() < 1e-5 * w.grad.abs().max()


def test_one_graph_for_new_numbers_and_shapes(arguments: Any) -> None:
    params, x = arguments
    f, counter = from_jax(fn, static_argnames="flip"), CompileCounter()
    compiled = torch.compile(lambda p, x: step(f, p, x), fullgraph=True, backend=counter)
    for rows in (5, 5, 3):
        torch.testing.assert_close(compiled(params, x[:rows]), step(f, params, x[:rows]))
    assert counter.frame_count == 2, "one per shape"


def test_random_keys_break_the_graph(arguments: Any) -> None:
    """torch.compile takes no JAX array into a graph; the call runs between two of them."""
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
    """Schema, fake kernel, autograd registration and tracing, as torch checks them."""
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
