"""A small modern GPT: its sizes, its initial weights, its computation, and its training.

A layer is  x += dropout(attention(norm(x)));  x += dropout(down(swiglu(up(norm(x))))),  with
RMSNorm, rotary position embedding and no biases, as in Touvron et al., "LLaMA" (arXiv:2302.13971).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

SCALE = (WIDTH // HEADS) ** -0.5

Weights = dict[str, np.ndarray]

# The ops that each framework can do itself or with bridge, in the order of the report.
OPS = {
    "norm": "RMSNorm",
    "rotate": "rotary embedding",
    "softmax": "causal softmax",
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


class BridgeOps:
    """The ops of bridge.

    Args:
      ops: bridge.torch or bridge.jax.
    """

    def __init__(self, ops: Any) -> None:
        self.rotate, self.softmax, self.gate = ops.rotary, ops.scaled_causal_softmax, ops.swiglu
        self._norm, self._dropout_add, self.loss = (
            ops.rms_norm,
            ops.bias_dropout_add,
            ops.cross_entropy,
        )

    def norm(self, x: Any, weight: Any) -> Any:
        return self._norm(x, weight, eps=EPSILON)

    def dropout_add(self, x: Any, residual: Any, draw: Any) -> Any:
        return self._dropout_add(x, None, residual, p=P_DROP, seed=SEED, offset=draw)


def loss(
    ops: Any,
    w: Mapping[str, Any],
    tables: tuple[Any, ...],
    pieces: Any,
    step: Any,
    product: Callable[[Any, Any], Any] = lambda x, y: x @ y,
) -> Any:
    """Returns the mean cross-entropy, in nats, of each next character of `pieces`.

    Args:
      tables: the results of `angles`, as arrays of the framework.
      pieces: `[batch, length + 1]`.
      product: multiplies matrices.
    """
    x = w["characters"][pieces[:, :-1]]
    batch = x.shape[0]
    for layer in range(LAYERS):
        h = product(ops.norm(x, w[f"{layer}.in.norm"]), w[f"{layer}.qkv"].T)
        h = h.reshape(batch, LENGTH, 3, HEADS, WIDTH // HEADS).swapaxes(1, 3)
        query, key = (ops.rotate(h[:, :, i], *tables) for i in (0, 1))
        attended = product(ops.softmax(product(query, key.mT), SCALE), h[:, :, 2])
        h = attended.swapaxes(1, 2).reshape(x.shape)
        h = product(h, w[f"{layer}.projection"].T)
        x = ops.dropout_add(h, x, draw(step, 2 * layer))
        h = product(ops.norm(x, w[f"{layer}.mid.norm"]), w[f"{layer}.up"].T)
        h = product(ops.gate(h), w[f"{layer}.down"].T)
        x = ops.dropout_add(h, x, draw(step, 2 * layer + 1))
    logits = product(ops.norm(x, w["out.norm"]), w["characters"].T)
    return ops.loss(logits, pieces[:, 1:])


def draw(step: int, site: int) -> int:
    """Returns the offset of the random stream for one dropout of a step; all offsets differ."""
    return step * 2 * LAYERS + site
