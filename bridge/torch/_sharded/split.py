"""How an array is split over a DeviceMesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import Replicate, Shard

from bridge.ops.splitting import AnySplit


@dataclass(frozen=True)
class Split(AnySplit):
    """Over which dimensions of a mesh each dimension of an array is split.

    Attributes:
      mesh: the DeviceMesh.
    """

    mesh: Any

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> Split:
        """As the first of the DTensors, all of one shape, that a mesh dimension splits."""
        mesh, shape = arrays[0].device_mesh, tuple(arrays[0].shape)
        axes: list[tuple[int, ...]] = [()] * len(shape)
        for number in range(mesh.ndim):
            for array in arrays:
                placement = array.placements[number]
                if type(placement) is Shard:
                    axes[placement.dim] += (number,)
                    break
        return cls(shape, tuple(axes), mesh)

    def size(self, axis: int) -> int:
        return self.mesh.size(axis)

    def index(self, dim: int) -> int:
        """The number of this process's part along a dimension."""
        coordinate = self.mesh.get_coordinate()
        index = 0
        for axis in self.axes[dim]:
            index = index * self.mesh.size(axis) + coordinate[axis]
        return index

    def placements(self, dims: Sequence[int | None]) -> tuple[Any, ...]:
        """Of an array whose dimensions are these of the split one; None for one of its own."""
        result: list[Any] = [Replicate()] * self.mesh.ndim
        for own, dim in enumerate(dims):
            for axis in () if dim is None else self.axes[dim]:
                result[axis] = Shard(own)
        return tuple(result)
