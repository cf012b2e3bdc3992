"""Training the small GPT in torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
from tools.demo import gpt


class OwnOps:
    """What `gpt.BridgeOps` does, in torch's own ops, with dropout from torch's own generator."""

    @staticmethod
    def softmax(scores: Tensor, scale: float) -> Tensor:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return (scores * scale).masked_fill(hidden, -torch.inf).softmax(-1)

    @staticmethod
    def gelu(x: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(x + bias, approximate="tanh")

    @staticmethod
    def dropout_add(x: Tensor, bias: Tensor, residual: Tensor, step: int, site: int) -> Tensor:
        return residual + F.dropout(x + bias, gpt.P_DROP)


def loss(ops: Any, w: dict[str, Tensor], pieces: Tensor, step: int) -> Tensor:
    """Mean cross-entropy, in nats, of each next character of `pieces` `[batch, length + 1]`."""
    normalise, attention = partial(_normalise, w), partial(_attention, ops, w)
    logits = gpt.logits(ops, normalise, attention, w, pieces, step)
    return F.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten().long())


def _normalise(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias = w[f"{name}.norm.weight"], w[f"{name}.norm.bias"]
    return F.layer_norm(x, x.shape[-1:], weight, bias, gpt.EPSILON)


def _attention(ops: Any, w: dict[str, Tensor], layer: int, x: Tensor) -> Tensor:
    qkv = x @ w[f"{layer}.qkv.weight"].T
    query, key, value = qkv.unflatten(-1, (3, gpt.HEADS, -1)).permute(2, 0, 3, 1, 4)
    attended = ops.softmax(query @ key.mT, gpt.SCALE) @ value
    return attended.transpose(1, 2).flatten(2) @ w[f"{layer}.projection.weight"].T


class Training:
    """Weights and optimizer; `step` makes one update and returns the loss before it."""

    def __init__(self, weights: gpt.Weights, with_bridge: bool, device: str = "cpu") -> None:
        torch.manual_seed(gpt.SEED)
        self.ops = gpt.BridgeOps(bridge.torch) if with_bridge else OwnOps
        self.device = device
        self.weights = {
            name: torch.tensor(value, device=device, requires_grad=True)
            for name, value in weights.items()
        }
        self.optimizer = torch.optim.AdamW(
            self.weights.values(),
            lr=gpt.LEARNING_RATE,
            eps=gpt.ADAM_EPSILON,
            weight_decay=gpt.WEIGHT_DECAY,
        )
        self.schedule = torch.optim.lr_scheduler.LinearLR(
            self.optimizer, 1 / gpt.WARM_UP, total_iters=gpt.WARM_UP - 1
        )

    def step(self, pieces: np.ndarray, step: int) -> Tensor:
        value = loss(self.ops, self.weights, torch.from_numpy(pieces).to(self.device), step)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        self.schedule.step()
        return value.detach()
