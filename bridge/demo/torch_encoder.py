"""The sentence encoder in torch: BERT (arXiv:1810.04805) with mean pooling (arXiv:1908.10084)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
from bridge.demo.weights import EPSILON, HEADS, LAYERS, Batch, Weights


class Encoder:
    """Sentences to unit vectors.

    Args:
      with_bridge: the linear layer before GELU leaves its bias to `bridge.torch.bias_gelu`;
        otherwise both are torch's own.
    """

    def __init__(self, weights: Weights, with_bridge: bool, device: str = "cpu") -> None:
        self.weights = {name: torch.from_numpy(w).to(device) for name, w in weights.items()}
        self.with_bridge = with_bridge
        self.device = device

    @torch.no_grad()
    def __call__(self, batch: Batch, gelu_inputs: list[Any] | None = None) -> Tensor:
        """Returns `[sentences, 384]`; appends what each GELU is given to `gelu_inputs`."""
        ids = torch.from_numpy(batch.ids).to(self.device)
        mask = torch.from_numpy(batch.mask).to(self.device)
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = self._normalise("embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}."
            attended = self._attention(at + "attention.self.", x, mask)
            attended = self._linear(at + "attention.output.dense", attended)
            x = self._normalise(at + "attention.output.LayerNorm", x + attended)
            inner = self._gelu(at + "intermediate.dense", x, gelu_inputs)
            x = self._normalise(
                at + "output.LayerNorm", x + self._linear(at + "output.dense", inner)
            )
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def _normalise(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)

    def _attention(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        def heads(part: str) -> Tensor:
            return self._linear(name + part, x).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.mT / query.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)

    def _gelu(self, name: str, x: Tensor, gelu_inputs: list[Any] | None) -> Tensor:
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        if gelu_inputs is not None:
            gelu_inputs.append((F.linear(x, weight).numpy(force=True), bias.numpy(force=True)))
        if self.with_bridge:
            return bridge.torch.bias_gelu(F.linear(x, weight), bias, approximate="none")
        return F.gelu(F.linear(x, weight, bias))
