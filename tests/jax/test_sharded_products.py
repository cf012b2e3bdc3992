"""Products of arrays that are split over devices have the bits of the whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj

# The specs of x [rows, k] and y [k, cols], and the contraction.
SPLITS = {
    "rows": (P("a"), P(), 700),
    "columns": (P(), P(None, "a"), 700),
    "both": (P("a"), P(None, "b"), 700),
    "contraction of subtrees": (P(None, "a"), P("a"), 2048),
    "contraction over both axes": (P(None, ("a", "b")), P(("a", "b")), 4096),
    "contraction and columns": (P(None, "a"), P("a", "b"), 1024),
    "contraction of parts that are no subtrees": (P(None, "a"), P("a"), 1000),
    "contraction of three leaves": (P(None, "a"), P("a"), 3072),
    "contraction of one operand": (P(None, "a"), P(), 2048),
    "rows and contraction of one axis": (P("a"), P("a"), 2048),
}


def mesh() -> Mesh:
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def drawn(rng: np.random.Generator, k: int, dtype: str = "float32") -> tuple[Any, Any, Any]:
    x = rng.standard_normal((8, k)) * np.where(rng.random((8, k)) < 0.1, 1e-40, 1.0)
    return tuple(
        jnp.asarray(each, dtype)
        for each in (x, rng.standard_normal((k, 16)), rng.standard_normal((8, 16)))
    )


def same(one: Any, two: Any) -> None:
    assert one.dtype == two.dtype
    np.testing.assert_array_equal(
        *(np.asarray(x).view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize]) for x in (one, two))
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPLITS)
def test_values_and_gradients(name: str, dtype: str, rng: np.random.Generator) -> None:
    spec_x, spec_y, k = SPLITS[name]
    x, y, g = drawn(rng, k, dtype)

    @jax.jit
    def run(x: Any, y: Any, g: Any) -> Any:
        z, pull = jax.vjp(bj.matmul, x, y)
        return z, *pull(g)

    whole = run(x, y, g)
    here = mesh()
    placed = [
        jax.device_put(each, NamedSharding(here, spec))
        for each, spec in ((x, spec_x), (y, spec_y), (g, P()))
    ]
    for one, two in zip(whole, run(*placed), strict=True):
        same(one, two)


@pytest.mark.parametrize("shards", [2, 4])
def test_a_layer_is_trained_on_parts_of_the_batch(shards: int, rng: np.random.Generator) -> None:
    """The gradient of a weight adds the tokens of all devices in the tree."""
    x = jnp.asarray(rng.standard_normal((8, 256, 12)), jnp.float32)
    w, bias = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((20, 12), (20,)))

    @jax.jit
    def gradients(w: Any, bias: Any, x: Any) -> Any:
        return jax.grad(lambda w, bias: (bj.linear(x, w, bias) ** 2).sum(), (0, 1))(w, bias)

    devices = jax.make_mesh((shards,), ("data",), axis_types=(AxisType.Auto,))
    split = jax.device_put(x, NamedSharding(devices, P("data")))
    for one, two in zip(gradients(w, bias, x), gradients(w, bias, split), strict=True):
        same(one, two)
    text = gradients.lower(w, bias, split).compile().as_text()
    assert f"f32[{8 // shards},256,12]" in text  # no device has the whole batch
    assert "f32[8,256,12]" not in text


def test_what_is_exchanged(rng: np.random.Generator) -> None:
    x, y, _ = drawn(rng, 2048)
    here = mesh()
    run = jax.jit(bj.matmul)
    rows = run.lower(jax.device_put(x, NamedSharding(here, P("a"))), y).compile().as_text()
    assert not any(word in rows for word in ("all-gather", "all-reduce", "all-to-all"))
    parts = [
        jax.device_put(each, NamedSharding(here, s)) for each, s in ((x, P(None, "a")), (y, P("a")))
    ]
    sums = run.lower(*parts).compile().as_text()
    assert "all-gather" in sums
    assert "f32[8,2048]" not in sums


def test_explicit_axes(rng: np.random.Generator) -> None:
    x, y, _ = drawn(rng, 1024)
    whole = bj.matmul(x, y)
    here = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(here):
        for spec_x, spec_y, expected in (
            (P("a", None), P(None, "b"), P("a", "b")),
            (P(None, "a"), P("a", None), P(None, None)),
            (P("a", None), P(None, "a"), P("a", None)),
        ):
            placed = jax.device_put(x, spec_x), jax.device_put(y, spec_y)
            z = jax.jit(bj.matmul)(*placed)
            assert jax.typeof(z).sharding.spec == expected
            same(z, whole)
            g = jax.jit(jax.grad(lambda x, y: bj.matmul(x, y).sum(), 1))(*placed)
            same(g, jax.grad(lambda x, y: bj.matmul(x, y).sum(), 1)(x, y))


def test_shard_map(rng: np.random.Generator) -> None:
    x, y, _ = drawn(rng, 300)
    here = mesh()
    split = jax.shard_map(bj.matmul, mesh=here, in_specs=(P("a"), P()), out_specs=P("a"))
    same(jax.jit(split)(x, y), bj.matmul(x, y))
    partly = jax.shard_map(
        bj.matmul, mesh=here, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}
    )
    same(jax.jit(partly)(x, y), bj.matmul(x, y))
