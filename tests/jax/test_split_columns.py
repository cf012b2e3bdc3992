"""Declared ops on split columns under jit: the bits of one device, and no row is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax
from bridge.ops import PROGRAM, ProgramParams, Role
from bridge.ops.splitting import AnySplit, supported
from tests.declared.split_columns import CASES, COLUMNS, Case
from tests.jax.collectives import collectives_of
from tests.jax.subprocess_run import run
from tests.jax.test_sharded_jit import assert_same_bits
from tests.jax.test_sharding import make_mesh

pytestmark = pytest.mark.usefixtures("x64")

ROWS = (2, 32)
SPLITS = [P(None, None, "model"), P(None, None, ("data", "model")), P("data", None, "model")]
SPLITS += [P(None, "model", "data")]


def derivatives(case: Case, shape: tuple[int, ...]) -> Any:
    """Returns results, cotangents, and tangents of both, for operands, tangents and cotangents."""
    function = case.function(jnp.asarray, shape)

    def first(values: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        results, pull = jax.vjp(function, *values)
        return results, pull(tuple(cotangents))

    def both(values: Any, tangents: Any, cotangents: Any) -> Any:
        return jax.jvp(first, (values, cotangents), (tangents, cotangents))

    return both


def drawn(case: Case, shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], ...]:
    rng = np.random.default_rng(1)

    def like(arrays: Any) -> list[Any]:
        return [jnp.asarray(rng.standard_normal(a.shape), a.dtype) for a in arrays]

    values = [jnp.asarray(value, dtype) for value in case.values(shape, np.float64)]
    results = jax.eval_shape(case.function(jnp.asarray, shape), *values)
    return values, like(values), like(results)


def placed(mesh: Any, arrays: Any, split: P, shape: tuple[int, ...], *, whole: bool) -> Any:
    """Splits operands with all rows like x; also row vectors and tables, unless `whole`."""

    def spec(array: Any) -> P:
        if array.shape[:2] == shape[:2]:
            return P(*split[: array.ndim])
        return P(split[2]) if array.shape == shape[2:] and not whole else P()

    return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, spec(a))), arrays)


def with_one_nan(arrays: Any) -> Any:
    """Makes all NaN equal: XLA moves bfloat16 gradients as float32, which changes a NaN."""
    return jax.tree.map(lambda a: np.where(np.isnan(a), np.array(np.nan, a.dtype), a), arrays)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_bits_to_the_second_order(
    name: str, dtype: str, columns: str, split: P, axis_type: AxisType
) -> None:
    case, shape = CASES[name], (*ROWS, COLUMNS[columns])
    given, function = drawn(case, shape, dtype), jax.jit(derivatives(case, shape))
    expected = function(*given)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        whole = dtype == "bfloat16"
        operands = (
            *placed(mesh, given[:2], split, shape, whole=whole),
            placed(mesh, given[2], split, shape, whole=False),
        )
        compiled = function.lower(*operands).compile()
        assert_same_bits(*map(with_one_nan, (compiled(*operands), expected)))
    found = collectives_of(compiled.as_text())
    assert set(found) <= {"all-gather", "all-reduce"}
    if columns in ("a subtree", "several subtrees"):
        # The bytes of a replicated row vector's gradient, of which each device computes a part.
        row_vector = shape[-1] * jnp.dtype("float32" if dtype == "bfloat16" else dtype).itemsize
        assert max(found.get("all-gather", [0])) <= row_vector


@pytest.mark.parametrize("name", CASES)
def test_a_part_that_is_a_subtree_sends_a_few_numbers_a_row(name: str) -> None:
    case, shape, parts = CASES[name], (*ROWS, 4 * 1024), 4
    values = drawn(case, shape, "bfloat16")[0]
    mesh = make_mesh()
    operands = placed(mesh, values, P(None, None, ("data", "model")), shape, whole=False)
    compiled = jax.jit(case.function(jnp.asarray, shape)).lower(*operands).compile()
    sent = sorted(int(np.prod(ROWS)) * parts * numbers * 4 for numbers in case.sent)
    found = collectives_of(compiled.as_text())
    assert sorted(found.get("all-gather", [])) == sent
    assert set(found) <= {"all-gather"}


def test_a_shared_chunk_is_sent_as_its_terms() -> None:
    """The vocabulary has 128256 columns over four devices."""
    case, shape = CASES["cross_entropy"], (8, 128256)
    values = drawn(case, shape, "float32")[0]
    function = jax.jit(case.function(jnp.asarray, shape))
    expected = function(*values)
    x = jax.device_put(values[0], NamedSharding(make_mesh(), P(None, ("data", "model"))))
    compiled = function.lower(x).compile()
    assert_same_bits(compiled(x), expected)
    # For each of three sums at most 33 chunks, and 512 numbers at either end; and one maximum.
    numbers = 3 * (33 + 2 * 512) + 1
    assert sum(collectives_of(compiled.as_text())["all-gather"]) <= 4 * 8 * 4 * numbers


@pytest.mark.parametrize("is_shardy", [True, False])
def test_under_vmap_and_scan(is_shardy: bool) -> None:
    """Each batch element has its own column sums and random words."""
    shape = (3, 32, 4 * 1024)
    (x, bias), _, (g,) = drawn(CASES["dropped_mean"], shape, "float32")
    weights = jnp.stack([bias, 2 * bias, 3 * bias])

    def layer(x: Any, g: Any, weight: Any) -> Any:
        y, pull = jax.vjp(lambda x, w: CASES["dropped_mean"].op(x, w, 7), x, weight)
        return pull(CASES["rms_norm"].op(y, weight) * g)

    def both(x: Any, g: Any, weights: Any) -> Any:
        return (
            jax.vmap(layer)(x, g, weights),
            jax.lax.scan(lambda c, each: (c, layer(*each)), 0, (x, g, weights))[1],
        )

    expected = jax.jit(both)(x, g, weights)
    mesh = make_mesh()
    split = NamedSharding(mesh, P(None, "data", "model"))
    operands = [jax.device_put(x, split), jax.device_put(g, split)]
    operands.append(jax.device_put(weights, NamedSharding(mesh, P(None, "model"))))
    jax.config.update("jax_use_shardy_partitioner", is_shardy)
    try:
        compiled = jax.jit(lambda *a: both(*a)).lower(*operands).compile()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert_same_bits(compiled(*operands), expected)
    assert max(collectives_of(compiled.as_text())["all-gather"]) < x.size / 16


def test_inside_shard_map_over_some_axes() -> None:
    """Shards that do not know their number gather the row."""
    case, shape = CASES["cross_entropy"], (8, 2048)
    x = drawn(case, shape, "float32")[0][0]
    label = jnp.arange(8)
    mesh = make_mesh()
    split = jax.shard_map(
        jax.grad(lambda x, label: case.op(x, label).sum()),
        mesh=mesh,
        in_specs=(P("data"), P("data")),
        out_specs=P("data"),
        axis_names={"data"},
        check_vma=False,
    )
    spread = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
    expected = jax.jit(jax.grad(lambda x: case.op(x, label).sum()))(x)
    assert_same_bits(jax.jit(split)(spread, label), expected)


_EIGHT = """
import jax
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.declared.split_columns import CASES
from tests.jax.test_split_columns import derivatives, drawn
from tests.jax.test_sharded_jit import assert_same_bits
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
for name in ("largest", "log_softmax"):
    for columns in (8 * 1024, 8 * 700, 8 * 12):
        case, shape = CASES[name], (4, 2, columns)
        given, function = drawn(case, shape, "float32"), jax.jit(derivatives(case, shape))
        split = NamedSharding(mesh, P(None, None, "a"))
        spread = jax.tree.map(lambda a: jax.device_put(a, split) if a.ndim == 3 else a, given)
        assert_same_bits(function(*spread), function(*given))
