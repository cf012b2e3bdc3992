"""A small modern GPT: its sizes, its initial weights, its computation, and its training.

A layer is  x += dropout(attention(norm(x)));  x += dropout(down(swiglu(up(norm(x))))),  with
RMSNorm, rotary position embedding and no biases, as in Touvron et al., "LLaMA" (arXiv:2302.13971).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tools.demo.text import SYMBOLS

LAYERS, HEADS, WIDTH, INNER = 2, 4, 64, 176
LENGTH, BATCH, STEPS = 64, 16, 300  # characters, text pieces per batch, updates
P_DROP, SEED = 0.1, 2024
LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 3e-3, 30, 0.01
EPSILON = 1e-5  # of the norms
# Adam divides a gradient by its own size: with a smaller epsilon, a gradient of mere rounding
# errors would move a weight as far as any other gradient.
ADAM_EPSILON = 1e-6

MOST_NORM = 1.0  # of all gradients together

Weights = dict[str, np.ndarray]

# The ops that each framework can do itself or with bridge, in the order of the report.
OPS = {
    "embed": "embedding",
    "norm": "RMSNorm",
    "linear": "linear layer",
    "rotate": "rotary embedding",
    "attend": "attention",
    "gate": "SwiGLU",
    "dropout_add": "dropout-add",
    "loss": "cross-entropy",
}


def initial_weights(seed: int = 0) -> Weights:
    """Returns float32 weights by name: normal with deviation 0.02; weights of norms are 1."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(0.0, 0.02, shape).astype(np.float32)

    weights = {"characters": normal(SYMBOLS, WIDTH)}
    for layer in range(LAYERS):
        weights[f"{layer}.qkv"] = normal(3 * WIDTH, WIDTH)
        weights[f"{layer}.projection"] = normal(WIDTH, WIDTH)
        weights[f"{layer}.up"] = normal(2 * INNER, WIDTH)
        weights[f"{layer}.down"] = normal(WIDTH, INNER)
    for norm in (*(f"{layer}.{part}" for layer in range(LAYERS) for part in ("in", "mid")), "out"):
        weights[f"{norm}.norm"] = np.ones(WIDTH, np.float32)
    return weights


def angles() -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of the rotary embedding, float32 `[LENGTH, head / 2]`."""
    half = WIDTH // HEADS // 2
    turned = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


def rates(steps: int) -> np.ndarray:
    """Returns the learning rate of each step, float32: it rises in a line, then stays."""
    factors = np.minimum(1.0, (np.arange(steps) + 1) / WARM_UP)
    return (LEARNING_RATE * factors).astype(np.float32)


class BridgeOps:
    """The ops of bridge.

    Args:
      ops: bridge.torch or bridge.jax.
    """

    def __init__(self, ops: Any) -> None:
        self.embed, self.linear, self.rotate = ops.embedding, ops.linear, ops.rotary
        self.gate, self.loss = ops.swiglu, ops.cross_entropy
        self._ops = ops

    def norm(self, x: Any, weight: Any) -> Any:
        return self._ops.rms_norm(x, weight, eps=EPSILON)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        return self._ops.attention(query, key, value, causal=True)

    def dropout_add(self, x: Any, residual: Any, draw: Any) -> Any:
        return self._ops.bias_dropout_add(x, None, residual, p=P_DROP, seed=SEED, offset=draw)


def loss(ops: Any, w: Mapping[str, Any], tables: tuple[Any, ...], pieces: Any, step: Any) -> Any:
    """Returns the mean cross-entropy, in nats, of each next character of `pieces`.

    Args:
      tables: the results of `angles`, as arrays of the framework.
      pieces: `[batch, length + 1]`.
    """
    x = ops.embed(pieces[:, :-1], w["characters"])
    batch = x.shape[0]
    for layer in range(LAYERS):
        h = ops.linear(ops.norm(x, w[f"{layer}.in.norm"]), w[f"{layer}.qkv"])
        h = h.reshape(batch, LENGTH, 3, HEADS, WIDTH // HEADS).swapaxes(1, 3)
        query, key = (ops.rotate(h[:, :, i], *tables) for i in (0, 1))
        attended = ops.attend(query, key, h[:, :, 2])
        h = ops.linear(attended.swapaxes(1, 2).reshape(x.shape), w[f"{layer}.projection"])
        x = ops.dropout_add(h, x, draw(step, 2 * layer))
        h = ops.linear(ops.norm(x, w[f"{layer}.mid.norm"]), w[f"{layer}.up"])
        h = ops.linear(ops.gate(h), w[f"{layer}.down"])
        x = ops.dropout_add(h, x, draw(step, 2 * layer + 1))
    logits = ops.linear(ops.norm(x, w["out.norm"]), w["characters"])
    return ops.loss(logits, pieces[:, 1:])


def draw(step: int, site: int) -> int:
    """Returns the offset of the random stream for one dropout of a step; all offsets differ."""
    return step * 2 * LAYERS + site
