"""Several devices, by shard_map, pmap and sharded arguments of jit, against one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bridge.jax import bias_gelu
from tests.jax.compositions import assert_close, normal, plain
from tests.jax.conftest import DEVICES

pytestmark = pytest.mark.usefixtures("x64")


def make_mesh(axis_type: AxisType = AxisType.Auto) -> Any:
    assert len(jax.devices("cpu")) >= DEVICES
    devices = jax.devices("cpu")[:DEVICES]
    return jax.make_mesh((2, 2), ("data", "model"), (axis_type,) * 2, devices=devices)


def loss(function: Callable[..., Any], x: Any, bias: Any, weights: Any) -> Any:
    y = function(x, bias)
    return jnp.vdot(y, weights) + jnp.vdot(y, y)


# Splits of x [4, 6]: over rows, columns, both, neither; all rows share a bias.
SPLITS = [
    (P("data"), P()),
    (P(("data", "model")), P()),
    (P(None, "model"), P("model")),
    (P("data", "model"), P("model")),
    (P(), P()),
]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("x_split", "bias_split"), SPLITS)
def test_shard_map(x_split: P, bias_split: P, check_vma: bool, rng: np.random.Generator) -> None:
    mesh = make_mesh()
    x, bias, weights = normal(rng, 4, 6), normal(rng, 6), normal(rng, 4, 6)
    split = partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(x_split, bias_split),
        out_specs=x_split,
        check_vma=check_vma,
    )

    def derivatives(function: Callable[..., Any]) -> Any:
        scalar = partial(loss, function)
        gradients = jax.grad(scalar, (0, 1))

        def both(x: Any, bias: Any) -> Any:
            return gradients(x, bias, weights)

        return function(x, bias), jax.jvp(both, (x, bias), (jnp.sin(x), jnp.cos(bias)))

    ours = jax.jit(lambda: derivatives(split(bias_gelu)))()
    assert_close(ours, jax.jit(lambda: derivatives(plain))())


@pytest.mark.parametrize("check_vma", [True, False])
def test_grad_inside_shard_map(check_vma: bool, rng: np.random.Generator) -> None:
    """The gradient of a replicated bias with split rows is the sum over the devices."""
    mesh = make_mesh()
    x, bias, weights = normal(rng, 4, 6), normal(rng, 6), normal(rng, 4, 6)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("data"), P(), P("data")),
        out_specs=(P("data"), P()),
        check_vma=check_vma,
    )
    def gradients(x: Any, bias: Any, weights: Any) -> Any:
        dx, db = jax.grad(partial(loss, bias_gelu), (0, 1))(x, bias, weights)
        # With check_vma the types put the sum into the gradient; otherwise the user adds it.
        return dx, db if check_vma else jax.lax.psum(db, "data")

    expected = jax.grad(partial(loss, plain), (0, 1))(x, bias, weights)
    assert_close(jax.jit(gradients)(x, bias, weights), expected)


def test_varying_bias_beside_shared_x(rng: np.random.Generator) -> None:
    mesh = make_mesh()
    x, bias = normal(rng, 3, 5), normal(rng, 4, 5)

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    def each(x: Any, bias: Any) -> Any:
        return jax.vmap(bias_gelu, (None, 0))(x, bias)

    assert_close(jax.jit(each)(x, bias), jax.vmap(plain, (None, 0))(x, bias))


def test_scan_and_checkpoint_inside_shard_map(rng: np.random.Generator) -> None:
    mesh = make_mesh()
    x, biases = normal(rng, 4, 6), normal(rng, 3, 6)

    def layers(function: Callable[..., Any], x: Any, biases: Any) -> Any:
        step = jax.checkpoint(lambda carry, bias: (function(carry, bias), None))
        return jax.lax.scan(step, x, biases)[0]

    split = jax.shard_map(
        partial(layers, bias_gelu), mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data")
    )
    ours, theirs = (
        jax.jit(jax.grad(lambda x, b, f=f: (f(x, b) ** 2).sum(), (0, 1)))(x, biases)
        for f in (split, partial(layers, plain))
    )
    assert_close(ours, theirs)


@pytest.mark.skipif(not hasattr(jax, "pmap"), reason="this JAX has no pmap any more")
def test_pmap(rng: np.random.Generator) -> None:
    x, bias = normal(rng, DEVICES, 3, 5), normal(rng, 5)

    def gradients(function: Callable[..., Any], x: Any, bias: Any) -> Any:
        return jax.grad(lambda x, b: (function(x, b) ** 2).sum(), (0, 1))(x, bias)

    mapped = jax.pmap(
        partial(gradients, bias_gelu), in_axes=(0, None), devices=jax.devices("cpu")[:DEVICES]
    )
    expected = jax.vmap(partial(gradients, plain), (0, None))(x, bias)
    assert_close(jax.tree.map(np.asarray, mapped(x, bias)), jax.tree.map(np.asarray, expected))


@pytest.mark.parametrize(("x_split", "bias_split"), SPLITS)
def test_jit_of_sharded_arguments(x_split: P, bias_split: P, rng: np.random.Generator) -> None:
    mesh = make_mesh()
    x, bias, weights = normal(rng, 4, 6), normal(rng, 6), normal(rng, 4, 6)
    expected = jax.value_and_grad(partial(loss, plain), (0, 1))(x, bias, weights)
    x, weights = jax.device_put((x, weights), NamedSharding(mesh, x_split))
    bias = jax.device_put(bias, NamedSharding(mesh, bias_split))
    ours = jax.jit(jax.value_and_grad(partial(loss, bias_gelu), (0, 1)))(x, bias, weights)
    assert_close(ours, expected)


@pytest.mark.parametrize(("x_split", "bias_split"), SPLITS)
def test_explicit_axes(x_split: P, bias_split: P, rng: np.random.Generator) -> None:
    """Under a mesh with explicit axes the type of the result is split like x."""
    mesh = make_mesh(AxisType.Explicit)
    x, bias = normal(rng, 4, 6), normal(rng, 6)
    expected = jax.value_and_grad(lambda x, b: (plain(x, b) ** 2).sum(), (0, 1))(x, bias)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, x_split))
        bias = jax.device_put(bias, NamedSharding(mesh, bias_split))
        ours = jax.jit(jax.value_and_grad(lambda x, b: (bias_gelu(x, b) ** 2).sum(), (0, 1)))
        assert_close(ours(x, bias), expected)
        spec = jax.eval_shape(bias_gelu, x, bias).sharding.spec
        assert tuple(spec)[: len(x_split)] == tuple(x_split)
