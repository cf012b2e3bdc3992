"""Packed gated units and rotary on split columns: nothing is gathered, and the bits agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from bridge.ops.halves import half, rounds
from tests.jax.collectives import collectives_of
from tests.jax.compositions import normal
from tests.jax.conftest import DEVICES
from tests.jax.test_sharded_jit import assert_same_bits
from tests.jax.test_sharding import make_mesh

pytestmark = pytest.mark.usefixtures("x64")

ROWS, D = (4, 6), 24
LAYOUTS: dict[str, dict[str, Any]] = {
    "halves": {},
    "interleaved": {"interleaved": True},
    "blocks": {"blocks": DEVICES},
}
EXTRAS = [(), ("bias",), ("weight",), ("bias", "weight")]


def derivatives(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns result, gradients, and the tangents of both along the operands."""

    def first(g: Any, *operands: Any) -> Any:
        y, pull = jax.vjp(function, *operands)
        return y, pull(g)

    return lambda g, *operands: jax.jvp(first, (g, *operands), (g, *operands))


def drawn(rng: np.random.Generator, extras: tuple[str, ...], dtype: Any) -> dict[str, Any]:
    shapes = {"g": (*ROWS, D), "packed": (*ROWS, 2 * D), "bias": (2 * D,), "weight": ROWS}
    names = ("g", "packed", *extras)
    return {name: normal(rng, *shapes[name], dtype=dtype) for name in names}


def placed(mesh: Any, arrays: dict[str, Any], axes: Any) -> list[Any]:
    specs = {"g": P(None, None, axes), "packed": P(None, None, axes), "bias": P(axes)}
    return [
        jax.device_put(array, NamedSharding(mesh, specs.get(name, P())))
        for name, array in arrays.items()
    ]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("axes", ["model", ("data", "model"), ("model", "data")])
@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "dtype"), [("swiglu", "float32"), ("geglu", "bfloat16"), ("reglu", "float64")]
)
def test_gated_units(
    name: str,
    dtype: str,
    layout: str,
    extras: tuple[str, ...],
    axes: Any,
    axis_type: AxisType,
    rng: np.random.Generator,
) -> None:
    def function(packed: Any, *others: Any) -> Any:
        given = dict(zip(extras, others, strict=True))
        bias = given.pop("bias", None)
        return getattr(bj, name)(packed, None, bias, limit=0.9, **given, **LAYOUTS[layout])

    arrays = drawn(rng, extras, dtype)
    expected = jax.jit(derivatives(function))(*arrays.values())
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        operands = placed(mesh, arrays, axes)
        both = jax.jit(derivatives(function)).lower(*operands).compile()
        forward = jax.jit(function).lower(*operands[1:]).compile()
        found = both(*operands)
    assert_same_bits(found, expected)
    for array in jax.tree.leaves(found):
        spec = P(*[None] * (array.ndim - 1), axes) if array.ndim != 2 else P()
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), array.ndim)
    sent = collectives_of(both.as_text())
    # A weight's gradient sums along the row: it sends numbers per row, never the packed array.
    gathered = sent.pop("all-gather", [])
    assert bool(gathered) == ("weight" in extras)
    assert set(sent) == ({"collective-permute"} if layout == "halves" else set())
    size = np.dtype(dtype).itemsize
    parts = 2 if axes == "model" else DEVICES
    own = sum(array.size for name, array in arrays.items() if name in ("packed", "bias"))
    sizes = collectives_of(forward.as_text()).get("collective-permute", [])
    assert sum(sizes) == (own * size // parts if layout == "halves" else 0)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved: bool, axis_type: AxisType, rng: np.random.Generator) -> None:
    x, g = normal(rng, *ROWS, 2 * D), normal(rng, *ROWS, 2 * D)
    tables = [normal(rng, ROWS[-1], D), normal(rng, ROWS[-1], D)]
    run = jax.jit(derivatives(partial(bj.rotary, interleaved=interleaved)))
    expected = run(g, x, *tables)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        operands = [
            jax.device_put(a, NamedSharding(mesh, P(*[None] * (a.ndim - 1), "model")))
            for a in (g, x, *tables)
        ]
        compiled = run.lower(*operands).compile()
        assert_same_bits(compiled(*operands), expected)
    kinds = set() if interleaved else {"collective-permute"}
    assert set(collectives_of(compiled.as_text())) == kinds


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("interleaved", [False, True])
def test_devices_that_share_a_column(
    interleaved: bool, axis_type: AxisType, rng: np.random.Generator
) -> None:
    """Four devices divide 2·d = 12 columns, but not d = 6, so the rows are gathered."""
    packed = normal(rng, *ROWS, 12)
    function = jax.jit(partial(bj.swiglu, interleaved=interleaved))
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        split = NamedSharding(mesh, P(None, None, ("data", "model")))
        assert_same_bits(function(jax.device_put(packed, split)), function(packed))


def test_inside_of_shard_map_over_another_axis(rng: np.random.Generator) -> None:
    """XLA splits the columns there: pairs stay in place, and halves are gathered."""
    packed = normal(rng, *ROWS, 2 * D)
    mesh = make_mesh()
    for options in LAYOUTS.values():
        function = partial(bj.swiglu, **options)
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
        )
        split = jax.device_put(packed, NamedSharding(mesh, P("data", None, "model")))
        compiled = jax.jit(mapped).lower(split).compile()
        assert_same_bits(compiled(split), function(packed))
        if options:
            assert not collectives_of(compiled.as_text())


