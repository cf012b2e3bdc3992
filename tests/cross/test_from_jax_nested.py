"""torch → JAX → torch and JAX → torch → JAX, with the transforms of both frameworks."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

from bridge.jax import from_torch
from bridge.torch import from_jax

pytestmark = pytest.mark.usefixtures("wide")


def sandwich() -> Any:
    inner = from_torch(lambda x: torch.sin(x) * x, vmap_method="vmap")
    return from_jax(lambda x: inner(x * 2) + x)


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(2 * x) * 2 * x + x


@pytest.fixture
def x() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, dtype=torch.float64, generator=generator)


def test_torch_in_jax_in_torch(x: torch.Tensor) -> None:
    f = sandwich()
    x.requires_grad_()
    assert torch.autograd.gradcheck(f, x)
    assert torch.autograd.gradgradcheck(f, x)
    x = x.detach()
    for transformed in (
        lambda f: f(x),
        lambda f: torch.func.vmap(f)(x),
        lambda f: torch.func.jvp(f, (x,), (x,)),
        lambda f: torch.func.jacrev(f)(x),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x),
    ):
        torch.testing.assert_close(transformed(f), transformed(reference))


def test_jax_in_torch_in_jax(x: torch.Tensor) -> None:
    outer = from_torch(lambda x: from_jax(jnp.sin)(x) * x)
    array = jnp.asarray(x.numpy())
    np.testing.assert_allclose(outer(array), jnp.sin(array) * array)
    with pytest.raises(Exception, match=r"from_jax: called by .* by a callback; JAX can deadlock"):
        jax.block_until_ready(jax.jit(outer)(array))


def test_many_calls_at_once(x: torch.Tensor) -> None:
    """Callbacks take the interpreter lock, so a thread that waits for JAX must not hold it."""
    f, errors = sandwich(), []
    large = torch.linspace(0, 1, 100_000, dtype=torch.float64)

    def work() -> None:
        try:
            with jax.enable_x64(True):
                for _ in range(5):
                    leaf = large.clone().requires_grad_()
                    f(leaf).sum().backward()
                    torch.testing.assert_close(
                        leaf.grad, 4 * large * torch.cos(2 * large) + 2 * torch.sin(2 * large) + 1
                    )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
