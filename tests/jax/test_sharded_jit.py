"""Ops on sharded arrays under jit: the bits of one device, and only the listed communication."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from bridge.jax._sharded import word_pairs
from tests.jax.collectives import collectives_of
from tests.jax.compositions import normal
from tests.jax.conftest import DEVICES
from tests.jax.test_sharding import make_mesh
from tests.split_forms import listed, transfers
from tools.bench import ops as bench
from tools.bench.in_jax import Contenders


@dataclass(frozen=True)
class Sharded:
    """A function of full arrays of about `[4, 32, 4, 12]`, and of a bias if it takes one."""

    function: Callable[..., Any]
    full: int = 1
    bias: bool = False

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> list[Any]:
        """Returns a cotangent, full arrays, and a bias."""
        full = [normal(rng, *shape, dtype=dtype) for _ in range(self.full + 1)]
        return [*full, *([normal(rng, shape[-1], dtype=dtype)] if self.bias else [])]

    def gradients(self, g: Any, *arguments: Any) -> Any:
        y, pull = jax.vjp(self.function, *arguments)
        return y, pull(g)


_MASK = np.random.default_rng(3).random((4, 1, 1, 48)) < 0.4
_DRAWN = {"p": 0.3, "seed": 2**40 + 5, "offset": 3}

OPS = {
    "bias_gelu": Sharded(bj.bias_gelu, bias=True),
    "bias_dropout_add": Sharded(
        lambda x, residual, bias: bj.bias_dropout_add(x, bias, residual, **_DRAWN), 2, True
    ),
    "scaled_softmax": Sharded(partial(bj.scaled_softmax, scale=0.7)),
    "scaled_masked_softmax": Sharded(lambda x: bj.scaled_masked_softmax(x, _MASK, -1.3)),
    "scaled_causal_softmax": Sharded(partial(bj.scaled_causal_softmax, scale=0.5)),
}
SHAPE = (4, 4, 32, 48)
ROWS = [
    P("data"),
    P(("model", "data")),
    P(None, "model"),
    P(None, None, "data"),
    P("data", None, "model"),
]
COLUMNS = [P(None, None, None, "model")]
BOTH = [
    P("data", None, None, "model"),
    P(None, "model", None, "data"),
    P(None, None, "data", "model"),
]


def placed(mesh: Any, arrays: list[Any], split: P) -> list[Any]:
    """Puts arrays on the mesh; row vectors are split like the columns."""
    vector = P(*split[len(SHAPE) - 1 :])
    return [jax.device_put(a, NamedSharding(mesh, split if a.ndim > 1 else vector)) for a in arrays]


def assert_same_bits(ours: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        a, b = (np.atleast_1d(each).view(np.uint8) for each in (a, b))
        np.testing.assert_array_equal(a, b)


LISTED = listed()


def listed_kinds(name: str, dims: str) -> tuple[set[str], set[str]]:
    """Returns the collectives in docs/sharding.md, forward and backward."""
    row = LISTED[f"{name}, bias" if OPS[name].bias else name, dims]
    return set(transfers(row.jax_forward)), set(transfers(row.jax_backward))


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("split", "axis_type", "dtype"),
    [
        *((split, AxisType.Auto, jnp.bfloat16) for split in ROWS),
        *((split, AxisType.Auto, jnp.float32) for split in [*COLUMNS, *BOTH]),
        *((split, AxisType.Explicit, jnp.float32) for split in ROWS[1::2]),
        *((split, AxisType.Explicit, jnp.bfloat16) for split in [*COLUMNS, BOTH[1]]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", OPS)
def test_bits_and_collectives(
    name: str, split: P, axis_type: AxisType, dtype: Any, rng: np.random.Generator
) -> None:
    case = OPS[name]
    arrays = case.draw(rng, SHAPE, dtype)
    expected = jax.jit(case.gradients)(*arrays)
    allowed: tuple[set[str], set[str]] = (set(), set())
    for dims, is_split in (
        ("rows", any(split[:3])),
        ("columns", len(split) > 3),
    ):
        if is_split:
            allowed = tuple(a | b for a, b in zip(allowed, listed_kinds(name, dims), strict=True))
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        operands = placed(mesh, arrays, split)
        both = jax.jit(case.gradients).lower(*operands).compile()
        ours = both(*operands)
        if not allowed[0] and allowed[1]:
            forward = jax.jit(case.function).lower(*operands[1:]).compile()
            assert not collectives_of(forward.as_text())
    assert_same_bits(ours, expected)
    assert set(collectives_of(both.as_text())) <= allowed[0] | allowed[1]
    for array in jax.tree.leaves(ours):
        if array.ndim > 1:
            assert array.sharding.is_equivalent_to(NamedSharding(mesh, split), array.ndim)


# Shapes, splits, and the number of subtrees whose sums are exchanged.
DTYPES = ["float32", "bfloat16", "float16", "float64", "bfloat16"]
SUMS = [
    ((4096, 8), P("data"), 2),
    ((4096, 8), P(("data", "model")), 4),
    ((96, 8), P("data"), 2 * 3),  # 48 rows are three leaves
    ((512, 8), P(("data", "model")), 4),
    ((8, 64, 8), P("data"), 2),
    ((8, 64, 8), P(None, "data"), 8 * 2),
    ((8, 64, 8), P("data", "model"), 8 * 2),
    ((2, 3, 320, 8), P("data", None, "model"), 2 * 3 * 2 * 5),
    ((1, 1, 64, 8), P(None, None, "data"), 2),
]


@pytest.mark.parametrize(
    ("shape", "split", "nodes", "dtype", "axis_type"),
    [
        (*case, dtype, AxisType.Explicit if i % 3 == 0 else AxisType.Auto)
        for i, (case, dtype) in enumerate(
            zip(
                SUMS * 2,
                ["float32", "bfloat16", "float16", "float64", "bfloat16"] * 4,
                strict=False,
            )
        )
    ],
    ids=str,
)
@pytest.mark.usefixtures("x64")
def test_one_small_all_reduce_for_a_bias_gradient(
    dtype: str,
    shape: tuple[int, ...],
    split: P,
    nodes: int,
    axis_type: AxisType,
    rng: np.random.Generator,
) -> None:
    case = OPS["bias_dropout_add" if dtype == "bfloat16" and len(shape) == 2 else "bias_gelu"]
    arrays = case.draw(rng, shape, dtype)
    expected = jax.jit(case.gradients)(*arrays)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        operands = [
            jax.device_put(a, NamedSharding(mesh, split if a.ndim > 1 else P())) for a in arrays
        ]
        compiled = jax.jit(case.gradients).lower(*operands).compile()
        assert_same_bits(compiled(*operands), expected)
    sent = nodes * shape[-1] * (8 if dtype == "float64" else 4)
    assert collectives_of(compiled.as_text()) == {"all-reduce": [sent]}


@pytest.mark.parametrize(
    ("shape", "split", "shared"),
    [
        ((12, 5), P("data"), 1),
        ((4, 7, 5), P("data"), 1),
        ((2, 34, 3), P("data", "model"), 3),
        ((2000, 8), P("data"), 1),
        ((3, 4, 50, 3), P(None, "data"), 4),
        ((3, 4, 3, 5), P(None, ("data", "model")), 3),
    ],
)
@pytest.mark.parametrize(
    ("name", "dtype"), [("bias_gelu", "bfloat16"), ("bias_dropout_add", "float32")]
)
def test_shards_that_share_leaves_of_the_tree(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    split: P,
    shared: int,
    rng: np.random.Generator,
) -> None:
    """`shared` is the number of 16-row leaves with rows of several runs."""
    case, width = OPS[name], shape[-1]
    arrays = case.draw(rng, shape, dtype)
    expected = jax.jit(case.gradients)(*arrays)
    mesh = make_mesh()
    operands = [
        jax.device_put(a, NamedSharding(mesh, split if a.ndim > 1 else P())) for a in arrays
    ]
    compiled = jax.jit(case.gradients).lower(*operands).compile()
    assert_same_bits(compiled(*operands), expected)
    sent = (-(-math.prod(shape[:-1]) // 16) + 16 * shared) * width * 4
    assert collectives_of(compiled.as_text()) == {"all-reduce": [sent]}


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    ("shape", "split"), [((4, 0, 8), P("data")), ((0, 4, 8), P(None, "data"))], ids=str
)
@pytest.mark.parametrize("name", ["bias_gelu", "bias_dropout_add", "scaled_causal_softmax"])
def test_arrays_without_rows(
    name: str, shape: tuple[int, ...], split: P, axis_type: AxisType, rng: np.random.Generator
) -> None:
    case, mesh = OPS[name], make_mesh(axis_type)
    arrays = case.draw(rng, shape, jnp.float32)
    expected = jax.jit(case.gradients)(*arrays)
    with jax.set_mesh(mesh):
        operands = [
            jax.device_put(a, NamedSharding(mesh, split if a.ndim > 1 else P())) for a in arrays
        ]
        assert_same_bits(jax.jit(case.gradients)(*operands), expected)


def test_without_a_bias_nothing_is_sent(rng: np.random.Generator) -> None:
    x = jax.device_put(normal(rng, 8, 5), NamedSharding(make_mesh(), P("data")))
    for function in (bj.bias_gelu, partial(bj.bias_dropout_add, p=0.5, seed=1)):
        gradient = jax.jit(jax.grad(lambda x, f=function: (f(x) ** 2).sum()))
        text = gradient.lower(x).compile().as_text()
        assert not collectives_of(text)


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("shape", [(8, 12), (4, 8, 6), (64,)])
def test_one_mask_for_any_number_of_shards(shards: int, shape: tuple[int, ...]) -> None:
    x = jnp.ones(shape)
    draw = jax.jit(partial(bj.bias_dropout_add, p=0.5, seed=99, offset=2**33))
    expected = np.asarray(draw(x))
    devices = jax.devices("cpu")[:shards]
    mesh = jax.make_mesh((shards,), ("x",), (AxisType.Auto,), devices=devices)
    for dim, size in enumerate(shape):
        if size % shards == 0:
            split = NamedSharding(mesh, P(*[None] * dim, "x"))
            compiled = draw.lower(jax.device_put(x, split)).compile()
            np.testing.assert_array_equal(compiled(jax.device_put(x, split)), expected)
            assert not collectives_of(compiled.as_text())


def test_elements_are_counted_in_64_bits() -> None:
    """The number of a shard's first element may not fit into 32 bits."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        index, factor, more = (int(n) for n in rng.integers(0, 2**32, 3, dtype=np.uint64))
        factor = factor << int(rng.integers(0, 32)) | more
        got = word_pairs.add(
            word_pairs.times(np.uint32(index), factor), word_pairs.constants(more * 2**20)
        )
        value = int(got[0]) | int(got[1]) << 32
        assert value == (index * factor + more * 2**20) % 2**64


