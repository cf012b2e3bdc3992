"""Calls that use every private name of jax in bridge, for a process that lacks one of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def call_everything() -> None:
    """Raises AssertionError for a wrong result, and ImportError if a call is impossible."""
    jax.config.update("jax_num_cpu_devices", 2)
    import bridge.jax as bj

    x, bias = jnp.linspace(-2.0, 2.0, 32 * 4).reshape(32, 4), jnp.arange(4.0)

    def loss(x: jax.Array, bias: jax.Array) -> jax.Array:
        y = bj.bias_dropout_add(bj.bias_gelu(x, bias), bias, p=0.5, seed=3)
        return (bj.scaled_softmax(y) ** 2).sum()

    gradient = jax.grad(loss, (0, 1))
    expected = gradient(x, bias)
    each = jax.vmap(jax.grad(loss), (0, None))(jnp.stack([x, x]), bias)
    np.testing.assert_array_equal(each[1], expected[0])
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
    split = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows")))
    kept = jax.jit(jax.grad(jax.checkpoint(loss), (0, 1)))
    for found in (kept(x, bias), jax.jit(gradient)(split, bias)):
        for ours, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, wanted)

    gather = jax.shard_map(
        lambda x: bj.all_gather(x, "rows", grad="local") * 2.0,
        mesh=mesh,
        in_specs=PartitionSpec("rows"),
        out_specs=PartitionSpec("rows"),
    )
    np.testing.assert_array_equal(gather(split), 2.0 * np.concatenate([x, x]))
    _cross(x)


def _cross(x: jax.Array) -> None:
    """Converts arrays and functions in both directions."""
    import torch

    import bridge
    import bridge.torch as bt
    from bridge.jax import from_torch

    tensor = bridge.to_torch({"x": x})["x"]
    np.testing.assert_array_equal(bridge.to_jax(tensor), x)
    f = from_torch(torch.sin, vmap_method="vmap")
    for cos in (jax.vmap(jax.vmap(jax.grad(f)))(x), jax.jit(jax.grad(lambda x: f(x).sum()))(x)):
        np.testing.assert_allclose(cos, np.cos(x), rtol=1e-6)
    leaf = tensor.clone().requires_grad_()
    bt.from_jax(jnp.sin)(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.cos(tensor))
