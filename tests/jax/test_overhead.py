"""What a call costs besides its arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bridge.jax import bias_gelu


def fastest(function: Callable[..., Any], *arguments: Any, calls: int = 200) -> float:
    """Seconds for one call: the best of many rounds, the one that nobody disturbed."""
    jax.block_until_ready(function(*arguments))
    rounds = []
    for _ in range(25):
        start = time.perf_counter()
        for _ in range(calls):
            result = function(*arguments)
        jax.block_until_ready(result)
        rounds.append((time.perf_counter() - start) / calls)
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
    # 0.2 µs on an idle machine; a copied string or a new thread on the way costs more than this.
    assert (long - short) / 100 < 0.6e-6


def test_outside_jit_it_is_one_dispatch() -> None:
    x, bias = jnp.ones((4, 6)), jnp.ones(6)
    plain = jax.jit(lambda x, bias: jax.nn.gelu(x + bias))
    assert fastest(bias_gelu, x, bias) < 2.5 * fastest(plain, x, bias)


def test_traced_once() -> None:
    traces = []

    @jax.jit
    def function(x: Any) -> Any:
        traces.append(None)
        return bias_gelu(x)

    for _ in range(3):
        function(jnp.ones(3))
    assert len(traces) == 1
