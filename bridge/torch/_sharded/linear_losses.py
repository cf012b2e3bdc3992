"""Losses of a linear layer's results on DTensors, computed for a few rows at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bridge.ops.linear_losses import chunk_rows
from bridge.torch._adapter.linear_losses import LinearLosses
from bridge.torch._sharded.rows import Rows, on_mesh, one_mesh, refuse_plain


def of_dtensors(
    loss: LinearLosses, operands: tuple[Any, ...], chunk: int | None, options: Any
) -> Tensor:
    """Computes the loss of DTensors: a chunk has rows of every process, which stay there."""
    mesh = one_mesh(loss.name, operands)
    refuse_plain(loss.name, ("hidden", "weight", "labels", "bias"), operands)
    hidden, weight, labels, bias = operands
    rows = Rows.of(hidden, labels, mesh)
    weight, bias = on_mesh(weight, mesh), None if bias is None else on_mesh(bias, mesh)
    count = chunk_rows(chunk, labels.numel(), *reversed(weight.shape))
    found = loss.recomputed(rows.chunks(count, hidden, labels), weight, bias, options)
    losses = [rows.joined(parts) for parts in zip(*found, strict=True)]
    return loss.losses.reduced(options.reduction, *losses)  # type: ignore[no-any-return]