def test_transformations_of_sharded_calls(rng: np.random.Generator) -> None:
    """vmap, second derivatives and scan need only all-reduces, with the same bits."""
    x, bias = normal(rng, 4, 32, 8), normal(rng, 3, 8)
    mesh = make_mesh()

    def layers(x: Any, biases: Any) -> Any:
        def layer(x: Any, bias: Any) -> Any:
            y = jax.vmap(bj.bias_gelu, (0, None))(x, bias)
            y = bj.bias_dropout_add(bj.scaled_softmax(y), bias, x, p=0.2, seed=5)
            return y, None

        return jax.lax.scan(layer, x, biases)[0]

    def second(x: Any, biases: Any) -> Any:
        first = jax.grad(lambda x, b: (layers(x, b) ** 2).sum(), (0, 1))
        return jax.jvp(first, (x, biases), (jnp.sin(x), jnp.cos(biases)))

    expected = jax.jit(second)(x, bias)
    split = NamedSharding(mesh, P("data", "model"))
    operands = jax.device_put(x, split), jax.device_put(bias, NamedSharding(mesh, P()))
    compiled = jax.jit(second).lower(*operands).compile()
    for a, b in zip(jax.tree.leaves(compiled(*operands)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
    assert set(collectives_of(compiled.as_text())) == {"all-reduce"}


def test_second_derivatives_of_a_causal_softmax(rng: np.random.Generator) -> None:
    x, t = normal(rng, 2, 8, 12), normal(rng, 2, 8, 12)

    def second(x: Any, t: Any) -> Any:
        first = jax.grad(lambda x: (bj.scaled_causal_softmax(x, 0.5) ** 3).sum())
        return jax.jvp(first, (x,), (t,))[1]

    expected = jax.jit(second)(x, t)
    for split, allowed in ((P("data"), set()), (P("data", "model"), {"all-gather"})):
        operands = [jax.device_put(a, NamedSharding(make_mesh(), split)) for a in (x, t)]
        compiled = jax.jit(second).lower(*operands).compile()
        np.testing.assert_allclose(compiled(*operands), expected, rtol=1e-5, atol=1e-6)
        assert set(collectives_of(compiled.as_text())) <= allowed


def test_splits_that_no_axis_says(rng: np.random.Generator) -> None:
    """Splits are over half an axis after a reshape, over reordered meshes, or uneven."""
    devices = jax.devices("cpu")[:DEVICES]
    x = normal(rng, 16, 8)

    def split_further(x: Any) -> Any:
        y = bj.bias_dropout_add(x.reshape(2, 8, 8)[:, :6], p=0.5, seed=3)
        return bj.scaled_softmax(y)

    expected = jax.jit(split_further)(x)
    one = jax.make_mesh((DEVICES,), ("x",), (AxisType.Auto,), devices=devices)
    turned = jax.sharding.Mesh(np.array(devices)[::-1].reshape(2, 2).T, ("p", "q"))
    for sharding in (
        NamedSharding(one, P("x")),
        NamedSharding(turned, P(("q", "p"))),
        NamedSharding(turned, P("q", "p")),
    ):
        whole = NamedSharding(sharding.mesh, P())
        ours = jax.jit(split_further, out_shardings=whole)(jax.device_put(x, sharding))
        assert_same_bits(ours, expected)


MESHES = pytest.mark.parametrize("shape", [(2, 2), (4, 1)], ids=str)


@MESHES
def test_inside_shard_map_over_some_axes(shape: tuple[int, int], rng: np.random.Generator) -> None:
    devices = jax.devices("cpu")[:DEVICES]
    mesh = jax.make_mesh(shape, ("data", "model"), (AxisType.Auto,) * 2, devices=devices)
    x, bias = normal(rng, 8, 32, 8), normal(rng, 8)

    def loss(x: Any, bias: Any) -> Any:
        y = bj.scaled_causal_softmax(bj.bias_gelu(x, bias))
        return (bj.bias_dropout_add(y, bias, p=0.3, seed=5) ** 2).sum()

    def each(x: Any, bias: Any) -> Any:
        total, gradients = jax.value_and_grad(loss, (0, 1))(x, bias)
        return total[None], (gradients[0], gradients[1][None])

    expected = [jax.jit(each)(part, bias) for part in jnp.split(x, shape[0])]
    expected = jax.tree.map(lambda *parts: jnp.concatenate(parts), *expected)
    split = jax.shard_map(
        each,
        mesh=mesh,
        in_specs=(P("data"), P()),
        out_specs=P("data"),
        axis_names={"data"},
        check_vma=False,
    )
    x = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
    ours = jax.jit(split)(x, bias)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def loss_of_all(x: Any, bias: Any) -> Any:
    y = bj.scaled_causal_softmax(bj.bias_gelu(x, bias), 0.5)
    return (bj.bias_dropout_add(y, bias, x, p=0.3, seed=5) ** 2).sum()


def test_an_unreduced_array_is_summed_first(rng: np.random.Generator) -> None:
    mesh = make_mesh(AxisType.Explicit)
    h, weight = normal(rng, 8, 16), normal(rng, 16, 32)

    def loss(product: Callable[..., Any], h: Any, weight: Any) -> Any:
        return (bj.layer_norm(product(h, weight)) ** 3).sum()

    def unreduced(h: Any, weight: Any) -> Any:
        return jnp.einsum("ij,jk->ik", h, weight, out_sharding=P("data", unreduced={"model"}))

    expected = jax.grad(partial(loss, jnp.matmul), (0, 1))(h, weight)
    with jax.set_mesh(mesh):
        h = jax.device_put(h, NamedSharding(mesh, P("data", "model")))
        weight = jax.device_put(weight, NamedSharding(mesh, P("model")))
        ours = jax.jit(jax.grad(partial(loss, unreduced), (0, 1)))(h, weight)
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@MESHES
def test_a_mesh_with_axes_of_both_kinds(shape: tuple[int, int], rng: np.random.Generator) -> None:
    devices = jax.devices("cpu")[:DEVICES]
    kinds = (AxisType.Explicit, AxisType.Auto)
    mesh = jax.make_mesh(shape, ("data", "model"), kinds, devices=devices)
    x, bias = normal(rng, 8, 32, 16), normal(rng, 16)
    gradient = jax.jit(jax.grad(loss_of_all, (0, 1)))
    expected = gradient(x, bias)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, P("data")))
        bias = jax.device_put(bias, NamedSharding(mesh, P()))
        compiled = gradient.lower(x, bias).compile()
        for a, b in zip(compiled(x, bias), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
        assert set(collectives_of(compiled.as_text())) == {"all-reduce"}


@pytest.mark.parametrize("split", [P("data"), P("data", "model")])
def test_without_shardy(split: P, rng: np.random.Generator) -> None:
    """XLA's older partitioner asks the same questions in another form."""
    case = OPS["bias_dropout_add"]
    arrays = case.draw(rng, (4, 32, 8), jnp.float32)
    expected = jax.jit(case.gradients)(*arrays)
    mesh = make_mesh()
    operands = [
        jax.device_put(a, NamedSharding(mesh, split if a.ndim > 1 else P())) for a in arrays
    ]
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        compiled = jax.jit(lambda *a: case.gradients(*a)).lower(*operands).compile()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert_same_bits(compiled(*operands), expected)
    assert set(collectives_of(compiled.as_text())) == {"all-reduce"}


def whole_arrays(text: str, elements: int) -> Counter[str]:
    """Counts a program's instructions whose result is an array with this number of elements."""
    found: Counter[str] = Counter()
    for results, name in re.findall(r"^ *(?:ROOT )?%?\S+ = (.*?) ([a-z][a-z-]*)\(", text, re.M):
        sizes = re.findall(r"\w\[([\d,]+)\]", results)
        found[name] += any(math.prod(map(int, size.split(","))) >= elements for size in sizes)
    return +found


@pytest.mark.parametrize("name", OPS)
def test_a_shard_runs_what_shard_map_would(name: str, rng: np.random.Generator) -> None:
    """Besides the calls on a shard's rows there is only work on row vectors.

    The column sums of all shards meet in one exchange, as in shard_map; for the same bits each
    device receives the sums of every other one. `python -m bridge bench` takes the times of both.
    """
    case = OPS[name]
    rows, width = 128, 512
    g, *arguments = case.draw(rng, (DEVICES, rows, width), jnp.float32)
    if name == "scaled_masked_softmax":
        mask = jnp.asarray(rng.random((1, 1, width)) < 0.4)
        case = Sharded(lambda x: bj.scaled_masked_softmax(x, mask, -1.3))
    devices = jax.devices("cpu")[:DEVICES]
    mesh = jax.make_mesh((DEVICES,), ("x",), (AxisType.Auto,), devices=devices)
    specs = [P("x") if a.ndim > 1 else P() for a in (g, *arguments)]
    operands = [
        jax.device_put(a, NamedSharding(mesh, spec))
        for a, spec in zip((g, *arguments), specs, strict=True)
    ]

    def on_shard(*parts: Any) -> Any:
        y, (*full, last) = case.gradients(*parts)
        return y, (*full, jax.lax.psum(last, "x") if last.ndim == 1 else last)

    mapped = jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs=(P("x"), tuple(specs[1:])),
        check_vma=False,
    )
    ours, bare = (jax.jit(f).lower(*operands).compile() for f in (case.gradients, mapped))
    on_arrays = whole_arrays(ours.as_text(), rows * width)
    assert on_arrays == whole_arrays(bare.as_text(), rows * width)
    assert on_arrays["custom-call"] == 2
    sent, least = (collectives_of(program.as_text()) for program in (ours, bare))
    assert {name: len(sizes) for name, sizes in sent.items()} == {
        name: len(sizes) for name, sizes in least.items()
    }
    assert sum(map(sum, sent.values())) <= DEVICES * sum(map(sum, least.values()))
    taken, peer = (program.memory_analysis().temp_size_in_bytes for program in (ours, bare))
    assert taken - peer <= 4 * DEVICES * width * 4


