"""The sentence encoder in torch: BERT (arXiv:1810.04805) with mean pooling (arXiv:1908.10084)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
from tools.demo.weights import EPSILON, HEADS, LAYERS, SCALE, Batch, Weights


class Encoder:
    """Maps sentences to unit vectors.

    Args:
      with_bridge: True to compute all numbers with `bridge.torch`; False for torch's own ops.
    """

    def __init__(self, weights: Weights, with_bridge: bool, device: str = "cpu") -> None:
        self.weights = {name: torch.from_numpy(w).to(device) for name, w in weights.items()}
        self.with_bridge = with_bridge
        self.device = device
        self._linear_of = bridge.torch.linear if with_bridge else F.linear

    @torch.no_grad()
    def __call__(self, batch: Batch, inputs: list[Any] | None = None) -> Tensor:
        """Returns `[sentences, 384]`; appends the inputs of each fused op to `inputs`.

        An entry is (name of the op, its arrays in NumPy).
        """
        ids = torch.from_numpy(batch.ids).to(self.device)
        mask = torch.from_numpy(batch.mask).to(self.device)
        w = self.weights
        embedding: Any = bridge.torch.embedding if self.with_bridge else F.embedding
        x = embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = self._normalise("embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}."
            attended = self._attention(at + "attention.self.", x, mask, inputs)
            attended = self._add(at + "attention.output.dense", attended, x, inputs)
            x = self._normalise(at + "attention.output.LayerNorm", attended)
            inner = self._gelu(at + "intermediate.dense", x, inputs)
            inner = self._add(at + "output.dense", inner, x, inputs)
            x = self._normalise(at + "output.LayerNorm", inner)
        if self.with_bridge:  # a unit vector does not change with the length of the mean
            pooled = bridge.torch.matmul(mask[:, None], x)[:, 0]
            return bridge.torch.rms_norm(pooled, eps=0.0) * x.shape[-1] ** -0.5
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return self._linear_of(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def _normalise(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        if self.with_bridge:
            return bridge.torch.layer_norm(x, weight, bias, eps=EPSILON)
        return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)

    def _attention(self, name: str, x: Tensor, mask: Tensor, inputs: list[Any] | None) -> Tensor:
        def heads(part: str) -> Tensor:
            return self._linear(name + part, x).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        padding = mask[:, None, None, :] == 0
        if self.with_bridge:
            attended = bridge.torch.attention(query, key, value, mask=padding, scale=SCALE)
        else:
            scores = query @ key.mT
            _record(inputs, "softmax", scores, padding)
            attended = (scores * SCALE).masked_fill(padding, -torch.inf).softmax(-1) @ value
        return attended.transpose(1, 2).flatten(2)

    def _add(self, name: str, x: Tensor, residual: Tensor, inputs: list[Any] | None) -> Tensor:
        x, bias = self._linear_of(x, self.weights[name + ".weight"]), self.weights[name + ".bias"]
        _record(inputs, "bias_dropout_add", x, bias, residual)
        if self.with_bridge:
            return bridge.torch.bias_dropout_add(x, bias, residual, training=False)
        return residual + (x + bias)

    def _gelu(self, name: str, x: Tensor, inputs: list[Any] | None) -> Tensor:
        x, bias = self._linear_of(x, self.weights[name + ".weight"]), self.weights[name + ".bias"]
        _record(inputs, "bias_gelu", x, bias)
        if self.with_bridge:
            return bridge.torch.bias_gelu(x, bias, approximate="none")
        return F.gelu(x + bias)


def _record(inputs: list[Any] | None, op: str, *tensors: Tensor) -> None:
    if inputs is not None:
        inputs.append((op, tuple(tensor.numpy(force=True) for tensor in tensors)))
