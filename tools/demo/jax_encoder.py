"""The sentence encoder in JAX: BERT (arXiv:1810.04805) with mean pooling (arXiv:1908.10084)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import bridge.jax
from tools.demo.weights import EPSILON, HEADS, LAYERS, SCALE, Batch, Weights


class Encoder:
    """Maps sentences to unit vectors, in one jitted function.

    Args:
      with_bridge: True to use `bridge.jax` for bias-GELU, the masked softmax of attention, and the
        sum of a linear layer's output with its bias and the residual; False for JAX's own ops.
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
            attended = self._attention(w, at + "attention.self.", x, mask)
            attended = self._add(w, at + "attention.output.dense", attended, x)
            x = _normalise(w, at + "attention.output.LayerNorm", attended)
            inner = self._gelu(w, at + "intermediate.dense", x)
            x = _normalise(w, at + "output.LayerNorm", self._add(w, at + "output.dense", inner, x))
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    def _attention(self, w: dict[str, Any], name: str, x: Any, mask: Any) -> Any:
        def heads(part: str) -> Any:
            projected = _linear(w, name + part, x)
            return projected.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores, padding = query @ key.mT, mask[:, None, None, :] == 0
        if self.with_bridge:
            weights = bridge.jax.scaled_masked_softmax(scores, padding, SCALE)
        else:
            weights = jax.nn.softmax(jnp.where(padding, -jnp.inf, scores * SCALE), axis=-1)
        return (weights @ value).swapaxes(1, 2).reshape(x.shape)

    def _add(self, w: dict[str, Any], name: str, x: Any, residual: Any) -> Any:
        x, bias = x @ w[name + ".weight"].T, w[name + ".bias"]
        if self.with_bridge:
            return bridge.jax.bias_dropout_add(x, bias, residual, training=False)
        return residual + (x + bias)

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
