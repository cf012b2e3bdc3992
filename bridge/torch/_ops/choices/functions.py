"""Functions of tensors for mixtures of experts; `bridge.catalogue.choices.experts` describes them.

bridge/jax/_ops/choices/functions.py has the same for JAX.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.ops.selection import Selection
from bridge.torch._adapter.embeddings import rows_of
from bridge.torch._adapter.selections import columns_of
from bridge.torch._ops.log_probs import logsumexp
from bridge.torch._ops.products import matmul
from bridge.torch._ops.softmax import scaled_softmax

__all__ = [
    "chosen",
    "column_sums",
    "constant",
    "counts",
    "logsumexp",
    "moved",
    "repeated",
    "softmax",
    "sorted_by_expert",
    "taken",
    "weighted_sums",
]


def softmax(x: Tensor) -> Tensor:
    return scaled_softmax(x)


def constant(x: Tensor) -> Tensor:
    return x.detach()


def chosen(x: Tensor, k: int) -> Tensor:
    return columns_of(x, None, Selection(k))


def taken(x: Tensor, columns: Tensor) -> Tensor:
    return x.gather(-1, columns)


def column_sums(x: Tensor) -> Tensor:
    return matmul(x.new_ones(x.shape[0]), x, bits="portable")


def counts(columns: Tensor, experts: int) -> Tensor:
    flat = columns.reshape(-1).long()
    is_expert = (flat >= 0) & (flat < experts)
    number = torch.where(is_expert, flat, experts)
    zeros = torch.zeros(experts + 1, dtype=torch.int64, device=columns.device)
    return zeros.scatter_add(0, number, torch.ones_like(number))[:experts]


def sorted_by_expert(columns: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    numbers = columns.long()
    numbers = torch.where((numbers >= 0) & (numbers < experts), numbers, experts)
    order = torch.sort(numbers, stable=True)[1]
    return order, torch.sort(order)[1]


def repeated(x: Tensor, k: int) -> Tensor:
    token = torch.arange(x.shape[0], device=x.device)[:, None].expand(-1, k).reshape(1, -1)
    return rows_of(x[None], token)[0]


def moved(x: Tensor, order: Tensor) -> Tensor:
    number = order if order.dtype in (torch.int32, torch.int64) else order.long()
    return rows_of(x[None], number[None])[0]


def weighted_sums(weights: Any, y: Tensor) -> Tensor:
    if weights is None:
        weights = y.new_ones(y.shape[:2])
    return matmul(weights[:, None, :], y, bits="portable")[:, 0]
