"""Trains the small GPT in torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
from tools.demo import gpt


class OwnOps:
    """`gpt.BridgeOps` with torch's own ops, and with dropout from torch's own generator."""

    @staticmethod
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, gpt.EPSILON)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    @staticmethod
    def softmax(scores: Tensor, scale: float) -> Tensor:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return (scores * scale).masked_fill(hidden, -torch.inf).softmax(-1)

    @staticmethod
    def gate(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def dropout_add(x: Tensor, residual: Tensor, draw: int) -> Tensor:
        return residual + F.dropout(x, gpt.P_DROP)

    @staticmethod
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten().long())


BRIDGE, OWN = gpt.BridgeOps(bridge.torch), OwnOps()


class Training:
    """Weights and optimizer; `step` makes one update and returns the loss before it."""

    def __init__(self, weights: gpt.Weights, with_bridge: bool, device: str = "cpu") -> None:
        torch.manual_seed(gpt.SEED)
        self.ops = BRIDGE if with_bridge else OWN
        self.device = device
        self.weights = {
            name: torch.tensor(value, device=device, requires_grad=True)
            for name, value in weights.items()
        }
        self.tables = tuple(torch.tensor(table, device=device) for table in gpt.angles())
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
        given = torch.from_numpy(pieces).to(self.device)
        value = gpt.loss(self.ops, self.weights, self.tables, given, step)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        self.schedule.step()
        return value.detach()
