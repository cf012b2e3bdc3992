"""all_gather over the devices of one process, compared with the whole arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.jet import jet
from jax.sharding import PartitionSpec as P

import bridge.jax
from bridge.jax import all_gather
from tests.jax.collectives import collectives_of
from tests.jax.compositions import normal
from tests.jax.conftest import DEVICES
from tests.jax.test_sharding import make_mesh

pytestmark = pytest.mark.usefixtures("x64")

RULES = ("sum", "local", "mean")
every_rule = pytest.mark.parametrize("grad", RULES)
every_type_check = pytest.mark.parametrize("check_vma", [True, False])
NAMES = ("data", "model")
LOCAL = (2, 3, 2)


def each(function: Callable[..., Any], *stacked: Any, check_vma: bool = True) -> Any:
    """Returns the stacked results of `function`, called on each shard's slice of stacked arrays."""

    def shard(*parts: Any) -> Any:
        return jax.tree.map(lambda y: y[None], function(*(part[0] for part in parts)))

    split = jax.shard_map(
        shard, mesh=make_mesh(), in_specs=P(NAMES), out_specs=P(NAMES), check_vma=check_vma
    )
    return jax.tree.map(np.asarray, jax.jit(split)(*stacked))


def gathered(shards: Any, axis: int, tiled: bool) -> np.ndarray:
    shards = list(np.asarray(shards))
    return np.concatenate(shards, axis) if tiled else np.stack(shards, axis)


def parts(array: Any, axis: int, tiled: bool) -> list[np.ndarray]:
    """The part of a gathered array that belongs to each shard."""
    if tiled:
        return np.split(np.asarray(array), DEVICES, axis)
    return [np.take(np.asarray(array), i, axis) for i in range(DEVICES)]


def gradients(cotangents: Any, axis: int, tiled: bool, grad: str) -> np.ndarray:
    """Returns the gradients by the rule, from one cotangent per shard."""
    if grad == "local":
        return np.stack([parts(g, axis, tiled)[i] for i, g in enumerate(cotangents)])
    total = np.sum(np.asarray(cotangents, np.float64), 0)
    return np.stack(parts(total / (DEVICES if grad == "mean" else 1), axis, tiled))


