"""Softmax of attention scores as torch composes it in float64: what the fused ones are held to."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax64(x: Tensor, hidden: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(scale·x) over what is not hidden, 0 elsewhere; differentiable, in float64.

    A row with everything hidden is 0.
    """
    z = x.double()
    if scale is not None:
        z = z * scale
    if hidden is None:
        return z.softmax(-1)
    hidden = hidden.bool().expand(z.shape)
    nothing = hidden.all(-1, keepdim=True)
    z = z.masked_fill(hidden, -torch.inf).masked_fill(nothing, 0.0)
    return z.softmax(-1).masked_fill(hidden, 0.0)


def above_diagonal(queries: int, keys: int) -> Tensor:
    """True where key j is hidden from query i: j > i + (keys − queries)."""
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


def outside_window(queries: int, keys: int, left: int, right: int) -> Tensor:
    """True where a key is more than `left` before or `right` behind the query's own place."""
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    return (distance < -left) | (distance > right)
