"""linear_token_log_probs and linear_divergence of arrays that are split over devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax
from tests.jax.test_sharding import make_mesh

SPLITS = {
    "rows": (P("data"), P(), P("data")),
    "sequence": (P(None, "data"), P(), P(None, "data")),
    "vocabulary": (P(), P("data"), P()),
    "features": (P("data", None, "model"), P(None, "model"), P()),
}


same = np.testing.assert_array_equal
near = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


def drawn(rng: Any) -> tuple[Any, ...]:
    hidden = rng.standard_normal((8, 76, 8), np.float32)
    weight = rng.standard_normal((16, 8), np.float32)
    return hidden, weight, rng.integers(0, 16, (8, 76)).astype(np.int32)


def run(form: str, word: Any, hidden: Any, weight: Any, labels: Any) -> Any:
    if form == "log_probs":
        return bridge.jax.linear_token_log_probs(hidden, weight, labels, bits=word)
    return bridge.jax.linear_divergence(hidden, weight, 2 * hidden, weight, kind="js", bits=word)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("word", [None, "portable"])
@pytest.mark.parametrize("form", ["log_probs", "js"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", SPLITS)
def test_split_arrays(split: str, kind: Any, form: str, word: Any, rng: Any) -> None:
    """They have the bits of whole arrays if bits is "portable"."""
    arrays = drawn(rng)

    def both(hidden: Any, weight: Any, labels: Any) -> Any:
        value, pull = jax.vjp(lambda h, w: run(form, word, h, w, labels), hidden, weight)
        return value, pull(jax.tree.map(jnp.ones_like, value))

    expected = both(*arrays)
    mesh = make_mesh(kind)
    with jax.set_mesh(mesh):
        given = [
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip(arrays, SPLITS[split], strict=True)
        ]
        found = jax.jit(both)(*given)
    jax.tree.map(same if word else near, found, expected)


@pytest.mark.parametrize("word", [None, "portable"])
@pytest.mark.parametrize("form", ["log_probs", "js"])
def test_rows_of_each_device_in_shard_map(form: str, word: Any, rng: Any) -> None:
    hidden, weight, labels = drawn(rng)

    def local(hidden: Any, weight: Any, labels: Any) -> Any:
        return run(form, word, hidden, weight, labels)

    spec = P("data")
    split = jax.shard_map(
        local, mesh=make_mesh(), in_specs=(spec, P(), spec), out_specs=spec, check_vma=True
    )
    made = []
    for each in (split, local):
        value, pull = jax.vjp(jax.jit(lambda h, each=each: each(h, weight, labels)), hidden)
        made.append((value, pull(jax.tree.map(jnp.ones_like, value))))
    jax.tree.map(same if word else near, *made)


def test_symbolic_sizes_are_refused_in_words() -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    shapes = (
        jax.ShapeDtypeStruct((rows, 3), jnp.float32),
        jax.ShapeDtypeStruct((5, 3), jnp.float32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
    )
    for form, name in (("log_probs", "linear_token_log_probs"), ("js", "linear_divergence")):
        function = jax.jit(lambda *a, form=form: run(form, None, *a))
        with pytest.raises(ValueError, match=f"{name}: hidden has a symbolic number of rows"):
            jax.export.export(function)(*shapes)
