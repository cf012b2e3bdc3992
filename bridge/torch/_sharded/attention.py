"""Attention of DTensors: each process has its own batches and heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from bridge.ops.splitting import without
from bridge.torch._sharded.rows import of_parts, on_mesh, one_mesh, refuse_plain, with_placements
from bridge.torch._sharded.split import Split


def run(function: str, operands: Sequence[Tensor | None], call: Callable[..., Tensor]) -> DTensor:
    """Returns attention of q, k, v, sinks and mask, of which some are DTensors.

    Batches stay split, and so do heads if their parts have whole key heads. Queries, keys, d and
    other heads are gathered. A plain k, v or mask counts as equal on every process.

    Args:
      function: the name in messages.
      operands: `[..., heads, queries, d]`, `[..., key heads, keys, d]`, `[..., key heads, keys,
        d of v]`, `[..., heads, queries]` or None, `[..., heads, queries, keys]` or None; the mask
        may have sizes of 1.
      call: attention of one process's parts.

    Raises:
      TypeError: q is a plain tensor and another operand a DTensor.
      ValueError: operands are on different meshes, or this process is not in their mesh.
    """
    mesh = one_mesh(function, operands)
    refuse_plain(function, ("q", "k", "v", "sink", "mask"), operands)
    whole: list[Any] = [None if each is None else on_mesh(each, mesh) for each in operands]
    q, k, *_ = whole
    # A part of the key heads comes with the heads that share them.
    space = (*q.shape[:-3], k.shape[-3])
    dims: list[list[int | None]] = [
        []
        if each is None
        else [dim if dim < len(space) and size > 1 else None for dim, size in enumerate(each.shape)]
        for each in whole
    ]
    given = [(each, of) for each, of in zip(whole, dims, strict=True) if each is not None]
    split = Split(space, ((),) * len(space), mesh).like(given)
    split = without(split, [d for d, size in enumerate(space) if not size or size % split.parts(d)])
    parts = [
        None if each is None else with_placements(each, split.placements(of)).to_local()
        for each, of in zip(whole, dims, strict=True)
    ]
    return of_parts(call(parts), mesh, split.placements(dims[0]))
