"""A torch encoder and a Flax head with its loss, trained together by torch on handwritten digits.

The encoder is torch's, with the fused bias-GELU. The head and the loss are JAX's: a Flax NNX module
with batch normalization and dropout, and optax's cross entropy. One torch optimizer trains both.

    python examples/flax_loss_in_torch.py

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
from flax import nnx
from jax import numpy as jnp
from sklearn.datasets import load_digits

import bridge.torch

EPOCHS, BATCH, WIDTH = 6, 64, 128


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, WIDTH, bias=False)
        self.gelu = bridge.torch.BiasGELU(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gelu(self.linear(x))


class Head(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.linear = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, features: jax.Array) -> jax.Array:
        return self.linear(self.drop(self.norm(features)))

    def loss(self, features: jax.Array, labels: jax.Array) -> jax.Array:
        logits = self(features)
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, 10), 0.05)
        return optax.softmax_cross_entropy(logits, smooth).mean()


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    # JAX has 32-bit integers by default.
    return (
        torch.tensor(images[order] / 16, dtype=torch.float32),
        torch.tensor(labels[order], dtype=torch.int32),
    )


def train() -> tuple[float, Encoder, bridge.torch.JaxModule, torch.Tensor, torch.Tensor]:
    """Trains both parts; returns the accuracy, the parts, and a batch."""
    torch.manual_seed(0)
    x, y = digits()
    train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    head = Head(nnx.Rngs(0))
    encoder = Encoder()
    loss = bridge.torch.JaxModule(head, "loss")
    optimizer = torch.optim.AdamW([*encoder.parameters(), *loss.parameters()], lr=3e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train_x)).split(BATCH)[:-1]:
            optimizer.zero_grad()
            loss(encoder(train_x[rows]), train_y[rows]).backward()
            optimizer.step()
    predict = bridge.torch.from_jax(lambda head, features: jnp.argmax(head(features), -1))
    encoder.eval(), loss.eval()
    with torch.no_grad():
        correct = predict(loss.jax_module(), encoder(test_x)) == test_y
    loss.train()
    return correct.float().mean().item(), encoder, loss, train_x[:BATCH], train_y[:BATCH]


def crossing(encoder: Encoder, loss: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Returns milliseconds of a step, of the JAX part called from torch, and of it in JAX."""
    graph, parameters, state = nnx.split(loss.jax_module(), nnx.Param, ...)
    features = encoder(x).detach().requires_grad_()

    @jax.jit
    def inside(parameters: Any, state: Any, features: Any, labels: Any) -> Any:
        def value(parameters: Any, features: Any) -> Any:
            head = nnx.merge(graph, parameters, state, copy=True)
            return head.loss(features, labels), nnx.state(head, nnx.BatchStat, nnx.RngCount)

        return jax.value_and_grad(value, (0, 1), has_aux=True)(parameters, features)

    arrays = jnp.asarray(features.detach().numpy()), jnp.asarray(y.numpy())
    runs: dict[str, Callable[[], Any]] = {
        "step": lambda: loss(encoder(x), y).backward(),
        "head": lambda: loss(features, y).backward(),
        "jax": lambda: jax.block_until_ready(inside(parameters, state, *arrays)),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(25):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values[5:]) for name, values in times.items()}


def main() -> None:
    accuracy, encoder, loss, x, y = train()
    print(f"accuracy on digits not seen: {100 * accuracy:.1f} %")
    cost = crossing(encoder, loss, x, y)
    print(f"forward and backward of a step: {cost['step']:.2f} ms")
    print(f"of which head and loss:         {cost['head']:.2f} ms")
    print(f"the same inside JAX:            {cost['jax']:.2f} ms")
    print(f"crossing, per step:             {cost['head'] - cost['jax']:.2f} ms")


if __name__ == "__main__":
    main()
