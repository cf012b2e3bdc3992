"""JAX's settings of a thread, where autograd goes backward on another one, as it does on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

from bridge.torch import from_jax


def elsewhere(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


# torch.compile has no second derivatives.
@pytest.mark.parametrize(
    ("compiled", "create_graph"), [(False, False), (False, True), (True, False)]
)
def test_64_bits(compiled: bool, create_graph: bool, rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.standard_normal(5)).requires_grad_()
    f = from_jax(lambda x: jnp.sin(x) * jnp.exp(x))
    if compiled:
        f = torch.compile(f, backend="aot_eager")
    with jax.enable_x64(True):
        y = f(x)
    (g,) = elsewhere(lambda: torch.autograd.grad(y.sum(), x, create_graph=create_graph))
    torch.testing.assert_close(g, (torch.cos(x) + torch.sin(x)) * torch.exp(x))
    if create_graph:
        (second,) = elsewhere(lambda: torch.autograd.grad(g.sum(), x))
        torch.testing.assert_close(second, 2 * torch.cos(x) * torch.exp(x))


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_precision_of_matrix_products(create_graph: bool) -> None:
    seen = []

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x

    def backward(_: None, g: Any) -> Any:
        config: Any = jax.config
        seen.append(config.jax_default_matmul_precision)
        return (g,)

    f.defvjp(lambda x: (x, None), backward)
    x = torch.ones(3, requires_grad=True)
    with jax.default_matmul_precision("highest"):
        y = from_jax(f)(x)
    elsewhere(lambda: torch.autograd.grad(y.sum(), x, create_graph=create_graph))
    assert set(seen) == {"highest"}
