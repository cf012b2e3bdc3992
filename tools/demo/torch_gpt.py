"""Trains the small GPT in torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
import bridge.torch.optim
from tools.demo import gpt


class OwnOps:
    """`gpt.BridgeOps` with torch's own ops, and with dropout from torch's own generator."""

    embed, linear = staticmethod(F.embedding), staticmethod(F.linear)

    @staticmethod
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, gpt.EPSILON)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    @staticmethod
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

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

    def __init__(
        self,
        weights: gpt.Weights,
        with_bridge: bool,
        device: str = "cpu",
        steps: int = gpt.STEPS,
    ) -> None:
        torch.manual_seed(gpt.SEED)
        self.ops = BRIDGE if with_bridge else OWN
        self.device = device
        self.weights = {
            name: torch.tensor(value, device=device, requires_grad=True)
            for name, value in weights.items()
        }
        self.tables = tuple(torch.tensor(table, device=device) for table in gpt.angles())
        optimizers = bridge.torch.optim if with_bridge else torch.optim
        self.optimizer = optimizers.AdamW(
            list(self.weights.values()), eps=gpt.ADAM_EPSILON, weight_decay=gpt.WEIGHT_DECAY
        )
        self.rates = gpt.rates(steps)

    def step(self, pieces: np.ndarray | Tensor, step: int) -> Tensor:
        given = torch.as_tensor(pieces, device=self.device)
        value = gpt.loss(self.ops, self.weights, self.tables, given, step)
        self.optimizer.zero_grad()
        value.backward()
        if self.ops is BRIDGE:
            bridge.torch.optim.clip_grad_norm_(self.weights, gpt.MOST_NORM)
        else:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), gpt.MOST_NORM)
        self.optimizer.param_groups[0]["lr"] = float(self.rates[step])
        self.optimizer.step()
        return value.detach()

    def state(self) -> dict[str, Tensor]:
        """Returns both moments of each weight."""
        return {
            f"{name} {moment}": self.optimizer.state[w][key]
            for name, w in self.weights.items()
            for moment, key in (("m", "exp_avg"), ("v", "exp_avg_sq"))
        }