def test_two_rounds_move_every_block() -> None:
    for parts in range(2, 12):
        held: dict[tuple[int, int], int] = {}
        for turn, permutation in enumerate(rounds(parts)):
            assert sorted(of for of, _ in permutation) == [*range(parts)]
            assert sorted(to for _, to in permutation) == [*range(parts)]
            for source, target in permutation:
                block = 2 * source + (half(source, parts) ^ turn)
                held[target, (target % 2) ^ turn] = block
        for device in range(parts):
            assert [held[device, side] for side in (0, 1)] == [device, parts + device]


@pytest.mark.parametrize("columns", [D // 2, 2 * D])
def test_rotary_by_tables_of_other_lengths(columns: int, rng: np.random.Generator) -> None:
    """Tables are for the leading part of x, whose columns are then gathered, or doubled."""
    x, cos, sin = normal(rng, *ROWS, 2 * D), normal(rng, columns), normal(rng, columns)
    expected = bj.rotary(x, cos, sin)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        split = jax.device_put(x, NamedSharding(mesh, P(None, None, "model")))
        assert_same_bits(jax.jit(bj.rotary)(split, cos, sin), expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("columns", [0, 2])
def test_one_column_and_none(columns: int, interleaved: bool, rng: np.random.Generator) -> None:
    packed, mesh = normal(rng, 4, columns), make_mesh()
    function = jax.jit(jax.grad(lambda x: bj.swiglu(x, interleaved=interleaved).sum()))
    for split in (P(None, "model"), P("data")):
        operand = jax.device_put(packed, NamedSharding(mesh, split))
        assert_same_bits(function(operand), function(packed))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_shardy(layout: str, rng: np.random.Generator) -> None:
    """A constant cotangent has no sharding when XLA's older partitioner asks for it."""
    packed, mesh = normal(rng, *ROWS, 2 * D), make_mesh()

    @jax.jit
    def gradient(packed: Any) -> Any:
        return jax.grad(lambda x: bj.swiglu(x, **LAYOUTS[layout]).sum())(packed)

    expected = gradient(packed)
    operand = jax.device_put(packed, NamedSharding(mesh, P(None, None, "model")))
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        compiled = gradient.lower(operand).compile()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert_same_bits(compiled(operand), expected)
    assert "all-gather" not in collectives_of(compiled.as_text())
