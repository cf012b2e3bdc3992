"""The losses of DPO that `preference_loss` does not have."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


def dpo_losses(
    kind: str, c: Tensor, r: Tensor, beta: float, smoothing: float, tau: float
) -> Tensor:
    """Returns the losses of pairs, of the log-ratios c and r of chosen and rejected answers."""
    z, ours, theirs = beta * (c - r), beta * c, beta * r
    forms: dict[str, Callable[[], Tensor]] = {
        "hinge": lambda: torch.relu(1 - z),
        "exo_pair": lambda: (
            torch.sigmoid(z) * (logsigmoid(z) - math.log1p(-smoothing))
            + torch.sigmoid(-z) * (logsigmoid(-z) - math.log(smoothing))
        ),
        "nca_pair": lambda: softplus(-ours) + 0.5 * softplus(ours) + 0.5 * softplus(theirs),
        "robust": lambda: (
            ((1 - smoothing) * softplus(-z) - smoothing * softplus(z)) / (1 - 2 * smoothing)
        ),
        "bco_pair": lambda: softplus(-ours) + softplus(theirs),
        "sppo_hard": lambda: (c - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2,
        "apo_zero": lambda: torch.sigmoid(-ours) + torch.sigmoid(theirs),
        "apo_down": lambda: torch.sigmoid(ours) + torch.sigmoid(-z),
        "discopop": lambda: (
            softplus(-z) * torch.sigmoid(-z / tau) + torch.exp(-z) * torch.sigmoid(z / tau)
        ),
    }
    return forms[kind]()


_DPO_KINDS: tuple[str, ...] = (
    "sigmoid",
    "hinge",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
)
_DPO_KINDS += ("apo_zero", "apo_down", "discopop")


def check_dpo(kind: str, smoothing: float) -> None:
    if kind not in _DPO_KINDS:
        raise ValueError(
            f"Unsupported loss_type: {kind}. Supported types are: {', '.join(_DPO_KINDS)}"
        )
    if kind == "exo_pair" and smoothing <= 0:
        raise ValueError("label_smoothing must be > 0 for loss_type='exo_pair'")
    if kind == "robust" and not 0 <= smoothing < 0.5:
        raise ValueError(
            f"label_smoothing must lie in [0.0, 0.5) for loss_type='robust'. Got {smoothing}."
        )
