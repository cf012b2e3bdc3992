"""Graphs with JAX functions that outlive their process: exports, pickles, caches on disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp
from torch.fx.experimental.proxy_tensor import make_fx

from bridge.torch import from_jax
from bridge.torch._from_jax import carried

REPOSITORY = Path(__file__).parents[2]


def run(*arguments: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_CACHE_DIR": str(cache), **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=500,
    )


def in_another(step: str, way: str, model: str, folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "tests.cross.other_process", step, way, model, str(folder)]
    return run(*arguments, cache=folder / step)


ALL = ["function", "rule of its own", "op of bridge", "module", "two functions"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "model"),
    [
        *[("export", model) for model in (*ALL, "loop")],
        *[("jit", model) for model in ALL],
        *[("fx", model) for model in ("function", "rule of its own", "two functions")],
        *[("fx of a gradient", model) for model in ALL],
        ("aoti", "function"),
        ("aoti", "module"),
    ],
)
def test_a_graph_runs_the_same_function_elsewhere(way: str, model: str, tmp_path: Path) -> None:
    for step in ("save", "run"):
        child = in_another(step, way, model, tmp_path)
        assert child.returncode == 0, child.stderr


@pytest.mark.processes
def test_a_loaded_export_is_compiled_from_the_cache(tmp_path: Path) -> None:
    """The cache of autograd's graphs hits without a trace; its entry finds its functions."""
    for step in ("save", "compile", "compile"):
        child = in_another(step, "export", "function", tmp_path)
        assert child.returncode == 0, child.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "model"),
    [("export", "callback"), ("jit", "callback"), ("fx", "callback"), ("compiled graph", "loop")],
)
def test_a_function_that_cannot_be_carried_is_refused(way: str, model: str, tmp_path: Path) -> None:
    child = in_another("save", way, model, tmp_path)
    assert child.returncode == 0, child.stderr
    if model == "callback":
        assert "the graph cannot carry called_back into another process" in child.stderr
        assert "serialization of host_callbacks is not yet implemented" in child.stderr
    child = in_another("run", way, model, tmp_path)
    assert child.returncode != 0
    assert re.search(
        r"RuntimeError: .*from_jax: the graph calls the JAX function \w+, which exists only "
        "in the process that traced the graph; trace the graph again",
        child.stderr,
    )


CACHED = """
import torch
from jax import numpy as jnp
from torch._dynamo.utils import counters
from bridge.torch import from_jax

def f(x):
    return {body}

g = from_jax(f)
x = torch.arange(12.0).reshape(3, 4).requires_grad_()
y = torch.compile(lambda x: g(x).sum(0) + 1)(x)
y.sum().backward()
print([y.tolist(), x.grad[0].tolist(), counters["inductor"]["fxgraph_cache_hit"]])
"""


@pytest.mark.processes
def test_an_edited_function_is_compiled_anew(tmp_path: Path) -> None:
    bodies = ["x * 2", "x * 2", "(x * 2).astype(jnp.float16)", "x * 3"]
    answers = []
    for body in bodies:
        child = run("-W", "ignore", "-c", CACHED.format(body=body), cache=tmp_path)
        assert child.returncode == 0, child.stderr
        answers.append(eval(child.stdout))
    twice = [25.0, 31.0, 37.0, 43.0]
    assert answers[0] == [twice, [2.0] * 4, 0]
    assert answers[1] == [twice, [2.0] * 4, 2], "forward and backward are found in the cache"
    assert answers[2] == [twice, [2.0] * 4, 0]
    assert answers[3] == [[37.0, 46.0, 55.0, 64.0], [3.0] * 4, 0]


@pytest.mark.parametrize("name", ["f@process:0", "f@sha256:0:0"])
def test_names_of_other_processes(name: str) -> None:
    with pytest.raises(RuntimeError, match="from_jax: the graph calls the JAX function f, which"):
        torch.ops.bridge.jax_program([torch.ones(3)], name)


