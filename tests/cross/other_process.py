"""Saves graphs with JAX functions in one process, and runs them in another.

    python -m tests.cross.other_process save|run|compile WAY MODEL FOLDER

A run first makes functions of its own, as in a process that uses `from_jax` itself.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import torch

# Without this import torch cannot read the pickles of its make_fx.
import torch._higher_order_ops.triton_kernel_wrap
from jax import numpy as jnp
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.jax
from bridge.torch import JaxModule, from_jax

X = torch.linspace(-1, 2, 12).reshape(3, 4)


class Function(torch.nn.Module):
    """1 + f(x), which must be differentiable in the other process too."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.call = from_jax(f).__call__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x) + 1


@jax.custom_vjp
def own_rule(x: Any) -> Any:
    return 2 * x


own_rule.defvjp(lambda x: (2 * x, x), lambda x, g: (5 * g * x,))


def called_back(x: Any) -> Any:
    return jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def counted(x: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x))[1]


def _linear() -> torch.nn.Module:
    linear = eqx.nn.Linear(4, 3, key=jax.random.key(0))
    return JaxModule(linear, lambda module, x: jax.vmap(module)(x))


MODELS = {
    "function": lambda: Function(lambda x: 2 * jnp.sin(x)),
    "rule of its own": lambda: Function(own_rule),
    "op of bridge": lambda: Function(lambda x: bridge.jax.bias_gelu(x, jnp.arange(4.0))),
    "module": _linear,
    "two functions": lambda: torch.nn.Sequential(Function(jnp.exp), Function(lambda x: x[:, :2])),
    "callback": lambda: Function(called_back),
    "loop": lambda: Function(counted),
}


def _save_export(model: torch.nn.Module, path: str) -> None:
    torch.export.save(torch.export.export(model, (X,)), path)


def _save_aoti(model: torch.nn.Module, path: str) -> None:
    exported = torch.export.export(model, (X,))
    torch._inductor.aoti_compile_and_package(exported, package_path=path)


def _pickle(value: Any, path: str) -> None:
    Path(path).write_bytes(pickle.dumps(value))


def _unpickle(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: model(x).square().sum())(x)


def _pickle_compiled(model: torch.nn.Module, path: str) -> None:
    """Returns the graph that a backend of torch.compile gets."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph)

    torch.compile(model, backend=aot_autograd(fw_compiler=keep))(X)
    (graph,) = graphs
    _pickle(graph, path)


WAYS: dict[str, tuple[Any, Any]] = {
    "export": (_save_export, lambda path: torch.export.load(path).module()),
    "jit": (lambda model, path: torch.jit.save(torch.jit.trace(model, X), path), torch.jit.load),
    "fx": (lambda model, path: _pickle(make_fx(model)(X), path), _unpickle),
    "fx of a gradient": (
        lambda model, path: _pickle(make_fx(lambda x: gradient(model, x))(X), path),
        _unpickle,
    ),
    "aoti": (_save_aoti, lambda path: torch._inductor.aoti_load_package(path)),
    "compiled graph": (_pickle_compiled, _unpickle),
}


def results(model: Any, way: str, name: str) -> list[torch.Tensor]:
    """Returns the value, with gradients if this kind of graph and this model have them."""
    if way == "fx of a gradient" or way == "aoti" or name in ("callback", "loop"):
        return [model(X)]
    x = X.clone().requires_grad_()
    y = model(x)
    sources = [x, *model.parameters()]
    if way == "fx":
        sources = [x]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), sources)]


def main(step: str, way: str, name: str, folder: str) -> None:
    path = str(Path(folder) / ("graph.pt2" if way in ("export", "aoti") else "graph"))
    save, load = WAYS[way]
    if step == "save":
        model = MODELS[name]()
        expected = [gradient(model, X)] if way == "fx of a gradient" else results(model, way, name)
        torch.save(expected, Path(folder) / "expected")
        save(model, path)
        return
    other = torch.compile(from_jax(lambda x: x - 1000), backend="aot_eager")
    for size in (3, 4, 5):
        other(torch.ones(size, requires_grad=True)).sum().backward()
    model, expected = load(path), torch.load(Path(folder) / "expected")
    torch.testing.assert_close(results(model, way, name), expected, rtol=1e-6, atol=1e-6)
    if step == "compile":
        compiled = torch.compile(model)
        torch.testing.assert_close(results(compiled, way, name), expected)


if __name__ == "__main__":
    main(*sys.argv[1:])
