"""A torch vision network trained by optax in a jitted JAX step, on handwritten digits.

The network is torch's: convolutions, batch normalization with its running statistics, dropout. The
loss, the optimizer, the random keys and the loop are JAX's.

    python examples/torch_vision_in_optax.py

Prints the accuracy on test digits, and the cost of the conversions in a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import torch
from jax import numpy as jnp
from sklearn.datasets import load_digits
from torch import nn

from bridge.jax import from_torch

EPOCHS, BATCH = 8, 100


def network() -> nn.Module:
    """Returns a network for images of 8 by 8 pixels, `[n, 64]`."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 16, 10),
    )


def digits() -> tuple[jax.Array, jax.Array]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = jnp.asarray(images[order] / 16, jnp.float32)
    return images, jnp.asarray(labels[order].astype(np.int32))


def loss_of(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train() -> tuple[float, nn.Module, Any, jax.Array, jax.Array]:
    """Returns the accuracy, the module, the training step, and a batch."""
    torch.manual_seed(0)
    module = network()
    training = from_torch(module, train=True, seeded=True)
    evaluation = from_torch(module, train=False)
    optimizer = optax.adamw(3e-3)

    def loss(params: Any, buffers: Any, key: Any, x: Any, y: Any) -> Any:
        logits, buffers = training(params, x, buffers=buffers, seed=key)
        return loss_of(logits, y), buffers

    @jax.jit
    def step(state: Any, key: Any, x: Any, y: Any) -> Any:
        params, buffers, moments = state
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, buffers), gradients = gradient(params, buffers, key, x, y)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), buffers, moments), value

    x, y = digits()
    train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    params = training.params()
    state = params, training.buffers(), optimizer.init(params)
    key = jax.random.key(0)
    for _ in range(EPOCHS):
        key, shuffle = jax.random.split(key)
        for rows in jax.random.permutation(shuffle, len(train_x)).reshape(-1, BATCH):
            key, draw = jax.random.split(key)
            state, _ = step(state, draw, train_x[rows], train_y[rows])
    params, buffers, _ = state
    logits, _ = evaluation(params, test_x, buffers=buffers)
    accuracy = float((logits.argmax(1) == test_y).mean())
    return accuracy, module, lambda x, y: step(state, key, x, y), train_x[:BATCH], train_y[:BATCH]


def crossing(module: nn.Module, step: Any, x: jax.Array, y: jax.Array) -> dict[str, float]:
    """Returns milliseconds of a step, of the network and loss in it, and of the same work in torch.

    The network runs forward twice in a JAX step: once for the loss, once for the gradient.
    """
    g = from_torch(module.eval())
    inputs, labels = torch.tensor(np.asarray(x)), torch.tensor(np.asarray(y)).long()
    parameters = list(module.parameters())
    params = g.params()
    inside = jax.jit(jax.value_and_grad(lambda params: loss_of(g(params, x), y)))

    def in_torch() -> Any:
        with torch.no_grad():
            module(inputs)
        value = nn.functional.cross_entropy(module(inputs), labels)
        return torch.autograd.grad(value, parameters)

    runs: dict[str, Callable[[], Any]] = {
        "step": lambda: jax.block_until_ready(step(x, y)),
        "jax": lambda: jax.block_until_ready(inside(params)),
        "torch": in_torch,
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(25):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values[5:]) for name, values in times.items()}


def main() -> None:
    accuracy, module, step, x, y = train()
    print(f"accuracy on digits not seen: {100 * accuracy:.1f} %")
    cost = crossing(module, step, x, y)
    print(f"a step with optimizer, dropout and statistics: {cost['step']:.2f} ms")
    print(f"network, loss and gradient, from JAX:          {cost['jax']:.2f} ms")
    print(f"the same inside torch:                         {cost['torch']:.2f} ms")
    print(f"crossing, per step:                            {cost['jax'] - cost['torch']:.2f} ms")


if __name__ == "__main__":
    main()
