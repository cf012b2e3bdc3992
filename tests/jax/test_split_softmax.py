"""Softmax functions on split columns under jit: the bits of one device, and no row is sent."""

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

import bridge.jax as bj
from tests.declared.split_columns import COLUMNS
from tests.jax.collectives import collectives_of
from tests.jax.test_sharded_jit import assert_same_bits
from tests.jax.test_sharding import make_mesh

pytestmark = pytest.mark.usefixtures("x64")

ROWS = (2, 16)
SPLITS = [P(None, None, "model"), P(None, None, ("data", "model")), P("data", None, "model")]
SPLITS += [P(None, "model", "data")]
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "scaled_softmax": lambda x, mask: bj.scaled_softmax(x, 0.7),
    "scaled_masked_softmax": partial(bj.scaled_masked_softmax, scale=-1.3),
    "scaled_causal_softmax": lambda x, mask: bj.scaled_causal_softmax(x, 0.5),
}


def gradients(name: str) -> Callable[..., Any]:
    def call(x: Any, g: Any, mask: Any) -> Any:
        y, pull = jax.vjp(lambda x: FUNCTIONS[name](x, mask), x)
        return y, pull(g)[0]

    return call


def to_the_second_order(name: str) -> Callable[..., Any]:
    def call(x: Any, g: Any, t: Any, s: Any, mask: Any) -> Any:
        return jax.jvp(lambda x, g: gradients(name)(x, g, mask), (x, g), (t, s))

    return call


def drawn(columns: int, dtype: str, count: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(columns)
    shape = (*ROWS, columns)
    arrays = [rng.standard_normal(shape) for _ in range(count)]
    arrays[0][0, :3] *= [[1e3], [1e-6], [50]]
    arrays[0][1, 1] = -np.inf
    mask = rng.random((ROWS[0], 1, columns)) < 0.4
    return [jnp.asarray(array, dtype) for array in arrays], jnp.asarray(mask)


def placed(mesh: Any, arrays: list[Any], mask: Any, split: P) -> list[Any]:
    full, of_mask = NamedSharding(mesh, split), NamedSharding(mesh, P(split[0], None, split[2]))
    return [*(jax.device_put(array, full) for array in arrays), jax.device_put(mask, of_mask)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_to_the_second_order(
    name: str, dtype: str, columns: str, split: P, axis_type: AxisType
) -> None:
    arrays, mask = drawn(COLUMNS[columns], dtype, 4)
    function = jax.jit(to_the_second_order(name))
    expected = function(*arrays, mask)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        operands = placed(mesh, arrays, mask, split)
        compiled = function.lower(*operands).compile()
        found = compiled(*operands)
    assert_same_bits(found, expected)
    for array in jax.tree.leaves(found):
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, split), array.ndim)
    sent = collectives_of(compiled.as_text())
    assert set(sent) == {"all-gather"}
    if columns in ("a subtree", "several subtrees"):
        assert max(sent["all-gather"]) < arrays[0].nbytes / 64


@pytest.mark.parametrize(
    ("dtype", "sums"), [("float32", 2), ("bfloat16", 1), ("float16", 1), ("float64", 1)]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_part_that_is_a_subtree_sends_a_few_numbers_a_row(
    name: str, dtype: str, sums: int
) -> None:
    arrays, mask = drawn(4 * 1024, dtype, 2)
    operands = placed(make_mesh(), arrays, mask, P(None, None, ("data", "model")))
    one = 4 * ROWS[0] * ROWS[1] * (8 if dtype == "float64" else 4)
    for function, given, numbers in (
        (FUNCTIONS[name], [operands[0], operands[-1]], [1, sums]),
        (gradients(name), operands, [1, sums, 1]),
    ):
        sent = collectives_of(jax.jit(function).lower(*given).compile().as_text())
        assert set(sent) == {"all-gather"}
        assert sorted(sent["all-gather"]) == sorted(one * n for n in numbers)


@pytest.mark.parametrize("is_shardy", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_under_vmap(name: str, is_shardy: bool) -> None:
    """All elements of a batch have the same mask."""
    (x, g), mask = drawn(4 * 1024, "float32", 2)
    function = jax.vmap(gradients(name), (0, 0, None))
    expected = jax.jit(function)(x, g, mask[0])
    mesh = make_mesh()
    split, of_mask = (NamedSharding(mesh, P(*rows, "model")) for rows in ([None, "data"], [None]))
    operands = jax.device_put(x, split), jax.device_put(g, split), jax.device_put(mask[0], of_mask)
    jax.config.update("jax_use_shardy_partitioner", is_shardy)
    try:
        compiled = jax.jit(lambda *a: function(*a)).lower(*operands).compile()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert_same_bits(compiled(*operands), expected)
    assert max(collectives_of(compiled.as_text())["all-gather"]) < x.nbytes / 64


def test_inside_shard_map_over_some_axes() -> None:
    """Shards that do not know their number gather the row."""
    (x, g), mask = drawn(2048, "float32", 2)
    mesh = make_mesh()
    function = gradients("scaled_causal_softmax")
    split = jax.shard_map(
        lambda x, g: function(x, g, None),
        mesh=mesh,
        in_specs=(P("data"), P("data")),
        out_specs=P("data"),
        axis_names={"data"},
        check_vma=False,
    )
    spread = [jax.device_put(a, NamedSharding(mesh, P("data", None, "model"))) for a in (x, g)]
    assert_same_bits(jax.jit(split)(*spread), jax.jit(function)(x, g, mask))
