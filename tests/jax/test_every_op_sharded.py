"""Every op over several devices: rows split by shard_map, sharded arguments, explicit axes."""

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

from bridge.jax import bias_dropout_add, scaled_masked_softmax
from tests.jax.cases import ANY_SHAPE, CASES, Case, keep, plain_dropout_add, plain_softmax
from tests.jax.compositions import assert_close, normal
from tests.jax.test_sharding import make_mesh

pytestmark = pytest.mark.usefixtures("x64")

every_op = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def widened(case: Case, rng: np.random.Generator) -> list[Any]:
    """Returns a cotangent and arguments; full-size arrays get a leading dimension of 4."""
    shapes = [(4, *s) if len(s) > 1 else s for s in (case.shapes[0], *case.shapes)]
    return [normal(rng, *shape) for shape in shapes]


def splits(arrays: list[Any]) -> tuple[P, ...]:
    return tuple(P("data") if array.ndim > 1 else P() for array in arrays)


def gradients(function: Callable[..., Any], g: Any, *arguments: Any) -> Any:
    y, pull = jax.vjp(function, *arguments)
    return y, pull(g)


@every_op
@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives_of_shard_map(case: Case, check_vma: bool, rng: np.random.Generator) -> None:
    g, *arguments = widened(case, rng)
    ours, theirs = (
        jax.jit(
            lambda *a, f=function: jax.jvp(
                partial(
                    gradients,
                    jax.shard_map(
                        f,
                        mesh=make_mesh(),
                        in_specs=splits(arguments),
                        out_specs=P("data"),
                        check_vma=check_vma,
                    ),
                ),
                a,
                a,
            )
        )(g, *arguments)
        for function in (case.ours, case.theirs)
    )
    assert_close(ours, theirs)


@every_op
def test_derivatives_inside_shard_map(case: Case, rng: np.random.Generator) -> None:
    arrays = widened(case, rng)
    ours, theirs = (
        jax.jit(
            jax.shard_map(
                partial(gradients, function),
                mesh=make_mesh(),
                in_specs=splits(arrays),
                out_specs=(P("data"), splits(arrays)[1:]),
            )
        )(*arrays)
        for function in (case.ours, case.theirs)
    )
    assert_close(ours, theirs)


def test_operands_that_vary_unlike_x(rng: np.random.Generator) -> None:
    """Mask, seed and residual differ between devices, while x does not."""
    x, residual = normal(rng, 3, 5), normal(rng, 6, 5)
    mask, seeds = jnp.asarray(rng.random((2, 5)) < 0.4), jnp.asarray([7, -8])

    def each(x: Any, mask: Any, seed: Any, residual: Any) -> Any:
        def loss(x: Any, residual: Any) -> Any:
            y = scaled_masked_softmax(x, mask, 0.5)
            return bias_dropout_add(y, None, residual, p=0.4, seed=seed[0])

        y, tangent = jax.jvp(loss, (x, residual), (jnp.sin(x), jnp.cos(residual)))
        dx, dresidual = jax.vjp(loss, x, residual)[1](y)
        return y, tangent, dx, dresidual

    split = jax.shard_map(
        each,
        mesh=make_mesh(),
        in_specs=(P(), P("data"), P("data"), P("data")),
        out_specs=(P("data"), P("data"), P(), P("data")),
    )
    y, tangent, dx, dresidual = jax.jit(split)(x, mask, seeds, residual)

    def loss(x: Any, residual: Any) -> Any:
        parts = []
        for i, seed in enumerate((7, -8)):
            kept = keep((3, 5), 0.4, seed)
            parts.append(jnp.where(kept, plain_softmax(x, mask[i], 0.5) / 0.6, 0.0))
        return residual + jnp.concatenate(parts)

    expected = jax.jvp(loss, (x, residual), (jnp.sin(x), jnp.cos(residual)))
    assert_close((y, tangent), expected)
    assert_close((dx, dresidual), jax.vjp(loss, x, residual)[1](y))


@pytest.mark.parametrize("case", ANY_SHAPE, ids=lambda case: case.name)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", [P("data"), P(None, "model"), P("data", "model")])
def test_sharded_arguments(
    case: Case, axis_type: AxisType, split: P, rng: np.random.Generator
) -> None:
    """Outside of shard_map an array is whole: dropout counts all its elements."""
    shapes = [(4, 6) if len(shape) > 1 else (6,) for shape in (case.shapes[0], *case.shapes)]
    arrays = [normal(rng, *shape) for shape in shapes]
    expected = gradients(case.theirs, *arrays)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(a, NamedSharding(mesh, split if a.ndim > 1 else P(*split[1:2])))
            for a in arrays
        ]
        ours = jax.jit(partial(gradients, case.ours))(*placed)
        assert_close(ours, expected)
        if axis_type is AxisType.Explicit:
            typed = jax.eval_shape(case.ours, *placed[1:]).sharding.spec
            assert tuple(typed)[: len(split)] == tuple(split)


@pytest.mark.parametrize("is_placed", [True, False])
def test_a_residual_that_is_split_unlike_x(is_placed: bool, rng: np.random.Generator) -> None:
    """Each gradient is split like its operand, even if x is on no mesh."""
    mesh = make_mesh(AxisType.Explicit)
    x, residual = normal(rng, 4, 6), normal(rng, 4, 6)

    def loss(function: Callable[..., Any], x: Any, residual: Any) -> Any:
        return (function(x, None, residual, p=0.3, seed=2) ** 3).sum()

    expected = jax.grad(partial(loss, plain_dropout_add), (0, 1))(x, residual)
    with jax.set_mesh(mesh):
        if is_placed:
            x = jax.device_put(x, NamedSharding(mesh, P("data")))
        residual = jax.device_put(residual, NamedSharding(mesh, P(None, "model")))
        ours = jax.jit(jax.grad(partial(loss, bias_dropout_add), (0, 1)))(x, residual)
        assert_close(ours, expected)
        for gradient, argument in zip(ours, (x, residual), strict=True):
            assert jax.typeof(gradient).sharding.spec == jax.typeof(argument).sharding.spec
