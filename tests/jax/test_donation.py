"""Donated memory is reused in place; without donation there are no extra copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.jax import bias_gelu
from tests.jax.compositions import assert_close, normal, plain

ROWS, COLS = 64, 48


def arguments(rng: np.random.Generator) -> tuple[jax.Array, jax.Array]:
    return normal(rng, ROWS, COLS, dtype=jnp.float32), normal(rng, COLS, dtype=jnp.float32)


def copies(function: Callable[..., Any], *values: Any) -> int:
    """Counts copies of whole arrays in the compiled program."""
    text = jax.jit(function).lower(*values).compile().as_text()
    return text.count(f"f32[{ROWS},{COLS}]{{1,0}} copy(")


def donating(function: Callable[..., Any], *positions: int) -> Callable[..., Any]:
    return jax.jit(function, donate_argnums=positions)


def test_the_result_takes_the_memory_of_x(rng: np.random.Generator) -> None:
    x, bias = arguments(rng)
    expected = np.asarray(bias_gelu(x, bias))
    address = x.unsafe_buffer_pointer()
    y = donating(bias_gelu, 0)(x, bias)
    assert y.unsafe_buffer_pointer() == address
    assert x.is_deleted()
    np.testing.assert_array_equal(y, expected)


def test_no_copy_and_no_temporary_when_donated(rng: np.random.Generator) -> None:
    x, bias = arguments(rng)
    compiled = donating(bias_gelu, 0).lower(x, bias).compile()
    assert "copy(" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes == 0


def test_no_copy_when_not_donated(rng: np.random.Generator) -> None:
    x, bias = arguments(rng)
    assert copies(bias_gelu, x, bias) == 0
    assert (
        copies(lambda x, b: jax.grad(lambda x, b: bias_gelu(x, b).sum(), (0, 1))(x, b), x, bias)
        == 0
    )

    def residual(x: Any, bias: Any) -> Any:  # both the gradient and the sum read x again
        return x + jax.grad(lambda x: (bias_gelu(2.0 * x, bias) ** 2).sum())(x)

    assert copies(residual, x, bias) == 0


def test_a_step_that_reads_x_in_both_passes(rng: np.random.Generator) -> None:
    """The gradient takes x's memory: its call is the last to read x."""
    x, bias = arguments(rng)

    def gradient(x: Any, bias: Any) -> Any:
        return jax.grad(lambda x: (bias_gelu(x, bias) ** 2).sum())(x)

    expected = np.asarray(jax.jit(gradient)(x, bias))
    compiled = donating(gradient, 0).lower(x, bias).compile()
    assert f"f32[{ROWS},{COLS}]{{1,0}} copy(" not in compiled.as_text()
    address = x.unsafe_buffer_pointer()
    dx = donating(gradient, 0)(x, bias)
    assert dx.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(dx, expected)


def test_a_donated_cotangent(rng: np.random.Generator) -> None:
    x, bias = arguments(rng)
    g = normal(rng, ROWS, COLS, dtype=jnp.float32)

    def backward(x: Any, bias: Any, g: Any) -> Any:
        return jax.vjp(bias_gelu, x, bias)[1](g)

    expected = jax.tree.map(np.asarray, jax.jit(backward)(x, bias, g))
    address = g.unsafe_buffer_pointer()
    dx, db = donating(backward, 2)(x, bias, g)
    assert dx.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(dx, expected[0])
    np.testing.assert_array_equal(db, expected[1])


def test_donated_and_still_read(rng: np.random.Generator) -> None:
    x, bias = arguments(rng)
    expected = np.asarray(plain(x, bias) - x), np.asarray(plain(2.0 * x))

    def later(x: Any, bias: Any) -> Any:
        y = bias_gelu(x, bias)
        return y - x, bias_gelu(2.0 * x)

    ours = donating(later, 0)(x, bias)
    assert_close(jax.tree.map(np.asarray, ours), expected, 1e-6)


def test_donated_through_vmap(rng: np.random.Generator) -> None:
    x, bias = arguments(rng)
    expected = np.asarray(bias_gelu(x, bias))
    address = x.unsafe_buffer_pointer()
    y = donating(jax.vmap(bias_gelu, (0, None)), 0)(x, bias)
    assert y.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(y, expected)


def test_other_calls_keep_their_alias(rng: np.random.Generator) -> None:
    """The cotangent's memory goes to the backward pass when a later call reads x again."""
    x, bias = arguments(rng)
    g = normal(rng, ROWS, COLS, dtype=jnp.float32)

    def both(x: Any, bias: Any, g: Any) -> Any:
        return jax.vjp(lambda x: bias_gelu(x, bias), x)[1](g)[0], bias_gelu(x)

    expected = jax.tree.map(np.asarray, jax.jit(both)(x, bias, g))
    compiled = donating(both, 2).lower(x, bias, g).compile()
    assert "copy(" not in compiled.as_text()
    address = g.unsafe_buffer_pointer()
    ours = donating(both, 2)(x, bias, g)
    assert ours[0].unsafe_buffer_pointer() == address
    assert_close(jax.tree.map(np.asarray, ours), expected, 0.0)


def test_donated_bias_of_the_shape_of_x(rng: np.random.Generator) -> None:
    """Every row of the result is written while the bias is still read, so it is not reused."""
    x, bias = normal(rng, COLS, dtype=jnp.float32), normal(rng, COLS, dtype=jnp.float32)
    expected = np.asarray(bias_gelu(x, bias))
    np.testing.assert_array_equal(donating(bias_gelu, 1)(x, bias), expected)
