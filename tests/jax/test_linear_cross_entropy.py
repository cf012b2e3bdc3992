"""linear_cross_entropy over several devices, and with labels and settings of every kind."""

from __future__ import annotations

from typing import Any

import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax
from tests.jax.test_sharding import make_mesh


def given(rng: Any, *rows: int) -> tuple[Any, Any, Any]:
    hidden, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((*rows, 8), (16, 8)))
    return hidden, weight, rng.integers(0, 16, rows).astype(np.int32)


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "splits",
    [(P("data"), P(), P("data")), (P(None, "data"), P(), P(None, "data")), (P(), P("data"), P())],
    ids=["batch", "sequence", "vocabulary"],
)
def test_explicit_axes(splits: Any, reduction: str, rng: Any) -> None:
    arrays = given(rng, 8, 4)

    def both(hidden: Any, weight: Any, labels: Any) -> Any:
        def loss(hidden: Any, weight: Any) -> Any:
            options: Any = {"reduction": reduction, "chunk": 7}
            found = bridge.jax.linear_cross_entropy(hidden, weight, labels, **options)
            return jnp.sum(jnp.sin(found))

        return jax.value_and_grad(loss, (0, 1))(hidden, weight)

    expected = both(*arrays)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        split = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(arrays, splits, strict=True)
        ]
        for found in (both(*split), jax.jit(both)(*split)):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
            )


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "splits",
    [
        (P("data"), P(), P("data"), P()),
        (P(None, "data"), P(), P(None, "data"), P()),
        (P(), P("data"), P(), P("data")),
        (P("data", None, "model"), P(None, "model"), P(), P()),
    ],
    ids=["batch", "sequence", "vocabulary", "features"],
)
def test_portable_bits_of_split_arrays(splits: Any, reduction: str, kind: Any, rng: Any) -> None:
    """They are those of whole arrays, in one chunk and in several."""
    hidden, weight, labels = given(rng, 8, 76)
    arrays = hidden, weight, labels, rng.normal(size=16).astype(np.float32)
    mesh = make_mesh(kind)
    for chunk in (None, 256):

        def both(hidden: Any, weight: Any, labels: Any, bias: Any, chunk: Any = chunk) -> Any:
            def loss(hidden: Any, weight: Any, bias: Any) -> Any:
                return bridge.jax.linear_cross_entropy(
                    hidden,
                    weight,
                    labels,
                    bias=bias,
                    chunk=chunk,
                    reduction=reduction,
                    bits="portable",
                )

            value, pull = jax.vjp(loss, hidden, weight, bias)
            return value, pull(jnp.ones_like(value))

        expected = both(*arrays)
        with jax.set_mesh(mesh):
            split = [
                jax.device_put(array, NamedSharding(mesh, spec))
                for array, spec in zip(arrays, splits, strict=True)
            ]
            found = jax.jit(both)(*split)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("check_vma", [False, True])
def test_portable_bits_in_shard_map(check_vma: bool, rng: Any) -> None:
    """The losses of rows and the gradient of hidden do not depend on the device's other rows."""
    hidden, weight, labels = given(rng, 600)

    def losses(hidden: Any, weight: Any, labels: Any) -> Any:
        return bridge.jax.linear_cross_entropy(
            hidden, weight, labels, reduction="none", chunk=256, bits="portable"
        )

    split = jax.shard_map(
        losses,
        mesh=make_mesh(),
        in_specs=(P("data"), P(), P("data")),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    both = []
    for run in (split, losses):
        value, pull = jax.vjp(jax.jit(lambda h, run=run: run(h, weight, labels)), hidden)
        both.append((value, pull(jnp.ones_like(value))))
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.parametrize("form", ["mean", "sum"])
def test_losses_of_a_split_sequence(form: str, rng: Any) -> None:
    logits = rng.normal(size=(3, 8, 5)).astype(np.float32)
    labels = rng.integers(0, 5, (3, 8)).astype(np.int32)
    expected = bridge.jax.cross_entropy(logits, labels, reduction=form)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        split = [jax.device_put(a, NamedSharding(mesh, P(None, "data"))) for a in (logits, labels)]
        found = jax.jit(lambda x, y: bridge.jax.cross_entropy(x, y, reduction=form))(*split)
    np.testing.assert_array_equal(found, expected)


def test_partial_rotary_of_split_columns(rng: Any) -> None:
    x = rng.normal(size=(6, 8)).astype(np.float32)
    cos, sin = (rng.normal(size=(6, 2)).astype(np.float32) for _ in range(2))
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        split = jax.device_put(x, NamedSharding(mesh, P(None, "data")))
        found = jax.jit(bridge.jax.rotary)(split, cos, sin)
    np.testing.assert_array_equal(found, bridge.jax.rotary(x, cos, sin))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int8", "int16"])
def test_labels_of_any_dtype_in_chunks_that_do_not_divide_the_rows(dtype: str, rng: Any) -> None:
    hidden, weight, labels = given(rng, 7)
    # The mark of an ignored row may not fit into narrow labels.
    for ignore_index in (-100, -1000):
        options: Any = {"chunk": 4, "ignore_index": ignore_index}
        found, expected = (
            jax.value_and_grad(bridge.jax.linear_cross_entropy)(hidden, weight, each, **options)
            for each in (labels.astype(dtype), labels)
        )
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strict_promotion(dtype: str, rng: Any) -> None:
    hidden, weight, labels = given(rng, 6)
    operands = jnp.asarray(hidden, dtype), jnp.asarray(weight, dtype)
    expected = jax.grad(bridge.jax.linear_cross_entropy)(*operands, labels)
    with jax.numpy_dtype_promotion("strict"):
        found = jax.grad(bridge.jax.linear_cross_entropy)(*operands, labels)
    np.testing.assert_array_equal(found, expected)


def test_without_promotion_of_ranks(rng: Any) -> None:
    h, w, bias = (jnp.asarray(rng.normal(size=shape)) for shape in ((3, 5), (8, 5), (8,)))
    with jax.numpy_rank_promotion("raise"):
        jax.grad(
            lambda b: bridge.jax.linear_cross_entropy(h, w, jnp.zeros(3, int), bias=b, chunk=2)
        )(bias)


def test_labels_in_a_variable(rng: Any) -> None:
    hidden, weight, labels = given(rng, 6)
    variable = flax.nnx.Variable(jnp.asarray(labels))
    logits = hidden @ weight.T
    found = flax.nnx.jit(lambda v: bridge.jax.cross_entropy(logits, v))(variable)
    assert found == bridge.jax.cross_entropy(logits, labels)
    found = flax.nnx.jit(lambda v: bridge.jax.linear_cross_entropy(hidden, weight, v))(variable)
    assert jnp.isfinite(found)


def test_several_axes_are_refused(rng: Any) -> None:
    logits, _, labels = given(rng, 4)
    with pytest.raises(ValueError, match=r"axis_name is \('data',\), expected the name"):
        jax.shard_map(
            lambda x, y: bridge.jax.cross_entropy(x, y, axis_name=("data",)),
            mesh=make_mesh(),
            in_specs=(P(None, "data"), P()),
            out_specs=P(),
        )(logits, labels)
