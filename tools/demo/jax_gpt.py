"""Training the small GPT in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bridge.jax
from tools.demo import gpt


class OwnOps:
    """What `gpt.BridgeOps` does, in JAX's own ops, with dropout from JAX's own generator."""

    @staticmethod
    def softmax(scores: Any, scale: float) -> Any:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jax.nn.softmax(jnp.where(seen, scores * scale, -jnp.inf), axis=-1)

    @staticmethod
    def gelu(x: Any, bias: Any) -> Any:
        return jax.nn.gelu(x + bias, approximate=True)

    @staticmethod
    def dropout_add(x: Any, bias: Any, residual: Any, step: Any, site: int) -> Any:
        key = jax.random.fold_in(jax.random.key(gpt.SEED), gpt.draw(step, site))
        keep = jax.random.bernoulli(key, 1.0 - gpt.P_DROP, x.shape)
        return residual + jnp.where(keep, (x + bias) / (1.0 - gpt.P_DROP), 0.0)


def loss(ops: Any, w: dict[str, Any], pieces: Any, step: Any) -> Any:
    """Mean cross-entropy, in nats, of each next character of `pieces` `[batch, length + 1]`."""
    normalise, attention = partial(_normalise, w), partial(_attention, ops, w)
    logits = gpt.logits(ops, normalise, attention, w, pieces, step)
    return optax.softmax_cross_entropy_with_integer_labels(logits, pieces[:, 1:]).mean()


def _normalise(w: dict[str, Any], name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + gpt.EPSILON)
    return centred / deviation * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"]


def _attention(ops: Any, w: dict[str, Any], layer: int, x: Any) -> Any:
    qkv = x @ w[f"{layer}.qkv.weight"].T
    query, key, value = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, gpt.HEADS, -1), (2, 3), (0, 2))
    attended = ops.softmax(query @ key.mT, gpt.SCALE) @ value
    return attended.swapaxes(1, 2).reshape(x.shape) @ w[f"{layer}.projection.weight"].T


class Training:
    """Weights and optimizer; `step` makes one update and returns the loss before it."""

    def __init__(self, weights: gpt.Weights, with_bridge: bool, device: str = "cpu") -> None:
        self.device = jax.devices(device)[0]
        self.weights = jax.device_put(weights, self.device)
        rate = gpt.LEARNING_RATE
        self.optimizer = optax.adamw(
            optax.linear_schedule(rate / gpt.WARM_UP, rate, gpt.WARM_UP - 1),
            eps=gpt.ADAM_EPSILON,
            weight_decay=gpt.WEIGHT_DECAY,
        )
        self.state = self.optimizer.init(self.weights)
        self._value_and_grad = jax.value_and_grad(
            partial(loss, gpt.BridgeOps(bridge.jax) if with_bridge else OwnOps)
        )
        self._update = jax.jit(self._step, donate_argnums=(0, 1))

    def step(self, pieces: np.ndarray, step: int) -> jax.Array:
        pieces = jax.device_put(pieces, self.device)
        self.weights, self.state, value = self._update(
            self.weights, self.state, pieces, np.int32(step)
        )
        return value

    def _step(self, weights: Any, state: Any, pieces: Any, step: Any) -> Any:
        value, gradients = self._value_and_grad(weights, pieces, step)
        updates, state = self.optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value
