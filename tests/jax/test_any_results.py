"""An op whose results, and what is saved for its derivatives, depend on its parameters."""

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

from bridge._private.jax import lower_fun
from bridge.jax._adapter import primitive
from bridge.jax._adapter.primitive import call
from tests.any_results import ANY_RESULTS, AnyParams, computed
from tests.jax.test_sharding import make_mesh

pytestmark = pytest.mark.usefixtures("x64", "defined")

SQUARES = AnyParams("squares", "float64")


def lowered(lower: Any, op: Any, platform: str, context: Any, *operands: Any, **fields: Any) -> Any:
    if op is not ANY_RESULTS:
        return lower(op, platform, context, *operands, **fields)

    def run(*operands: Any) -> list[Any]:
        with jax.enable_x64(True):  # XLA asks for programs of shards in a thread of its own
            return [r for r in computed(operands, fields["params"]) if r is not None]

    return lower_fun(run, multiple_results=True)(context, *operands)


@pytest.fixture
def defined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitive, "lower", partial(lowered, primitive.lower))
    defined = primitive._define(ANY_RESULTS)
    monkeypatch.setitem(primitive.primitives, ANY_RESULTS.name, defined)


def squares(x: Any, w: Any) -> Any:
    return call(ANY_RESULTS, (x, w), SQUARES)[0]


def plain(x: Any, w: Any) -> Any:
    return w * (x * x).sum(-1)


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: jnp.sin(function(x, w)).sum()


def close(found: Any, expected: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), found, expected)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "none": lambda f: f,
    "grad": lambda f: jax.grad(loss(f), (0, 1)),
    "hessian": lambda f: jax.hessian(loss(f), (0, 1)),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(loss(f), (0, 1)), (0, 1)),
    "third": lambda f: jax.jacfwd(jax.jacfwd(jax.grad(loss(f)))),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f), (0, 1))),
    "remat": lambda f: jax.grad(loss(jax.checkpoint(f)), (0, 1)),
    **{
        f"vmap {x} {w}": lambda f, dims=(x, w): jax.vmap(f, dims)
        for x, w in ((0, 0), (1, 0), (1, 1), (None, 1), (1, None))
    },
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, jit: bool, rng: np.random.Generator) -> None:
    transform = TRANSFORMS[name]
    x, w = rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 2))
    if name == "vmap None 1":
        w = rng.standard_normal((2, 5, 2))
    elif name == "vmap 1 None":
        x, w = rng.standard_normal((2, 5, 2, 3)), w
    function = jax.jit(transform(squares)) if jit else transform(squares)
    close(function(x, w), transform(plain)(x, w))


def params_in(function: Callable[..., Any], *arguments: Any) -> list[AnyParams]:
    jaxpr = jax.make_jaxpr(jax.jit(function))(*arguments).jaxpr.eqns[0].params["jaxpr"].jaxpr
    return [e.params["params"] for e in jaxpr.eqns if e.primitive.name == "bridge_any_results"]


def test_what_is_saved_is_no_result(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 3)), rng.standard_normal(2)
    assert params_in(squares, x, w) == [SQUARES]
    saving, *derivatives = params_in(lambda x, w: jax.vjp(squares, x, w)[1](w), x, w)
    assert saving == ANY_RESULTS.saving(SQUARES)
    assert sorted(params.code for params in derivatives) == ["scale", "weigh"]


def parts(dtypes: str, x: Any, label: Any, table: Any) -> list[Any]:
    results = call(ANY_RESULTS, (x, label, table), AnyParams("parts", dtypes))
    return [result for result in results if result is not None]


EVERY = "float64,float64,float64,float64"


@pytest.fixture
def operands(rng: np.random.Generator) -> tuple[Any, ...]:
    label = rng.integers(0, 3, (12, 16)).astype(np.int32)
    return rng.standard_normal((12, 16, 8)), label, rng.standard_normal((16, 4))


@pytest.mark.parametrize("dtypes", [EVERY, ",,float64,", ",float64,,"])
def test_all_roles_in_batches(dtypes: str, operands: Any) -> None:
    x, label, table = operands
    run = partial(parts, dtypes)
    expected = [r for r in computed(operands, AnyParams("parts", dtypes)) if r is not None]
    close(run(*operands), expected)
    each = [run(x[i], label[i], table) for i in range(12)]
    close(jax.vmap(run, (0, 0, None))(*operands), [jnp.stack(r) for r in zip(*each, strict=True)])
    moved = (jnp.moveaxis(x, 0, 1), label)
    close(jax.vmap(run, (1, 0, None))(*moved, table), jax.vmap(run, (0, 0, None))(*operands))
    tables = jnp.stack([table, table + 1])
    each = [run(x, label, t) for t in tables]
    found = jax.vmap(run, (None, None, 0))(x, label, tables)
    close(found, [jnp.stack(r) for r in zip(*each, strict=True)])


SPLITS = [
    P("data"),
    P(None, "data"),
    P("data", "model"),
    P("model", None, "data"),
    P(("data", "model")),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("dtypes", [EVERY, ",float64,,"])
def test_all_roles_sharded(dtypes: str, split: P, kind: AxisType, operands: Any) -> None:
    expected = parts(dtypes, *operands)
    mesh = make_mesh(kind)
    shardings = [NamedSharding(mesh, spec) for spec in (split, P(*split[:2]), P())]
    with jax.set_mesh(mesh):
        found = jax.jit(partial(parts, dtypes))(*map(jax.device_put, operands, shardings))
    close(found, expected)
