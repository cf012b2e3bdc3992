"""Profilers show the public function of each instruction."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from tests.jax.compositions import normal
from tests.jax.conftest import DEVICES
from tests.jax.test_sharding import make_mesh

_MASK = np.eye(8, dtype=bool)
_BIAS = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
# A call of each public function, and the kernels of it and of its derivatives.
OPS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "bias_gelu": (lambda x: bj.bias_gelu(x, _BIAS), "bridge_program", "bridge_program"),
    "bias_dropout_add": (
        lambda x: bj.bias_dropout_add(x, _BIAS, x, p=0.3, seed=5),
        "bridge_program",
        "bridge_program",
    ),
    "scaled_softmax": (bj.scaled_softmax, "bridge_program", "bridge_program"),
    "scaled_masked_softmax": (
        lambda x: bj.scaled_masked_softmax(x, _MASK),
        "bridge_program",
        "bridge_program",
    ),
    "scaled_causal_softmax": (
        bj.scaled_causal_softmax,
        "bridge_program",
        "bridge_program",
    ),
}
every_op = pytest.mark.parametrize("name", OPS)


def names_in(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, str]]:
    """Returns the name and the op_name of each instruction of the compiled program."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return re.findall(r'%?(\S+) = [^\n]*op_name="([^"]*)"', text)


def kernels_in(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, str]]:
    """Returns the same for bridge's kernels, without the number that makes names unique."""
    found = names_in(function, *arguments)
    return [(own.split(".")[0], op) for own, op in found if own.startswith("bridge_")]


def backward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, g: jax.vjp(function, x)[1](g)


@every_op
def test_forward_and_backward(name: str, rng: np.random.Generator) -> None:
    function, forward_kernel, backward_kernel = OPS[name]
    x, g = normal(rng, 8, 8), normal(rng, 8, 8)

    def model(x: Any) -> Any:
        with jax.named_scope("layer_3"):
            return function(jnp.tanh(x))

    ((kernel, op_name),) = kernels_in(model, x)
    assert kernel == forward_kernel
    assert re.search(rf"layer_3/bridge\.{name}/{forward_kernel}$", op_name)
    kernel, op_name = kernels_in(backward(model), x, g)[-1]
    assert kernel == backward_kernel
    assert re.search(rf"transpose\(.*layer_3.*bridge\.{name}\b.*/{backward_kernel}$", op_name)


@every_op
def test_tangents_and_batches(name: str, rng: np.random.Generator) -> None:
    function, _, backward_kernel = OPS[name]
    x, t = normal(rng, 3, 8, 8), normal(rng, 3, 8, 8)
    found = kernels_in(jax.vmap(lambda x, t: jax.jvp(function, (x,), (t,))), x, t)
    assert backward_kernel in [kernel for kernel, _ in found]
    assert all(f"bridge.{name}" in op_name for _, op_name in found)


@every_op
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_sharded_arrays(name: str, kind: Any, rng: np.random.Generator) -> None:
    """The program of one shard, which XLA requests later, has the name too."""
    function, _, backward_kernel = OPS[name]
    devices = jax.devices("cpu")[:DEVICES]
    mesh = jax.make_mesh((2, 2), ("data", "model"), (kind, kind), devices=devices)
    with jax.set_mesh(mesh):
        split = NamedSharding(mesh, P("data"))
        x, g = (jax.device_put(normal(rng, 4, 8, 8), split) for _ in range(2))
        found = kernels_in(backward(function), x, g)
    assert backward_kernel in [kernel for kernel, _ in found]
    assert all("transpose" in op or "jvp" in op for _, op in found)
    assert all(f"bridge.{name}" in op for _, op in found)


@pytest.mark.parametrize("grad", ["sum", "local", "mean"])
def test_all_gather(grad: str, rng: np.random.Generator) -> None:
    gather = jax.shard_map(
        lambda x: bj.all_gather(x, "data", grad=grad),
        mesh=make_mesh(),
        in_specs=P("data"),
        out_specs=P(("data", "model")),
    )
    found = names_in(backward(gather), normal(rng, 8, 8), normal(rng, 32, 8))
    own = [op for _, op in found if "bridge.all_gather" in op]
    assert any("transpose" in op for op in own)
    sent = [op for own_name, op in found if own_name.startswith(("all-", "reduce-", "reduce_s"))]
    assert all("bridge.all_gather" in op for op in sent)
