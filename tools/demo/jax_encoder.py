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
      with_bridge: True to compute all numbers with `bridge.jax`; False for JAX's own ops.
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
        words = w["embeddings.word_embeddings.weight"]
        x = bridge.jax.embedding(ids, words) if self.with_bridge else words[ids]
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = self._normalise(w, "embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}."
            attended = self._attention(w, at + "attention.self.", x, mask)
            attended = self._add(w, at + "attention.output.dense", attended, x)
            x = self._normalise(w, at + "attention.output.LayerNorm", attended)
            inner = self._gelu(w, at + "intermediate.dense", x)
            x = self._normalise(
                w, at + "output.LayerNorm", self._add(w, at + "output.dense", inner, x)
            )
        if self.with_bridge:  # a unit vector does not change with the length of the mean
            pooled = bridge.jax.matmul(mask[:, None], x)[:, 0]
            return bridge.jax.rms_norm(pooled, eps=0.0) * x.shape[-1] ** -0.5
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    def _product(self, x: Any, weight: Any, bias: Any = None) -> Any:
        if self.with_bridge:
            return bridge.jax.linear(x, weight, bias)
        return x @ weight.T if bias is None else x @ weight.T + bias

    def _linear(self, w: dict[str, Any], name: str, x: Any) -> Any:
        return self._product(x, w[name + ".weight"], w[name + ".bias"])

    def _attention(self, w: dict[str, Any], name: str, x: Any, mask: Any) -> Any:
        def heads(part: str) -> Any:
            projected = self._linear(w, name + part, x)
            return projected.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        padding = mask[:, None, None, :] == 0
        if self.with_bridge:
            attended = bridge.jax.attention(query, key, value, mask=padding, scale=SCALE)
        else:
            scores = jnp.where(padding, -jnp.inf, query @ key.mT * SCALE)
            attended = jax.nn.softmax(scores, axis=-1) @ value
        return attended.swapaxes(1, 2).reshape(x.shape)

    def _add(self, w: dict[str, Any], name: str, x: Any, residual: Any) -> Any:
        x, bias = self._product(x, w[name + ".weight"]), w[name + ".bias"]
        if self.with_bridge:
            return bridge.jax.bias_dropout_add(x, bias, residual, training=False)
        return residual + (x + bias)

    def _gelu(self, w: dict[str, Any], name: str, x: Any) -> Any:
        if self.with_bridge:
            h = self._product(x, w[name + ".weight"])
            return bridge.jax.bias_gelu(h, w[name + ".bias"], approximate="none")
        return jax.nn.gelu(self._linear(w, name, x), approximate=False)

    def _normalise(self, w: dict[str, Any], name: str, x: Any) -> Any:
        weight, bias = w[name + ".weight"], w[name + ".bias"]
        if self.with_bridge:
            return bridge.jax.layer_norm(x, weight, bias, eps=EPSILON)
        centred = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return centred / deviation * weight + bias