@pytest.mark.sampled(18)
@every_rule
@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize(
    ("axis", "dtype", "check_vma"),
    [
        *((axis, dtype, True) for axis in (0, 1, 2) for dtype in ("float32", "bfloat16")),
        *((axis, "float64", False) for axis in (0, 2, -1)),
    ],
)
def test_values_and_gradients(
    dtype: str, axis: int, tiled: bool, check_vma: bool, grad: str, rng: np.random.Generator
) -> None:
    x = normal(rng, DEVICES, *LOCAL).astype(dtype)
    whole = gathered(x, axis, tiled)
    g = normal(rng, DEVICES, *whole.shape).astype(dtype)

    def both(x: Any, g: Any) -> Any:
        y, pull = jax.vjp(
            partial(all_gather, axis_name=NAMES, axis=axis, tiled=tiled, grad=grad), x
        )
        return y, pull(g)[0]

    values, ours = each(both, x, g, check_vma=check_vma)
    for value in values:
        np.testing.assert_array_equal(value, whole)
    assert ours.dtype == dtype
    expected = gradients(g, axis, tiled, grad)
    tolerance = {"float32": 1e-6, "bfloat16": 3e-2, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(ours.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@every_rule
@every_type_check
@pytest.mark.parametrize("tiled", [True, False])
def test_higher_derivatives(
    tiled: bool, check_vma: bool, grad: str, rng: np.random.Generator
) -> None:
    """Checks first and second derivatives of Σ w·y³ on every shard."""
    x = normal(rng, DEVICES, *LOCAL)
    whole = gathered(x, 1, tiled)
    w = normal(rng, DEVICES, *whole.shape)

    def derivatives(x: Any, t: Any, w: Any) -> Any:
        def loss(x: Any) -> Any:
            return (all_gather(x, NAMES, axis=1, tiled=tiled, grad=grad) ** 3 * w).sum()

        first = jax.grad(loss)
        forward = jax.jvp(loss, (x,), (t,))[1]
        second = jax.jvp(first, (x,), (t,))[1]
        return forward, second, jax.grad(lambda x: jnp.vdot(first(x), t))(x)

    t = normal(rng, DEVICES, *LOCAL)
    forward, second, reverse_again = each(derivatives, x, t, w, check_vma=check_vma)
    whole_t = gathered(t, 1, tiled)
    for i in range(DEVICES):
        expected = (3 * whole**2 * whole_t * np.asarray(w[i])).sum()
        np.testing.assert_allclose(forward[i], expected, rtol=1e-12)
    np.testing.assert_allclose(
        second, gradients(6 * whole * whole_t * np.asarray(w), 1, tiled, grad), rtol=1e-12
    )
    # A shard's dx passes t through the transpose of the rule's gradient, and then the rule again.
    share = {"sum": 1.0, "mean": 1.0 / DEVICES}.get(grad)
    if share is None:
        own = np.zeros((DEVICES, *whole.shape))
        for i in range(DEVICES):
            parts(own[i], 1, tiled)[i][...] = np.asarray(t[i]) if tiled else 0.0
            if not tiled:
                own[i][:, i] = np.asarray(t[i])
    else:
        own = np.stack([whole_t * share] * DEVICES)
    expected = gradients(6 * whole * own * np.asarray(w), 1, tiled, grad)
    np.testing.assert_allclose(reverse_again, expected, rtol=1e-11)


@every_rule
@pytest.mark.parametrize("tiled", [True, False])
def test_vmap_and_scan(tiled: bool, grad: str, rng: np.random.Generator) -> None:
    x = normal(rng, DEVICES, 2, 3, 4, 2)
    for dim in (0, 2, 3):

        def run(x: Any, dim: int = dim) -> Any:
            gather = partial(all_gather, axis_name=NAMES, axis=1, tiled=tiled, grad=grad)

            def mapped(x: Any) -> Any:
                return jax.vmap(gather, dim, 0)(x)

            def one_by_one(x: Any) -> Any:
                return lax.scan(lambda _, x: (None, gather(x)), None, jnp.moveaxis(x, dim, 0))[1]

            return [
                (f(x), jax.grad(lambda x, f=f: (f(x) ** 3).sum())(x)) for f in (mapped, one_by_one)
            ]

        ours, loop = each(run, x)
        for a, b in zip(ours, loop, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.skipif(not hasattr(jax, "pmap"), reason="this JAX has no pmap any more")
@every_rule
def test_pmap(grad: str, rng: np.random.Generator) -> None:
    x = normal(rng, DEVICES, *LOCAL)

    def both(x: Any) -> Any:
        y, pull = jax.vjp(partial(all_gather, axis_name="i", axis=1, grad=grad), x)
        return y, pull(jnp.sin(y * (1 + lax.axis_index("i"))))[0]

    y, dx = jax.pmap(both, axis_name="i", devices=jax.devices("cpu")[:DEVICES])(x)
    whole = gathered(x, 1, True)
    np.testing.assert_array_equal(y[1], whole)
    g = [np.sin(whole * (1 + i)) for i in range(DEVICES)]
    np.testing.assert_allclose(dx, gradients(g, 1, True, grad), rtol=1e-12)


@every_rule
def test_one_of_two_axes(grad: str, rng: np.random.Generator) -> None:
    x = normal(rng, DEVICES, 2)
    y, dx = each(
        lambda x: (
            all_gather(x, "model", grad=grad),
            jax.grad(lambda x: (all_gather(x, "model", grad=grad) ** 2).sum())(x),
        ),
        x,
    )
    np.testing.assert_array_equal(y[2], np.concatenate([x[2], x[3]]))
    np.testing.assert_allclose(dx, 2 * x * (2 if grad == "sum" else 1), rtol=1e-12)


@every_rule
@every_type_check
@pytest.mark.parametrize("check", [None, True])
def test_the_other_axis_left_to_xla(
    check: bool | None, check_vma: bool, grad: str, rng: np.random.Generator
) -> None:
    x = normal(rng, 4, 3)
    gather = jax.shard_map(
        partial(all_gather, axis_name="data", grad=grad, check=check),
        mesh=make_mesh(),
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
        check_vma=check_vma,
    )
    np.testing.assert_array_equal(jax.jit(gather)(x), np.concatenate([x, x]))
    dx = jax.jit(jax.grad(lambda x: gather(x).sum()))(x)
    np.testing.assert_array_equal(dx, np.full_like(x, 2.0 if grad == "sum" else 1.0))


WHOLE = [np.bool_, np.int8, np.uint16, np.int32, np.int64, np.uint64]
NARROW = [np.float16, *(jnp.dtype(f"float8_{f}") for f in ("e4m3fn", "e5m2", "e8m0fnu"))]


@pytest.mark.sampled(12)
@every_rule
@pytest.mark.parametrize("dtype", [*WHOLE, *NARROW, np.complex64, np.complex128], ids=str)
def test_dtypes(dtype: Any, grad: str, rng: np.random.Generator) -> None:
    x = (2.0 ** rng.integers(-3, 4, (DEVICES, 2, 3))).astype(dtype)
    values = each(partial(all_gather, axis_name=NAMES, grad=grad), x)
    assert values.dtype == dtype
    np.testing.assert_array_equal(values[3].view(np.uint8), gathered(x, 0, True).view(np.uint8))
    if jnp.issubdtype(dtype, jnp.inexact):
        g = (2.0 ** rng.integers(-3, 4, (DEVICES, 2 * DEVICES, 3))).astype(dtype)
        if np.dtype(dtype).kind == "c":
            g = g * dtype(1j)

        def pull(x: Any, g: Any) -> Any:
            return jax.vjp(partial(all_gather, axis_name=NAMES, grad=grad), x)[1](g)[0]

        dx = each(pull, x, g)
        assert dx.dtype == dtype
        if np.dtype(dtype).kind == "c":
            expected = 1j * gradients(g.imag, 0, True, grad)
            np.testing.assert_allclose(dx, expected, rtol=1e-6)
        else:
            # The sum of these powers of two is exact in float32, and rounded once.
            expected = jnp.asarray(gradients(g.astype(np.float64), 0, True, grad), np.float32)
            np.testing.assert_array_equal(dx, expected.astype(dtype))


def collectives(function: Callable[..., Any], *stacked: Any) -> set[str]:
    split = jax.shard_map(function, mesh=make_mesh(), in_specs=P(NAMES), out_specs=P(NAMES))
    text = jax.jit(split).lower(*stacked).compile().as_text()
    return set(re.findall(r"= \S+ (all-[a-z]+|reduce-scatter|collective-[a-z]+)", text))


@every_rule
def test_what_is_sent(grad: str, rng: np.random.Generator) -> None:
    """There is one exchange in each direction; backward "local" sends nothing."""
    x, g = normal(rng, 8, 3), normal(rng, 32, 3)
    gather = partial(all_gather, axis_name=NAMES, grad=grad)
    assert collectives(gather, x) == {"all-gather"}

    def pull(x: Any, g: Any) -> Any:  # linear, so that the value is not computed
        return jax.linear_transpose(gather, x)(g)[0]

    # CPUs have no reduce-scatter: XLA replaces it by other collectives.
    backward = collectives(pull, x, g)
    assert not backward if grad == "local" else backward


@every_rule
def test_no_third_copy(grad: str) -> None:
    """The memory holds the input and the gathered output."""
    split = jax.shard_map(
        partial(all_gather, axis_name=NAMES, grad=grad),
        mesh=make_mesh(),
        in_specs=P(NAMES),
        out_specs=P(NAMES),
    )
    x = jax.ShapeDtypeStruct((DEVICES * 256, 1024), np.float32)
    memory = jax.jit(split).lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1024


@every_rule
@every_type_check
def test_checked(check_vma: bool, grad: str, rng: np.random.Generator) -> None:
    """The comparison of arguments changes no bits, and is one small exchange."""
    x, g = normal(rng, DEVICES, *LOCAL), normal(rng, DEVICES, 4 * LOCAL[0], *LOCAL[1:])

    def everything(check: bool, x: Any, g: Any) -> Any:
        gather = partial(all_gather, axis_name=NAMES, grad=grad, check=check)
        y, pull = jax.vjp(gather, x)
        _, scanned = lax.scan(lambda carry, _: (carry + 1, gather(carry * x).sum()), 1.0, None, 3)
        tangent = jax.jvp(gather, (x,), (2 * x,))[1]
        return y, pull(g)[0], tangent, scanned, jax.vmap(gather, 1)(x)

    with_check, without = (
        each(partial(everything, check), x, g, check_vma=check_vma) for check in (True, False)
    )
    jax.tree.map(np.testing.assert_array_equal, with_check, without)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float8_e4m3fn", "bfloat16", "complex64"])
def test_checked_dtypes(dtype: Any, rng: np.random.Generator) -> None:
    x = np.asarray(2.0 ** rng.integers(-2, 3, (DEVICES, 3, 2))).astype(dtype)
    for y in each(partial(all_gather, axis_name=NAMES, check=True), x):
        assert y.tobytes() == x.tobytes()


def test_what_a_check_sends() -> None:
    x = np.ones((8, 3), np.float32)
    split = jax.shard_map(
        partial(all_gather, axis_name=NAMES, check=True),
        mesh=make_mesh(),
        in_specs=P(NAMES),
        out_specs=P(NAMES),
    )
    sent = collectives_of(jax.jit(split).lower(x).compile().as_text())
    assert {name: sorted(sizes) for name, sizes in sent.items()} == {
        "all-gather": [8 * 3 * 4, DEVICES * 128]
    }


def test_a_value_that_all_shards_share(rng: np.random.Generator) -> None:
    x = normal(rng, 2, 3)

    def shard(x: Any, *, grad: str) -> Any:
        return jax.grad(lambda x: (all_gather(x, "data", grad=grad) ** 2).sum())(x)

    def run(grad: str) -> Any:
        run = partial(shard, grad=grad)
        return jax.jit(jax.shard_map(run, mesh=make_mesh(), in_specs=P(), out_specs=P()))(x)

    np.testing.assert_allclose(run("sum"), 2 * 2 * 2 * x, rtol=1e-12)
    for grad in ("local", "mean"):
        with pytest.raises(ValueError, match="x is the same on all shards of the axis 'data'"):
            run(grad)


def test_taylor_mode(rng: np.random.Generator) -> None:
    x, first, second = (normal(rng, DEVICES, *LOCAL) for _ in range(3))

    def shard(x: Any, first: Any, second: Any) -> Any:
        return jet(lambda x: all_gather(x, NAMES, grad="mean") ** 2, (x,), ([first, second],))

    y, terms = each(shard, x, first, second, check_vma=False)  # jet has no rule for pvary
    whole, a, b = (np.concatenate(list(array)) for array in (x, first, second))
    for i in range(DEVICES):
        np.testing.assert_allclose(y[i], whole**2, rtol=1e-12)
        np.testing.assert_allclose(terms[0][i], 2 * whole * a, rtol=1e-12)
        np.testing.assert_allclose(terms[1][i], 2 * (a * a + whole * b), rtol=1e-12)


def inside(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=make_mesh(), in_specs=P("data"), out_specs=P("data"))


OUTSIDE = [
    (lambda x: all_gather(x, "data"), ValueError, "'data' is not bound here.*none.*shard_map"),
    (jax.jit(lambda x: all_gather(x, "data")), ValueError, "'data' is not bound here"),
    (inside(lambda x: all_gather(x, "dat")), ValueError, "'dat' is not bound.*'data', 'model'"),
    (inside(lambda x: all_gather(x, ())), ValueError, r"axis_name is \(\)"),
    (inside(lambda x: all_gather(x, ("data",) * 2)), ValueError, "at least one name and each once"),
    (inside(lambda x: all_gather(x.sum(), "data")), ValueError, "0-dimensional"),
    (inside(lambda x: all_gather(x, "data", axis=2)), ValueError, "axis is 2, expected from -2 to"),
    (inside(lambda x: all_gather(x, "data", axis=3, tiled=False)), ValueError, "from -3 to 2"),
    (inside(lambda x: all_gather(x, "data", axis=0.0)), TypeError, "axis is not an integer.*0.0"),
    (inside(lambda x: all_gather(x, "data", grad="max")), ValueError, "'sum', 'local', 'mean'"),
    (inside(lambda x: all_gather(x.astype("int4"), "data")), TypeError, "unsupported dtype.*int4"),
    (lambda x: all_gather(jax.random.split(jax.random.key(0)), "data"), TypeError, "key_data"),
    (
        inside(jax.vmap(lambda x: all_gather(x, "v", grad="local"), axis_name="v")),
        ValueError,
        "'v' is an axis of jax.vmap.*'local'",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), OUTSIDE)
def test_errors(call: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call(jnp.ones((4, 3)))


def test_over_an_axis_of_vmap(rng: np.random.Generator) -> None:
    x = normal(rng, 3, 2)
    y = jax.vmap(lambda x: bridge.jax.all_gather(x, "v"), axis_name="v")(x)
    np.testing.assert_array_equal(y, np.broadcast_to(np.ravel(x), (3, 6)))