def test_a_graph_is_for_its_shapes() -> None:
    x = torch.ones(3)
    f = from_jax(jnp.sin)
    graph = make_fx(f)(x)
    for other in (torch.ones(4), torch.ones(3, dtype=torch.float16)):
        with pytest.raises(ValueError, match=r"a graph calls sin on .* expected .torch.f"):
            graph(other)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A graph of x -> 2 sin(x) that has of its function only the carried program."""
    x = torch.linspace(-1, 1, 5)
    graph = make_fx(from_jax(lambda x: 2 * jnp.sin(x)))(x)
    monkeypatch.setattr(carried, "_programs", {})
    return graph, x


def test_what_a_carried_function_has(foreign: Any) -> None:
    graph, x = foreign
    torch.testing.assert_close(graph(x), 2 * torch.sin(x))
    torch.testing.assert_close(torch.func.grad(lambda x: graph(x).sum())(x), 2 * torch.cos(x))
    again = make_fx(torch.func.grad(lambda x: graph(x).sum()))(x)
    torch.testing.assert_close(again(x), 2 * torch.cos(x))


def test_what_a_carried_function_lacks(foreign: Any) -> None:
    graph, x = foreign
    transformed = {
        "vmap": lambda: torch.func.vmap(graph)(x[None]),
        "jvp": lambda: torch.func.jvp(graph, (x,), (x,)),
        "hessian": lambda: torch.func.hessian(lambda x: graph(x).sum())(x),
        "backward twice": lambda: torch.autograd.functional.hessian(lambda x: graph(x).sum(), x),
    }
    for call in transformed.values():
        with pytest.raises(
            NotImplementedError,
            match=r"carries the JAX function .* with one derivative backwards and no more",
        ):
            call()


def test_a_carried_function_without_a_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    doubled = from_jax(lambda x: jax.lax.while_loop(lambda x: x[0] < 9, lambda x: 2 * x, x))
    graph = make_fx(doubled)(x)
    monkeypatch.setattr(carried, "_programs", {})
    assert graph(x).tolist() == [16, 16, 16]
    with pytest.raises(
        NotImplementedError, match=r"with no derivative \(Reverse-mode .*while_loop"
    ):
        graph(x.requires_grad_()).sum().backward()


def test_wide_numbers_are_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded graph with 64-bit types runs as it was traced, even if jax_enable_x64 is off."""
    x = torch.linspace(0, 1, 4, dtype=torch.float64)
    with jax.enable_x64(True):
        graph = make_fx(from_jax(jnp.sin))(x)
    monkeypatch.setattr(carried, "_programs", {})
    torch.testing.assert_close(graph(x), torch.sin(x), rtol=1e-15, atol=0)
    x.requires_grad_()
    (found,) = torch.autograd.grad(graph(x).sum(), x)
    torch.testing.assert_close(found, torch.cos(x.detach()), rtol=1e-15, atol=0)


def test_equal_programs_keep_their_own_derivatives() -> None:
    """Functions with equal StableHLO keep their own, different derivatives."""

    def rule(factor: float) -> Any:
        f = jax.custom_vjp(lambda x: 2 * x)
        f.defvjp(lambda x: (2 * x, None), lambda _, g: (factor * g,))
        return from_jax(f)

    x = torch.ones(3, requires_grad=True)
    first, second = rule(5.0), rule(7.0)
    compiled = torch.compile(lambda x: (first(x), second(x)), backend="aot_eager", fullgraph=True)
    for y, expected in zip(compiled(x), (5.0, 7.0), strict=True):
        (found,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert found.tolist() == [expected] * 3


def test_a_compiled_graph_computes_no_residuals_for_a_second_derivative() -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph)

    f = from_jax(lambda x: jnp.exp(jnp.sin(x)))
    compiled = torch.compile(f, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert "_backward@" in graphs[1]
    assert "_backward_forward@" not in graphs[1]
