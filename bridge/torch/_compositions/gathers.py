"""Gathers along a dimension of tensors, for compositions (`bridge.catalogue.vision.taps`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def cast(x: Tensor, dtype: str) -> Tensor:
    return x.to(getattr(torch, dtype))


def taken(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return x.index_select(dim, index.clamp(min=0))


def taken_apart(x: Tensor, chosen: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = chosen.shape[dim]
    return x.gather(dim, chosen.expand(shape).long().clamp(min=0))


def entries(rows: Tensor, row: Tensor, inner: bool) -> Tensor:
    column = torch.arange(rows.shape[1], device=rows.device)
    return rows[row.long(), column[:, None] if inner else column]


def where_own(x: Tensor, which: Tensor, outputs: Tensor, dim: int) -> Tensor:
    ones = [1] * (x.ndim - dim - 1)
    place = torch.arange(x.shape[dim], device=x.device).reshape(-1, *ones)
    is_own = (which == place) & (outputs >= 0).reshape(-1, *ones)
    return torch.where(is_own, x, x.new_full((), -0.0))


def table(numbers: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)
