"""The cost of `bridge.jax.from_torch`, compared with a bare callback of JAX and with torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bridge.jax import from_torch
from tools.bench.border import row_of
from tools.bench.in_torch import wait_on
from tools.bench.timing import Contender

IN_JIT, BOTH = "from_torch in jit", "from_torch in jit, forward+backward"
CALLBACK, IN_TORCH = "pure_callback", "in torch"
SHAPES = ((4,), (1 << 20,))
BATCH, SIZES = 64, (64, 128, 10)


def rows(device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the timings of a call inside jit, and of a forward and backward pass.

    The peer of the first is a `jax.pure_callback` that returns the same array. The peer of the
    second is the same work in torch; from inside JAX it takes one more forward pass.
    """
    for shape in SHAPES:
        array = np.ones(shape, np.float32)
        tensor = torch.ones(shape, device=device)
        x = jax.device_put(jnp.zeros(shape), jax.devices(device)[0])
        ours = jax.jit(from_torch(lambda x, tensor=tensor: tensor))
        bare = jax.jit(lambda x, array=array: jax.pure_callback(lambda x: array, x, x))
        contenders = [
            Contender("bridge", partial(ours, x), jax.block_until_ready),
            Contender(CALLBACK, partial(bare, x), jax.block_until_ready),
        ]
        yield row_of(IN_JIT, "jax", device, list(shape), contenders, seconds)

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(SIZES[0], SIZES[1]), torch.nn.Tanh(), torch.nn.Linear(SIZES[1], SIZES[2])
    ).to(device)
    inputs = torch.randn(BATCH, SIZES[0], device=device)
    g = from_torch(module)
    params, x = g.params(), jax.device_put(inputs.cpu().numpy(), jax.devices(device)[0])
    gradients = jax.jit(jax.value_and_grad(lambda params: (g(params, x) ** 2).sum()))

    def in_torch() -> Any:
        with torch.no_grad():
            module(inputs)
        return torch.autograd.grad(module(inputs).square().sum(), list(module.parameters()))

    contenders = [
        Contender("bridge", lambda: gradients(params), jax.block_until_ready),
        Contender(IN_TORCH, in_torch, wait_on(device)),
    ]
    yield row_of(BOTH, "jax", device, [BATCH, *SIZES], contenders, seconds)
