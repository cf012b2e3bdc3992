"""The cost of `bridge.torch.from_jax`, compared with plain JAX and with another library."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch

import bridge
from bridge.torch import from_jax
from tools.bench.border import row_of
from tools.bench.in_torch import wait_on
from tools.bench.timing import Contender

BATCH, SIZES = 64, (64, 128, 10)
CALL, BOTH = "from_jax, no gradient", "from_jax, forward+backward"
COMPOSED = "to_jax, jit, to_torch"
INTEROP = "torch_jax_interop"


def mlp(params: Any, x: Any) -> Any:
    """A perceptron of two layers."""
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def rows(device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the timings of a call without gradient, and of a forward and backward pass.

    The peer of the first is the jitted function with conversions written by hand. The peer of the
    second is torch_jax_interop, if installed. The time of the gradients in JAX alone, without
    conversions, is measured for comparison.
    """
    wait = wait_on(device)
    generator = torch.Generator().manual_seed(0)
    sizes = itertools.pairwise(SIZES)
    params: dict[str, torch.Tensor] = {}
    for layer, (rows_in, rows_out) in enumerate(sizes, 1):
        weight = torch.randn(rows_in, rows_out, generator=generator) / rows_in**0.5
        params |= {f"w{layer}": weight.to(device), f"b{layer}": torch.zeros(rows_out).to(device)}
    x = torch.randn(BATCH, SIZES[0], generator=generator).to(device)
    function, jitted = from_jax(mlp), jax.jit(mlp)

    def composed() -> Any:
        return bridge.to_torch(jitted(bridge.to_jax(params), bridge.to_jax(x)))

    shape = [BATCH, *SIZES]
    contenders = [
        Contender("bridge", lambda: function(params, x), wait),
        Contender(COMPOSED, composed, wait),
    ]
    yield row_of(CALL, "torch", device, shape, contenders, seconds)

    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    arrays, inputs = bridge.to_jax(params), bridge.to_jax(x)
    gradients = jax.jit(jax.value_and_grad(lambda p, x: jnp.sum(mlp(p, x) ** 2)))
    contenders = [
        Contender("bridge", lambda: _step(function(leaves, x), leaves.values()), wait),
        Contender("jit", lambda: gradients(arrays, inputs), jax.block_until_ready),
    ]
    if importlib.util.find_spec(INTEROP) is not None:
        from torch_jax_interop import WrappedJaxFunction

        theirs = WrappedJaxFunction(jitted, jax.tree.map(jnp.copy, arrays))
        weights = list(theirs.parameters())
        contenders.append(Contender(INTEROP, lambda: _step(theirs(x), weights), wait))
    yield row_of(BOTH, "torch", device, shape, contenders, seconds)


def _step(y: torch.Tensor, leaves: Any) -> None:
    y.square().sum().backward()
    for leaf in leaves:
        leaf.grad = None
