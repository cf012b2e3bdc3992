"""Choices of columns of DTensors: each process chooses for the rows that it has."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from bridge.ops.splitting import without
from bridge.torch._adapter.dispatcher import library
from bridge.torch._sharded.rows import one_mesh, refuse_plain
from bridge.torch._sharded.split import Split, placed, spread


def run(x: Any, words: Any, *numbers: Any) -> DTensor:
    """Returns the columns; rows that are split over processes stay so, whole rows are gathered."""
    operands = [x] if words is None else [x, words]
    mesh = one_mesh("selection", operands)
    refuse_plain("selection", ("x", "words"), operands)
    shape = tuple(x.shape)
    dims: list[int | None] = [*range(len(shape) - 1), None]
    split = Split(shape, ((),) * len(shape), mesh).like([(x, dims)])
    uneven = [dim for dim, size in enumerate(shape) if size == 0 or size % split.parts(dim)]
    split = without(split, uneven)
    own = [placed(operand, split, dims) for operand in operands]
    if words is None:
        own.append(None)  # type: ignore[arg-type]
    with torch.no_grad():
        return spread(torch.ops.bridge.selection.default(*own, *numbers), split, dims)


def register_selections() -> None:
    """Gives the dispatcher's op a rule for DTensor, below autograd."""

    def rule(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(*args, **(kwargs or {}))

    overload = torch.ops.bridge.selection.default
    torch.library.register_torch_dispatch(overload, DTensor, rule, lib=library)
