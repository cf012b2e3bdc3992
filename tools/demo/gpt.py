"""A small Megatron-style GPT: its sizes, its first weights, and how it is trained.

A layer is  x += dropout(attention(norm(x)) + bias);  x += dropout(mlp(norm(x)) + bias),  as in
Shoeybi et al., "Megatron-LM" (arXiv:1909.08053): the linear layers leave their biases to bias-GELU
and to bias-dropout-add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tools.demo.text import SYMBOLS

LAYERS, HEADS, WIDTH, INNER = 2, 4, 64, 256
LENGTH, BATCH, STEPS = 64, 16, 300  # characters, pieces of text, updates
P_DROP, SEED = 0.1, 2024
LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 3e-3, 30, 0.01
EPSILON = 1e-5  # of the norms
# Adam divides a gradient by its own size: with a smaller epsilon a gradient that is nothing but
# rounding would move a weight as far as any other.
ADAM_EPSILON = 1e-6

SCALE = (WIDTH // HEADS) ** -0.5

Weights = dict[str, np.ndarray]


def initial_weights(seed: int = 0) -> Weights:
    """float32 weights by name: normal with deviation 0.02, biases 0, norms 1."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(0.0, 0.02, shape).astype(np.float32)

    weights = {"characters": normal(SYMBOLS, WIDTH), "places": normal(LENGTH, WIDTH)}
    for layer in range(LAYERS):
        for name, outputs, inputs in (
            ("qkv", 3 * WIDTH, WIDTH),
            ("projection", WIDTH, WIDTH),
            ("up", INNER, WIDTH),
            ("down", WIDTH, INNER),
        ):
            weights[f"{layer}.{name}.weight"] = normal(outputs, inputs)
            # The attention's keys need none: their bias adds the same to every score of a row.
            if name != "qkv":
                weights[f"{layer}.{name}.bias"] = np.zeros(outputs, np.float32)
    for norm in (*(f"{layer}.{part}" for layer in range(LAYERS) for part in ("in", "mid")), "out"):
        weights[f"{norm}.norm.weight"] = np.ones(WIDTH, np.float32)
        weights[f"{norm}.norm.bias"] = np.zeros(WIDTH, np.float32)
    return weights


class BridgeOps:
    """Softmax, bias-GELU and bias-dropout-add through bridge.

    Args:
      ops: bridge.torch or bridge.jax.
    """

    def __init__(self, ops: Any) -> None:
        self.softmax, self.gelu = ops.scaled_causal_softmax, ops.bias_gelu
        self._dropout_add = ops.bias_dropout_add

    def dropout_add(self, x: Any, bias: Any, residual: Any, step: Any, site: int) -> Any:
        return self._dropout_add(x, bias, residual, p=P_DROP, seed=SEED, offset=draw(step, site))


def logits(
    ops: Any,
    normalise: Callable[[str, Any], Any],
    attention: Callable[[int, Any], Any],
    w: Mapping[str, Any],
    pieces: Any,
    step: Any,
) -> Any:
    """Returns `[batch, length, SYMBOLS]` of each next character of `pieces` `[batch, length + 1]`.

    Args:
      normalise: a layer norm by name, in the framework of the arrays.
      attention: that of a layer.
    """
    x = w["characters"][pieces[:, :-1]] + w["places"]
    for layer in range(LAYERS):
        h = attention(layer, normalise(f"{layer}.in", x))
        x = ops.dropout_add(h, w[f"{layer}.projection.bias"], x, step, 2 * layer)
        h = normalise(f"{layer}.mid", x) @ w[f"{layer}.up.weight"].T
        h = ops.gelu(h, w[f"{layer}.up.bias"]) @ w[f"{layer}.down.weight"].T
        x = ops.dropout_add(h, w[f"{layer}.down.bias"], x, step, 2 * layer + 1)
    return normalise("out", x) @ w["characters"].T


def draw(step: int, site: int) -> int:
    """The offset of the random stream for the site-th dropout of a step: all differ."""
    return step * 2 * LAYERS + site
