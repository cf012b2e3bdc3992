"""What a call costs besides its arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bridge.jax import bias_dropout_add, bias_gelu, scaled_softmax


def fastest(function: Callable[..., Any], *arguments: Any, calls: int = 200) -> float:
    """Seconds of processor time for one call, the best of many rounds."""
    jax.block_until_ready(function(*arguments))
    rounds = []
    for _ in range(20):
        start = time.process_time()  # what other processes take does not count
        for _ in range(calls):
            result = function(*arguments)
        jax.block_until_ready(result)
        rounds.append((time.process_time() - start) / calls)
    return min(rounds)


def test_a_further_call_inside_one_jit() -> None:
    def chain(length: int) -> Callable[..., Any]:
        def run(x: Any, bias: Any) -> Any:
            for _ in range(length):
                x = bias_gelu(x, bias)
            return x

        return jax.jit(run)

    x, bias = jnp.ones((1, 4)), jnp.ones(4)
    short, long = fastest(chain(1), x, bias), fastest(chain(101), x, bias)
    # About 0.3 µs where nothing else runs. One printf or one task for the pool breaks the bound.
    assert (long - short) / 100 < 1e-6


X, BIAS, SEED = jnp.ones((4, 6)), jnp.ones(6), jnp.asarray(3)


@pytest.mark.parametrize(
    ("ours", "plain", "arguments"),
    [
        (bias_gelu, lambda x, bias: jax.nn.gelu(x + bias), (X, BIAS)),
        (lambda x: scaled_softmax(x, 0.5), lambda x: jax.nn.softmax(0.5 * x), (X,)),
        (
            lambda x, bias, seed: bias_dropout_add(x, bias, x, p=0.1, seed=seed),
            lambda x, bias, seed: x + seed * (x + bias),
            (X, BIAS, SEED),
        ),
    ],
    ids=["bias_gelu", "scaled_softmax", "bias_dropout_add"],
)
def test_outside_jit_it_is_one_dispatch(ours: Any, plain: Any, arguments: Any) -> None:
    assert fastest(ours, *arguments) < 2.0 * fastest(jax.jit(plain), *arguments)


def test_traced_once() -> None:
    traces = []

    @jax.jit
    def function(x: Any) -> Any:
        traces.append(None)
        return bias_gelu(x)

    for _ in range(3):
        function(jnp.ones(3))
    assert len(traces) == 1
