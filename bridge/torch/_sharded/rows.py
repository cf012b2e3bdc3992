"""Chunks of rows of DTensors; each process computes with the rows that it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from bridge._private.torch_distributed import replicates_plain_tensors
from bridge.ops.splitting import without
from bridge.torch._sharded.split import Split


def one_mesh(function: str, operands: Sequence[Any]) -> Any:
    """Returns the mesh of the operands that are DTensors.

    Raises:
      ValueError: they are on different meshes, or this process is not in their mesh.
    """
    mesh, *others = [operand.device_mesh for operand in operands if isinstance(operand, DTensor)]
    for other in others:
        if other != mesh:
            raise ValueError(
                f"{function}: operands are DTensors on {mesh} and on {other}, expected one mesh; "
                "call redistribute on one of them"
            )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"{function}: this process (global rank {torch.distributed.get_rank()}) is not in "
            f"{mesh}, on which the operands are"
        )
    return mesh


def refuse_plain(function: str, names: Sequence[str], operands: Sequence[Any]) -> None:
    """Refuses a plain tensor as first operand together with a parameter that is a DTensor.

    Torch's ops do the same. The plain tensor may be equal on all processes. But a parameter that
    FSDP2 shards is a DTensor too, outside of its module's call. Then the plain tensor is this
    process's part of a batch, and all results would be wrong.

    Raises:
      TypeError: unless torch was told that plain tensors are replicated.
    """
    if isinstance(operands[0], DTensor) or replicates_plain_tensors():
        return
    others = zip(names, operands, strict=False)
    other = next(name for name, operand in others if isinstance(operand, DTensor))
    raise TypeError(
        f"{function}: {names[0]} is a plain tensor and {other} a DTensor, expected DTensors; if "
        f"{names[0]} is equal on all processes, DTensor.from_local({names[0]}, mesh, "
        "[Replicate()] * mesh.ndim); a parameter that FSDP2 shards is a plain tensor in its own "
        "module's call"
    )


class _Placed(torch.autograd.Function):
    """A DTensor with other placements; its cotangent gets the old placements.

    The backward passes of torch's `from_local` and `redistribute` cannot be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, x: DTensor, placements: Any) -> Any:
        ctx.set_materialize_grads(False)  # torch would make a plain tensor of zeros
        ctx.placements = tuple(Replicate() if p.is_partial() else p for p in x.placements)
        return x.redistribute(placements=placements)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return None if g is None else with_placements(g, ctx.placements), None


def with_placements(x: Any, placements: Sequence[Any]) -> DTensor:
    """Returns a DTensor with other placements, differentiable to any order."""
    return _Placed.apply(x, tuple(placements))  # type: ignore[no-any-return]


def of_parts(own: Tensor, mesh: Any, placements: Sequence[Any]) -> DTensor:
    """Returns the DTensor that has this part on this process."""
    whole = DTensor.from_local(own, mesh, placements, run_check=False)
    return with_placements(whole, whole.placements)


def on_mesh(tensor: Tensor, mesh: Any) -> DTensor:
    """Returns a DTensor unchanged; a plain tensor counts as equal on every process."""
    if isinstance(tensor, DTensor):
        return tensor
    return of_parts(tensor, mesh, [Replicate()] * mesh.ndim)


def gathered(
    function: str, names: Sequence[str], operands: Sequence[Any], run: Callable[..., Tensor]
) -> DTensor:
    """Returns the result of `run` on whole operands, equal on every process."""
    mesh = one_mesh(function, operands)
    refuse_plain(function, names, operands)
    whole = [Replicate()] * mesh.ndim
    result = run(*(with_placements(on_mesh(each, mesh), whole).to_local() for each in operands))
    return of_parts(result, mesh, whole)


def in_one_dimension(numbers: Any) -> Any:
    """Returns all numbers of a DTensor in one dimension, split as its first dimension is."""
    if numbers.numel() == 0:  # DTensor hangs in a view of an empty array with fewer dimensions
        empty = list(numbers.shape).index(0)
        return numbers.sum([dim for dim in range(numbers.ndim) if dim != empty])
    kept = tuple(p if p.is_shard(0) else Replicate() for p in numbers.placements)
    return with_placements(numbers, kept).reshape(-1)


@dataclass(frozen=True)
class Rows:
    """The rows of `[*rows, features]`, in one dimension.

    In this dimension the rows of a process are adjacent, so their order may differ from the whole
    array's.

    Attributes:
      split: the layout of `[*rows, features]`.
    """

    split: Split

    @staticmethod
    def of(hidden: Tensor, labels: Tensor, mesh: Any) -> Rows:
        """Splits rows as hidden is split, else as labels are; uneven dimensions stay whole."""
        shape = tuple(hidden.shape)
        whole = Split(shape, ((),) * len(shape), mesh)
        given = [(each, range(each.ndim)) for each in (hidden, labels)]
        split = whole.like([pair for pair in given if isinstance(pair[0], DTensor)])
        uneven = [dim for dim, size in enumerate(shape) if size == 0 or size % split.parts(dim)]
        return Rows(without(split, uneven))

    @property
    def parts(self) -> int:
        return math.prod([self.split.parts(dim) for dim in range(len(self.split.shape) - 1)])

    def chunks(self, rows: int, *arrays: Tensor) -> Iterator[tuple[DTensor, ...]]:
        """Yields chunks `[rows, ...]` of arrays `[*rows, ...]`, at least one.

        A chunk has rows of all processes.
        """
        last = len(self.split.shape) - 1
        own = []
        for array in arrays:
            placements = self.split.placements(range(array.ndim))
            local = with_placements(on_mesh(array, self.split.mesh), placements).to_local()
            own.append(local.reshape(math.prod(local.shape[:last]), *local.shape[last:]))
        count = max(rows // self.parts, 1)
        for parts in zip(*[each.split(count) for each in own], strict=True):
            yield tuple(of_parts(part, self.split.mesh, self._placements(part)) for part in parts)

    def joined(self, parts: Sequence[Any]) -> DTensor:
        """Returns numbers `[*rows]` from the numbers of the chunks."""
        own = [with_placements(part, self._placements(part)).to_local() for part in parts]
        rows = len(self.split.shape) - 1
        local = torch.cat(own).reshape([self.split.local(dim) for dim in range(rows)])
        return of_parts(local, self.split.mesh, self.split.placements(range(rows)))

    def _placements(self, part: Tensor) -> tuple[Any, ...]:
        """Returns the placements of an array `[rows, ...]`."""
        last = len(self.split.shape) - 1
        return tuple(
            Replicate() if not placement.is_shard() else Shard(0 if placement.dim < last else 1)
            for placement in self.split.placements(range(last + part.ndim - 1))
        )