@pytest.mark.parametrize("op", ["bias_gelu", "softmax"])
def test_the_bench_times_the_same_work_in_shard_map(op: str) -> None:
    (case,) = [case for case in bench.OPS[op].cases("jax", False) if case.part == "sharded"]
    case = replace(case, shape=(DEVICES, 2, 16, 8))
    ours, by_hand = Contenders("cpu").of(case)
    (y, full), (expected, expected_full) = ours.run(), by_hand.run()
    assert len(y.sharding.device_set) == len(expected.sharding.device_set) == DEVICES
    assert_same_bits((y, full[0]), (expected, expected_full[0]))
    for sums, expected_sums in zip(full[1:], expected_full[1:], strict=True):
        np.testing.assert_allclose(sums, expected_sums, rtol=1e-5, atol=1e-5)


def test_results_split_like_what_asks_for_them(rng: np.random.Generator) -> None:
    """x is whole and its users are split: each device computes only its own part."""
    mesh = make_mesh()
    x = jax.device_put(normal(rng, 8, 6), NamedSharding(mesh, P()))
    split = NamedSharding(mesh, P("data"))
    run = jax.jit(partial(bj.bias_dropout_add, p=0.5, seed=8), out_shardings=split)
    compiled = run.lower(x).compile()
    assert_same_bits(
        compiled(x), jax.jit(partial(bj.bias_dropout_add, p=0.5, seed=8))(np.asarray(x))
    )
    text = compiled.as_text()
    assert not collectives_of(text)
    assert re.search(r"f32\[4,6\]\S* custom-call", text), "the shard's own rows"


def test_calls_with_other_parameters_differ_in_the_cache(rng: np.random.Generator) -> None:
    x = jax.device_put(normal(rng, 8, 6), NamedSharding(make_mesh(), P("data")))
    texts = []
    for function in (
        partial(bj.scaled_softmax, scale=0.5),
        partial(bj.scaled_softmax, scale=0.75),
        bj.bias_gelu,
        partial(bj.bias_gelu, approximate="none"),
    ):
        text = jax.jit(function).lower(x).as_text()
        texts.append(re.sub(r'backend_config = "\d+"|@\w+', "", text))
    assert len(set(texts)) == 4


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_lowered_for_devices_that_are_not_here(platform: str, axis_type: AxisType) -> None:
    mesh = jax.sharding.AbstractMesh((8,), ("x",), (axis_type,))
    x = jax.ShapeDtypeStruct((16, 32), np.float32, sharding=NamedSharding(mesh, P("x")))
    drop = jax.jit(partial(bj.bias_dropout_add, p=0.5, seed=1))
    text = drop.trace(x).lower(lowering_platforms=(platform,)).as_text()
    name = "CustomSPMDPartitioning" if axis_type is AxisType.Auto else "bridge_program"
    assert f"@{name}(" in text
