"""Trains the small GPT in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bridge.jax
import bridge.jax.optim
from tools.demo import gpt


class OwnOps:
    """`gpt.BridgeOps` with JAX's own ops, and with dropout from JAX's own generator."""

    @staticmethod
    def embed(ids: Any, weight: Any) -> Any:
        return weight[ids]

    @staticmethod
    def linear(x: Any, weight: Any) -> Any:
        return x @ weight.T

    @staticmethod
    def norm(x: Any, weight: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + gpt.EPSILON) * weight

    @staticmethod
    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    @staticmethod
    def attend(query: Any, key: Any, value: Any) -> Any:
        moved = (x.swapaxes(1, 2) for x in (query, key, value))
        return jax.nn.dot_product_attention(*moved, is_causal=True).swapaxes(1, 2)

    @staticmethod
    def gate(x: Any) -> Any:
        gate, up = jnp.split(x, 2, -1)
        return jax.nn.silu(gate) * up

    @staticmethod
    def dropout_add(x: Any, residual: Any, draw: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(gpt.SEED), draw)
        keep = jax.random.bernoulli(key, 1.0 - gpt.P_DROP, x.shape)
        return residual + jnp.where(keep, x / (1.0 - gpt.P_DROP), 0.0)

    @staticmethod
    def loss(logits: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


BRIDGE, OWN = gpt.BridgeOps(bridge.jax), OwnOps()


class Training:
    """Weights and optimizer; `step` makes one update and returns the loss before it."""

    def __init__(
        self,
        weights: gpt.Weights,
        with_bridge: bool,
        device: str = "cpu",
        steps: int = gpt.STEPS,
    ) -> None:
        self.device = jax.devices(device)[0]
        self.weights = jax.device_put(weights, self.device)
        self.tables = jax.device_put(gpt.angles(), self.device)
        rates = jax.device_put(gpt.rates(steps), self.device)
        module: Any = bridge.jax.optim if with_bridge else optax
        self.optimizer = optax.chain(
            module.clip_by_global_norm(gpt.MOST_NORM),
            module.adamw(
                lambda count: rates[count], eps=gpt.ADAM_EPSILON, weight_decay=gpt.WEIGHT_DECAY
            ),
        )
        self.optimizer_state = self.optimizer.init(self.weights)
        self._value_and_grad = jax.value_and_grad(partial(gpt.loss, BRIDGE if with_bridge else OWN))
        self._update = jax.jit(self._step, donate_argnums=(0, 1))

    def step(self, pieces: np.ndarray, step: int) -> jax.Array:
        pieces = jax.device_put(pieces, self.device)
        self.weights, self.optimizer_state, value = self._update(
            self.weights, self.optimizer_state, pieces, np.int32(step)
        )
        return value

    def _step(self, weights: Any, state: Any, pieces: Any, step: Any) -> Any:
        value, gradients = self._value_and_grad(weights, self.tables, pieces, step)
        updates, state = self.optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    def state(self) -> dict[str, jax.Array]:
        """Returns both moments of each weight."""
        moments = self.optimizer_state[1]
        moments = moments if hasattr(moments, "mu") else moments[0]
        return {
            f"{name} {moment}": tree[name]
            for name in self.weights
            for moment, tree in (("m", moments.mu), ("v", moments.nu))
        }
