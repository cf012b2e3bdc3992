"""Functions of the other framework on a GPU, with their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.cuda.calls import DEVICE
from tests.cuda.devices import jax_device, needs_gpu

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from bridge.jax import bias_gelu, from_torch  # noqa: E402
from bridge.torch import from_jax  # noqa: E402

pytestmark = needs_gpu
near = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def in_jax(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w).sum(-1) * x[..., 0]


def in_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).sum(-1) * x[..., 0]


def drawn(rng: np.random.Generator) -> list[Any]:
    """Returns x, w and a cotangent of the result."""
    return [rng.standard_normal(shape) for shape in ((6, 5), (5, 3), (6,))]


def expected(x: Any, w: Any, g: Any) -> list[Any]:
    """Returns the value, and the gradients towards x and w, in NumPy."""
    inner = np.tanh(x @ w)
    back = (g * x[:, 0])[:, None] * (1 - inner**2)
    towards_x = back @ w.T
    towards_x[:, 0] += g * inner.sum(-1)
    return [inner.sum(-1) * x[:, 0], towards_x, x.T @ back]


def tensors(arrays: list[Any], skip: int = 0) -> list[torch.Tensor]:
    """Returns tensors on the GPU, each `skip` elements after the start of its memory."""
    rooms = [torch.zeros(array.size + skip, dtype=torch.float64, device=DEVICE) for array in arrays]
    placed = [room[skip:].view(a.shape) for room, a in zip(rooms, arrays, strict=True)]
    for tensor, array in zip(placed, arrays, strict=True):
        tensor.copy_(torch.from_numpy(array))
    return placed


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("side_stream", [False, True])
def test_from_jax(skip: int, side_stream: bool, rng: np.random.Generator) -> None:
    """Memory at no multiple of 16 bytes works too, although XLA's programs would refuse it."""
    jax_device()
    arrays = drawn(rng)
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        x, w, g = tensors(arrays, skip)
        x.requires_grad_(), w.requires_grad_()
        result = from_jax(in_jax)(x, w)
        gradients = torch.autograd.grad(result, (x, w), g)
        found = [t.detach().cpu() for t in (result, *gradients)]
    assert result.device == x.device
    for one, other in zip(found, expected(*arrays), strict=True):
        near(one, other)


def test_second_gradients_of_from_jax(rng: np.random.Generator) -> None:
    jax_device()
    x, w, _ = tensors(drawn(rng))
    assert torch.autograd.gradgradcheck(
        from_jax(in_jax), (x.requires_grad_(), w.requires_grad_()), atol=1e-4
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_from_torch(compiled: bool, rng: np.random.Generator) -> None:
    device, arrays = jax_device(), drawn(rng)

    def all_of_it(x: Any, w: Any, g: Any) -> Any:
        y, pullback = jax.vjp(from_torch(in_torch), x, w)
        return (y, *pullback(g))

    function = jax.jit(all_of_it) if compiled else all_of_it
    for _ in range(3):  # the first call of a callback is on copies
        found = function(*jax.device_put(arrays, device))
        assert all(next(iter(a.devices())) == device for a in found)
        for one, other in zip(found, expected(*arrays), strict=True):
            near(one, other)


def test_from_torch_of_our_op_and_back(rng: np.random.Generator) -> None:
    """JAX's op inside a torch function inside JAX: the gradient goes through all three."""
    device = jax_device()
    x = jax.device_put(rng.standard_normal((6, 5)), device)
    through = from_torch(from_jax(lambda x: bias_gelu(x, approximate="none")))
    near(
        jax.grad(lambda x: (through(x) ** 2).sum())(x),
        jax.grad(lambda x: (jax.nn.gelu(x, approximate=False) ** 2).sum())(x),
    )
