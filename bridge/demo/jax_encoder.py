"""The sentence encoder in JAX: BERT (arXiv:1810.04805) with mean pooling (arXiv:1908.10084)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import bridge.jax
from bridge.demo.weights import EPSILON, HEADS, LAYERS, Batch, Weights


class Encoder:
    """Sentences to unit vectors, in one jitted function.

    Args:
      with_bridge: the linear layer before GELU leaves its bias to `bridge.jax.bias_gelu`;
        otherwise both are JAX's own.
    """

    def __init__(self, weights: Weights, with_bridge: bool, device: str = "cpu") -> None:
        self.device = jax.devices(device)[0]
        self.weights = jax.device_put(weights, self.device)
        self.with_bridge = with_bridge
        self._encode = jax.jit(self._forward)

    def __call__(self, batch: Batch) -> jax.Array:
        """Returns `[sentences, 384]`."""
        ids, mask = jax.device_put((batch.ids, batch.mask), self.device)
        return self._encode(self.weights, ids, mask)

    def _forward(self, w: dict[str, Any], ids: Any, mask: Any) -> Any:
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = _normalise(w, "embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}."
            attended = _attention(w, at + "attention.self.", x, mask)
            attended = _linear(w, at + "attention.output.dense", attended)
            x = _normalise(w, at + "attention.output.LayerNorm", x + attended)
            inner = self._gelu(w, at + "intermediate.dense", x)
            x = _normalise(w, at + "output.LayerNorm", x + _linear(w, at + "output.dense", inner))
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    def _gelu(self, w: dict[str, Any], name: str, x: Any) -> Any:
        if self.with_bridge:
            h = x @ w[name + ".weight"].T
            return bridge.jax.bias_gelu(h, w[name + ".bias"], approximate="none")
        return jax.nn.gelu(_linear(w, name, x), approximate=False)


def _linear(w: dict[str, Any], name: str, x: Any) -> Any:
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def _normalise(w: dict[str, Any], name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return centred / deviation * w[name + ".weight"] + w[name + ".bias"]


def _attention(w: dict[str, Any], name: str, x: Any, mask: Any) -> Any:
    def heads(part: str) -> Any:
        projected = _linear(w, name + part, x)
        return projected.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = jnp.where(mask[:, None, None, :] == 0, -jnp.inf, scores)
    attended = jax.nn.softmax(scores, axis=-1) @ value
    return attended.swapaxes(1, 2).reshape(x.shape)
