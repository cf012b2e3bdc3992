"""Log-probabilities and statistics that Liger-Kernel's chunked losses share."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bridge.torch._ops.post_training.linear_numbers import linear_token_log_probs

Results = tuple[Tensor, tuple[Tensor, ...]]


def of_tokens(x: Tensor, weight: Tensor, labels: Tensor, bias: Any, ignored: int) -> Any:
    """Returns the log-probability of each token, 0 for ignored ones, and the mask of the others."""
    mask = labels != ignored
    found, _ = linear_token_log_probs(x, weight, torch.where(mask, labels, 0), bias=bias)
    return torch.where(mask, found, 0.0), mask


def of_sequences(
    x: Tensor, weight: Tensor, labels: Tensor, bias: Any, ignored: int, average: bool
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each sequence, and the sum over all tokens of each."""
    tokens, mask = of_tokens(x, weight, labels, bias, ignored)
    total = tokens.sum(-1)
    return (total / mask.sum(-1) if average else total), total


def sum_of_logits(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> Tensor:
    """Returns the sum over all logits of `[..., features]`, without a gradient and without logits.

    Args:
      rows: weights of the leading dimension of x, or None.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        of_rows = x.flatten(1, -2).sum(1, dtype=wide)
        kept = of_rows.new_ones(len(of_rows)) if rows is None else rows.to(wide)
        total = (kept @ of_rows) @ weight.sum(0, dtype=wide)
        if bias is not None:
            total = total + kept.sum() * math.prod(x.shape[1:-1]) * bias.sum(dtype=wide)
        return total


class Preferences:
    """The common part: log-probabilities of pairs, the likelihood and the statistics."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        ignore_index: int,
        average: bool,
        nll_target: Tensor | None = None,
    ) -> None:
        self.pairs = pairs = target.shape[0] // 2
        found, totals = of_sequences(x, weight, target, bias, ignore_index, average)
        self.chosen, self.rejected = found[:pairs], found[pairs:]
        if nll_target is None:
            total, labels = totals[:pairs].sum(), target[:pairs]
        else:
            labels = nll_target[:pairs]
            total = of_tokens(x[:pairs], weight, labels, bias, ignore_index)[0].sum()
        self._nll = -total / (labels != ignore_index).sum()
        count = max(pairs * target.shape[1] * weight.shape[0], 1)
        self._means = [
            sum_of_logits(half, weight, bias, None) / count for half in (x[:pairs], x[pairs:])
        ]

    def results(
        self, loss: Tensor, alpha: float, with_nll: bool, beta: float, *more: Tensor, **ref: Any
    ) -> Results:
        nll = self._nll if with_nll else torch.zeros_like(loss)
        halves = [self.chosen, self.rejected]
        ratios = [
            x if r is None else x - r
            for x, r in zip(halves, ref.get("ref", (None,) * 2), strict=True)
        ]
        rewards = [beta * each for each in ratios]
        shown = (*halves, *self._means, nll, *rewards, *more)
        loss = loss + alpha * nll if with_nll else loss
        return loss, tuple([each.detach() for each in shown])
