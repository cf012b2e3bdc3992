"""cross_entropy inside shard_map, on columns that devices share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import bridge.jax
from tests.frameworks import bits
from tests.jax.collectives import collectives_of


def _towards(f: Callable[..., Any], labels: Any) -> Callable[..., Any]:
    return lambda x: f(x, labels)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("columns", [4096, 1300, 20])
def test_columns_on_a_named_axis(columns: int, check_vma: bool, rng: Any) -> None:
    """For any number of devices there are the bits of whole rows, and no row is sent."""
    x = jnp.asarray(rng.normal(size=(6, columns)) * 3, jnp.float32)
    labels = jnp.asarray(rng.integers(0, columns, 6)).at[2].set(-100)
    g = jnp.asarray(rng.normal(size=6), jnp.float32)
    options: Any = {"reduction": "none", "label_smoothing": 0.1, "z_loss": 1e-3}
    f = partial(bridge.jax.cross_entropy, **options)
    whole, pull = jax.vjp(_towards(f, labels), x)
    (expected,) = pull(g)
    for count in (1, 2, 4):
        mesh = Mesh(np.array(jax.devices()[:count]), ("model",))
        split = jax.shard_map(
            partial(f, axis_name="model"),
            mesh=mesh,
            in_specs=(P(None, "model"), P()),
            out_specs=P(),
            check_vma=check_vma,
        )
        found, pull = jax.vjp(jax.jit(_towards(split, labels)), x)
        np.testing.assert_array_equal(bits(found), bits(whole))
        np.testing.assert_array_equal(bits(pull(g)[0]), bits(expected))
        tangent = jax.jvp(_towards(split, labels), (x,), (x,))[1]
        plain = jax.jvp(_towards(f, labels), (x,), (x,))[1]
        np.testing.assert_array_equal(bits(tangent), bits(plain))
        if columns == 4096 and count > 1:
            sent = collectives_of(jax.jit(split).lower(x, labels).compile().as_text())
            assert set(sent) == {"all-gather"}
            # Numbers per row: maximum, the label's logit and the sum of all; then two sums.
            assert sorted(sent["all-gather"]) == [2 * 4 * 6 * count, 3 * 4 * 6 * count]


def test_gradients_inside() -> None:
    """The rows are split over another axis, as in a training step."""
    rng = np.random.default_rng(0)
    x, labels = jnp.asarray(rng.normal(size=(8, 64)), jnp.float32), jnp.arange(8) * 7
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))

    def loss(x: Any, labels: Any, **where: Any) -> Any:
        return bridge.jax.cross_entropy(x, labels, reduction="sum", **where)

    def step(x: Any, labels: Any) -> Any:
        return jax.value_and_grad(partial(loss, axis_name="model"))(x, labels)

    split = jax.shard_map(
        lambda x, labels: (lambda v, g: (jax.lax.psum(v, "data"), g))(*step(x, labels)),
        mesh=mesh,
        in_specs=(P("data", "model"), P("data")),
        out_specs=(P(), P("data", "model")),
    )
    value, gradient = jax.jit(split)(x, labels)
    expected, dx = jax.value_and_grad(loss)(x, labels)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_array_equal(bits(gradient), bits(dx))


@pytest.mark.parametrize("check_vma", [True, False])
def test_second_order(check_vma: bool) -> None:
    rng = np.random.default_rng(0)
    x, labels = jnp.asarray(rng.normal(size=(3, 8)), jnp.float32), jnp.arange(3)
    direction = jnp.asarray(rng.normal(size=x.shape), jnp.float32)
    f = partial(bridge.jax.cross_entropy, reduction="none", z_loss=0.1)
    split = jax.shard_map(
        partial(f, axis_name="model"),
        mesh=Mesh(np.array(jax.devices()[:2]), ("model",)),
        in_specs=(P(None, "model"), P()),
        out_specs=P(),
        check_vma=check_vma,
    )

    def second(f: Callable[..., Any]) -> Any:
        def along(x: Any, scale: Any) -> Any:
            first = jax.grad(lambda x: jnp.sum(f(x, labels) ** 2 * scale))(x)
            return jnp.sum(first * direction)

        return jax.grad(along, (0, 1))(x, jnp.arange(3.0))

    for found, expected in zip(second(split), second(f), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
