"""Optimizers of both frameworks side by side, on parameters and gradients from NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bridge.jax import optim as in_jax
from bridge.torch import optim as in_torch
from tests.frameworks import numpy_dtype

# One number, no elements, a vector, short rows that are joined, rows as they are, a long vector.
SHAPES: dict[str, tuple[int, ...]] = {
    "scale": (),
    "empty": (0, 4),
    "bias": (7,),
    "filters.weight": (5, 3, 3, 3),
    "layers.0.weight": (13, 70),
    "layers.10.weight": (3, 129),
    "layers.2.weight": (2, 5, 66),
    "flat": (65536 + 256,),
}


@dataclass(frozen=True)
class Pair:
    """An optimizer as a function of the parameters in torch, and as it is in JAX."""

    torch: Callable[[Any], Any]
    jax: Callable[[], Any]


PAIRS = {
    "adamw": Pair(
        lambda p: in_torch.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda: in_jax.adamw(1e-2, weight_decay=0.1),
    ),
    "adamw without decay": Pair(
        lambda p: in_torch.AdamW(p, lr=3e-4, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0),
        lambda: in_jax.adamw(3e-4, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.0),
    ),
    "sgd": Pair(
        lambda p: in_torch.SGD(p, lr=0.1, weight_decay=0.01),
        lambda: in_jax.sgd(0.1, weight_decay=0.01),
    ),
    "momentum": Pair(
        lambda p: in_torch.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
        lambda: in_jax.sgd(0.1, 0.9, dampening=0.3, weight_decay=0.01),
    ),
    "nesterov": Pair(
        lambda p: in_torch.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda: in_jax.sgd(0.1, 0.9, nesterov=True),
    ),
}


def tree(rng: Any, dtype: str, scale: float = 1.0) -> dict[str, Any]:
    return {
        name: np.asarray(rng.normal(size=shape) * scale).astype(numpy_dtype(dtype))
        for name, shape in SHAPES.items()
    }


def gradients(rng: Any, dtype: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yields gradients of very different sizes."""
    for _ in range(steps):
        yield tree(rng, dtype, 10.0 ** rng.integers(-4, 2))


def tensor(array: Any) -> torch.Tensor:
    wide = torch.from_numpy(np.array(array, np.float64))
    return wide.to(getattr(torch, array.dtype.name))


def parameters(values: dict[str, Any]) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(tensor(value)) for name, value in values.items()}


def give(params: dict[str, Any], grads: dict[str, Any]) -> None:
    for name, p in params.items():
        p.grad = tensor(grads[name])


def arrays(values: dict[str, Any]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in values.items()}


def numbers(value: Any) -> Any:
    """Returns a float64 copy in NumPy, which keeps every bit but those of NaN."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().numpy().copy()
    return np.asarray(value).astype(np.float64)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        a, b = numbers(ours[name]), numbers(theirs[name])
        differing = np.count_nonzero((a != b) | (np.signbit(a) != np.signbit(b)))
        assert differing == 0, f"{name}: {differing} of {a.size}"
