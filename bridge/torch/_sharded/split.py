"""The layout of an array that is split over a DeviceMesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from bridge.ops.splitting import AnySplit


@dataclass(frozen=True)
class Split(AnySplit):
    """For each dimension of an array, the dimensions of a mesh over which it is split.

    Attributes:
      mesh: the DeviceMesh.
    """

    mesh: Any

    def like(self, arrays: Sequence[tuple[Any, Sequence[int | None]]]) -> Split:
        """Takes over, for each mesh dimension, the layout of the first array that it splits.

        Each array comes with a list: for each of its dimensions the dimension of the space, or None
        if the dimension is not one of the space.
        """
        axes: list[tuple[int, ...]] = [()] * len(self.shape)
        for number in range(self.mesh.ndim):
            for array, dims in arrays:
                placement = array.placements[number]
                dim = dims[placement.dim] if type(placement) is Shard else None
                if dim is not None:
                    axes[dim] += (number,)
                    break
        return replace(self, axes=tuple(axes))

    def is_one_group(self, dim: int) -> bool:
        return len(self.axes[dim]) <= 1

    def size(self, axis: int) -> int:
        return self.mesh.size(axis)

    def index(self, dim: int) -> int:
        """Returns the number of this process's part along a dimension."""
        coordinate = self.mesh.get_coordinate()
        index = 0
        for axis in self.axes[dim]:
            index = index * self.mesh.size(axis) + coordinate[axis]
        return index

    def placements(self, dims: Sequence[int | None]) -> tuple[Any, ...]:
        """Returns the placements of an array.

        `dims` has for each of its dimensions the dimension of the split array, or None.
        """
        result: list[Any] = [Replicate()] * self.mesh.ndim
        for own, dim in enumerate(dims):
            for axis in () if dim is None else self.axes[dim]:
                result[axis] = Shard(own)
        return tuple(result)


def placed(operand: Tensor, split: Split, dims: list[int | None]) -> Tensor:
    """Returns this process's part of an operand; a plain tensor counts as equal everywhere."""
    if isinstance(operand, DTensor):
        with torch.no_grad():
            placements = split.placements(dims)
            # Detach here: torch 2.11 would detach the result by an op that DTensors lack.
            whole: Any = operand.detach()
            if whole.placements != placements:
                whole = whole.redistribute(placements=placements)
            return whole.to_local()
    for own, dim in enumerate(dims):
        if dim is not None and split.parts(dim) > 1:
            size = operand.shape[own] // split.parts(dim)  # twice the columns for a packed array
            operand = operand.narrow(own, split.index(dim) * size, size)
    return operand


def spread(result: Tensor, split: Split, dims: list[int | None]) -> DTensor:
    with torch.no_grad():
        return DTensor.from_local(result, split.mesh, split.placements(dims), run_check=False)
