"""Convolutions of arrays that are split over devices have the bits of the whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from tests.convolution.cases import same

NHWC = ("NHWC", "HWIO", "NHWC")

# The specs of x [n, h, w, c] and w [3, 3, c/groups, out], the groups and out.
SPLITS: dict[str, Any] = {
    "images": (P("a"), P(), 1, 8),
    "output channels": (P(), P(None, None, None, "a"), 1, 8),
    "both": (P("a"), P(None, None, None, "b"), 1, 8),
    "input channels": (P(None, None, None, "a"), P(None, None, "a"), 1, 8),
    "places": (P(None, "a"), P(), 1, 8),
    "groups": (P(None, None, None, "a"), P(None, None, None, "a"), 4, 12),
    "depthwise": (P("b", None, None, "a"), P(None, None, None, "a"), 8, 8),
    "more parts than groups": (P(None, None, None, ("a", "b")), P(), 2, 8),
}


def drawn(rng: np.random.Generator, groups: int, out: int) -> list[Any]:
    shapes = ((4, 6, 5, 8), (3, 3, 8 // groups, out), (4, 6, 5, out))
    return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


def conv(groups: int) -> Any:
    return partial(
        bj.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=NHWC,
        feature_group_count=groups,
    )


@pytest.mark.parametrize("name", SPLITS)
def test_values_and_gradients(name: str, rng: np.random.Generator) -> None:
    spec_x, spec_w, groups, out = SPLITS[name]
    x, w, g = drawn(rng, groups, out)

    @jax.jit
    def run(x: Any, w: Any, g: Any) -> Any:
        y, pull = jax.vjp(conv(groups), x, w)
        return y, *pull(g)

    whole = run(x, w, g)
    here = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    placed = [
        jax.device_put(each, NamedSharding(here, spec))
        for each, spec in ((x, spec_x), (w, spec_w), (g, P()))
    ]
    for one, two in zip(whole, run(*placed), strict=True):
        same(one, two)


@pytest.mark.parametrize("name", ["images", "output channels", "groups", "depthwise"])
def test_nothing_is_exchanged(name: str, rng: np.random.Generator) -> None:
    spec_x, spec_w, groups, out = SPLITS[name]
    x, w, _ = drawn(rng, groups, out)
    here = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    placed = [
        jax.device_put(each, NamedSharding(here, s)) for each, s in ((x, spec_x), (w, spec_w))
    ]
    text = jax.jit(conv(groups)).lower(*placed).compile().as_text()
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all"))


def test_inside_shard_map(rng: np.random.Generator) -> None:
    x, w, _ = drawn(rng, 1, 8)
    here = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))

    def gradient(x: Any, w: Any) -> Any:
        return jax.grad(lambda x: conv(1)(x, w).sum())(x)

    for f in (conv(1), gradient):
        mapped = jax.shard_map(f, mesh=here, in_specs=(P("a"), P()), out_specs=P("a"))
        same(jax.jit(mapped)(x, w), jax.jit(f)(x, w))


def test_explicit_axes(rng: np.random.Generator) -> None:
    x, w, _ = drawn(rng, 1, 8)
    whole = conv(1)(x, w)
    here = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    expected = jax.grad(lambda x, w: conv(1)(x, w).sum(), (0, 1))(x, w)
    with jax.set_mesh(here):
        for spec_x, spec_w, spec_y in (
            (P("a"), P(None, None, None, "b"), P("a", None, None, "b")),
            (P("a"), P(), P("a", None, None, None)),
            (P(None, "a"), P(None, None, None, "b"), P(None, None, None, "b")),
        ):
            placed = jax.device_put(x, spec_x), jax.device_put(w, spec_w)
            y = jax.jit(conv(1))(*placed)
            assert jax.typeof(y).sharding.spec == spec_y
            same(y, whole)
            found = jax.jit(jax.grad(lambda x, w: conv(1)(x, w).sum(), (0, 1)))(*placed)
            for one, two in zip(found, expected, strict=True):
                same(one, two)
