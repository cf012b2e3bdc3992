"""vmap over any axes of any operands, alone, nested, and mixed with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.jax import bias_gelu
from tests.jax.compositions import assert_close, normal, plain

pytestmark = pytest.mark.usefixtures("x64")

# Axes of x and bias, and the shapes that they belong to; a mapped axis has 4 elements.
CASES = [
    (0, None, (4, 3, 5), (5,)),
    (1, None, (3, 4, 5), (5,)),
    (2, None, (3, 5, 4), (5,)),
    (-2, None, (3, 4, 5), (5,)),
    (0, 0, (4, 3, 5), (4, 5)),
    (1, 1, (3, 4, 5), (5, 4)),
    (-1, -2, (3, 5, 4), (4, 5)),
    (None, 0, (3, 5), (4, 5)),
    (None, 1, (3, 5), (5, 4)),
    (0, 0, (4, 5), (4, 5)),
    (1, None, (5, 4), (5,)),
]


@pytest.mark.parametrize(("x_axis", "bias_axis", "x_shape", "bias_shape"), CASES)
def test_any_axes_with_all_derivatives(
    x_axis: Any, bias_axis: Any, x_shape: Any, bias_shape: Any, rng: np.random.Generator
) -> None:
    x, bias = normal(rng, *x_shape), normal(rng, *bias_shape)

    def everything(function: Callable[..., Any]) -> Any:
        """Returns value, per-example gradients of both, and their tangent, from three calls."""

        def one(x: Any, bias: Any) -> Any:
            value, pull = jax.vjp(function, x, bias)
            return value, pull(jnp.cos(value))

        def both(x: Any, bias: Any) -> Any:
            return jax.jvp(one, (x, bias), (jnp.sin(x), jnp.cos(bias)))

        return jax.jit(jax.vmap(both, (x_axis, bias_axis)))(x, bias)

    assert_close(everything(bias_gelu), everything(plain))


@pytest.mark.parametrize("out_axis", [0, 1, -1])
def test_out_axes(out_axis: int, rng: np.random.Generator) -> None:
    x, bias = normal(rng, 3, 4, 5), normal(rng, 5)
    ours, theirs = (
        jax.vmap(function, (1, None), out_axis)(x, bias) for function in (bias_gelu, plain)
    )
    assert_close(ours, theirs)


def test_without_bias_over_each_axis(rng: np.random.Generator) -> None:
    x = normal(rng, 3, 4, 5)
    expected = plain(x)
    for axis in range(3):
        assert_close(jax.vmap(bias_gelu, axis, axis)(x), expected)
    every_axis = jax.vmap(jax.vmap(jax.vmap(bias_gelu)))
    assert_close(every_axis(x), expected)  # 0-dimensional inside


def test_nested(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 2, 3, 4, 5), normal(rng, 3, 5)

    def gradients(function: Callable[..., Any]) -> Any:
        grad = jax.grad(lambda x, b: jnp.sum(function(x, b) ** 2), (0, 1))
        inner = jax.vmap(grad, (0, 0))  # each of the 3 has its own bias
        return jax.jit(jax.vmap(inner, (0, None)))(x, bias)

    assert_close(gradients(bias_gelu), gradients(plain))


def test_grad_of_vmap_is_the_sum_of_vmap_of_grad(rng: np.random.Generator) -> None:
    x, bias, weights = normal(rng, 4, 3, 5), normal(rng, 5), normal(rng, 4, 3, 5)

    def loss(x: Any, bias: Any, weights: Any) -> Any:
        return jnp.vdot(bias_gelu(x, bias), weights)

    batched = jax.vmap(loss, (0, None, 0))
    dx, db = jax.grad(lambda x, b: batched(x, b, weights).sum(), (0, 1))(x, bias)
    each_dx, each_db = jax.vmap(jax.grad(loss, (0, 1)), (0, None, 0))(x, bias, weights)
    assert each_db.shape == (4, 5)
    assert_close(dx, each_dx)
    assert_close(db, each_db.sum(0))


def test_per_example_bias_gradients_come_from_one_call(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 3, 5), normal(rng, 5)
    per_example = jax.jit(jax.vmap(jax.grad(lambda b, x: bias_gelu(x, b).sum()), (None, 0)))
    assert per_example.lower(bias, x).as_text().count("@bridge_program") == 1
    expected = jax.vmap(jax.grad(lambda b, x: plain(x, b).sum()), (None, 0))(bias, x)
    assert_close(per_example(bias, x), expected)


def test_more_rows_need_no_transpose(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 3, 4, 5), normal(rng, 5)
    batched = jax.vmap(bias_gelu, (1, None), 1)
    assert "transpose" not in str(jax.make_jaxpr(batched)(x, bias))


def test_an_empty_batch(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 0, 3, 5), normal(rng, 0, 5)
    dx, db = jax.vmap(jax.grad(lambda x, b: bias_gelu(x, b).sum(), (0, 1)))(x, bias)
    assert (dx.shape, db.shape) == ((0, 3, 5), (0, 5))
