"""The contenders in JAX: bridge and jax.jit of the plain composition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bridge.jax
from bridge.cli.bench.cases import CHAIN, Case
from bridge.cli.bench.timing import Contender


def plain_bias_gelu(x: Any, bias: Any, form: str) -> Any:
    """What a user writes without bridge."""
    return jax.nn.gelu(x + bias, approximate=form == "tanh")


PLAIN = {"bias_gelu": plain_bias_gelu}


class Contenders:
    """Builds the contenders of a case on a device."""

    def __init__(self, device: str) -> None:
        self.device = jax.devices(device)[0]
        self.queued = device == "cuda"
        self.notes: list[str] = []

    def of(self, case: Case) -> list[Contender]:
        """Returns bridge first, then jit; for a chain each once and `CHAIN` times."""
        random = np.random.default_rng(0)

        def normal(*shape: int) -> Any:
            values = random.standard_normal(shape, np.float32)
            return jax.device_put(jnp.asarray(values).astype(case.dtype), self.device)

        x, bias, g = normal(*case.shape), normal(case.shape[-1]), normal(*case.shape)
        op, form = getattr(bridge.jax, case.op), case.form
        functions = {
            "bridge": lambda x, bias: op(x, bias, approximate=form),
            "jit": lambda x, bias: PLAIN[case.op](x, bias, form),
        }
        if case.what == "chain":
            return [
                self._contender(name if n == 1 else f"{name} ×{n}", _chain(f, x, bias, n))
                for name, f in functions.items()
                for n in (1, CHAIN)
            ]
        if case.memory == "old":
            return [self._contender(name, _donated(f, x, bias)) for name, f in functions.items()]
        runs = _RUNS[case.what]
        return [self._contender(name, runs(f, x, bias, g)) for name, f in functions.items()]

    def _contender(self, name: str, run: Callable[[], Any]) -> Contender:
        return Contender(name, run, _wait, queued=self.queued)


def _forward(f: Callable[..., Any], x: Any, bias: Any, g: Any) -> Callable[[], Any]:
    jitted = jax.jit(f)
    return lambda: jitted(x, bias)


def _backward(f: Callable[..., Any], x: Any, bias: Any, g: Any) -> Callable[[], Any]:
    # The forward value is not returned, so XLA drops it: the backward pass alone.
    jitted = jax.jit(lambda x, bias, g: jax.vjp(f, x, bias)[1](g))
    return lambda: jitted(x, bias, g)


def _both(f: Callable[..., Any], x: Any, bias: Any, g: Any) -> Callable[[], Any]:
    @jax.jit
    def both(x: Any, bias: Any, g: Any) -> Any:
        y, pull = jax.vjp(f, x, bias)
        return y, pull(g)

    return lambda: both(x, bias, g)


_RUNS = {"forward": _forward, "backward": _backward, "forward+backward": _both}


def _donated(f: Callable[..., Any], x: Any, bias: Any) -> Callable[[], Any]:
    """Each run gives its x away and takes the result as the next x."""
    jitted = jax.jit(f, donate_argnums=0)
    held = [jnp.array(x, copy=True)]

    def run() -> Any:
        held[0] = jitted(held[0], bias)
        return held[0]

    return run


def _chain(f: Callable[..., Any], x: Any, bias: Any, count: int) -> Callable[[], Any]:
    @jax.jit
    def chain(x: Any, bias: Any) -> Any:
        for _ in range(count):
            x = f(x, bias)
        return x

    return lambda: chain(x, bias)


def _wait(results: Any) -> None:
    jax.block_until_ready(results)