print("same")
"""


@pytest.mark.long
def test_eight_devices() -> None:
    assert run(_EIGHT) == "same"


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("rows", [(), (0,)])
def test_one_row_and_none(rows: tuple[int, ...], axis_type: AxisType) -> None:
    def both(x: Any) -> Any:
        y, pull = jax.vjp(CASES["largest"].op, x)
        return y, pull(y)

    x = jnp.asarray(np.random.default_rng(0).standard_normal((*rows, 2 * 700)), np.float32)
    expected = jax.jit(both)(x)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        spread = jax.device_put(x, NamedSharding(mesh, P(*[None] * len(rows), "model")))
        found = jax.jit(both)(spread)
    assert_same_bits(*(jax.tree.map(np.atleast_1d, each) for each in (found, expected)))


def test_a_row_vector_that_is_whole_has_a_gradient_that_is() -> None:
    """The explicit type of a gradient is its operand's, although it is computed split."""
    case, shape = CASES["layer_norm"], (8, 2048)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, weight, bias = (
            jax.device_put(value, NamedSharding(mesh, P(None, "model") if i == 0 else P()))
            for i, value in enumerate(drawn(case, shape, "float32")[0])
        )
        gradients = jax.jit(jax.grad(lambda *a: case.op(*a).sum(), (0, 1, 2)))(x, weight, bias)
        for gradient, operand in zip(gradients, (x, weight, bias), strict=True):
            assert jax.typeof(gradient).sharding.spec == jax.typeof(operand).sharding.spec


@pytest.mark.parametrize("first", [False, True])
def test_a_change_of_x64(first: bool) -> None:
    """Tables of columns are cached, and JAX remembers the width in which it used them."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    x = np.ones((3, 344), np.float32)  # of a size that no other test has
    kept = []
    for x64 in (first, not first):
        with jax.enable_x64(x64):
            placed = jax.device_put(x, NamedSharding(mesh, P(None, "d")))
            kept.append(
                jax.make_jaxpr(
                    jax.shard_map(
                        lambda x, labels: bridge.jax.cross_entropy(x, labels, axis_name="d"),
                        mesh=mesh,
                        in_specs=(P(None, "d"), P()),
                        out_specs=P(),
                    )
                )(placed, np.zeros(3, np.int32))
            )
            y = jax.jit(lambda x: bridge.jax.rms_norm(x))(placed)
            np.testing.assert_allclose(y, x / np.sqrt(1 + 1e-6), rtol=1e-6)


def test_places_of_very_long_rows_are_not_split() -> None:
    """They are sent as float32, which has all integers up to 2²⁴."""

    class Halved(AnySplit):
        def size(self, axis: Any) -> int:
            return 2

    code = CASES["largest"].op._example.code  # type: ignore[attr-defined]
    for columns, dtype, is_kept in (
        (2**24, "float32", True),
        (2**24 + 2, "float32", False),
        (2**24 + 2, "float64", True),
    ):
        params = ProgramParams(code, dtype, f"{dtype},{dtype}")
        split = supported(PROGRAM, params, [Role.FULL], Halved((1, columns), ((), ("a",))))
        assert (split.parts(1) == 2) is is_kept
