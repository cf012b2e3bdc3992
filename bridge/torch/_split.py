"""How an array is split over a device mesh, and which splits of its dimensions a call can keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.tensor import Replicate, Shard

from bridge.ops import Role


@dataclass(frozen=True)
class Split:
    """Over which dimensions of a mesh each dimension of an array is split, the first one slowest.

    Attributes:
      mesh: the DeviceMesh.
      shape: of the whole array.
      axes: for each dimension of the array, dimensions of the mesh.
    """

    mesh: Any
    shape: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

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
        return cls(mesh, shape, tuple(axes))

    def parts(self, dim: int) -> int:
        return math.prod(self.mesh.size(axis) for axis in self.axes[dim])

    def local(self, dim: int) -> int:
        return self.shape[dim] // self.parts(dim)

    def index(self, dim: int) -> int:
        """The number of this process's part along a dimension."""
        coordinate = self.mesh.get_coordinate()
        index = 0
        for axis in self.axes[dim]:
            index = index * self.mesh.size(axis) + coordinate[axis]
        return index

    def without(self, dims: set[int]) -> Split:
        """The same, but whole along these dimensions."""
        axes = tuple(() if dim in dims else own for dim, own in enumerate(self.axes))
        return replace(self, axes=axes)

    def placements(self, dims: Sequence[int | None]) -> tuple[Any, ...]:
        """Of an array whose dimensions are these of the split one; None for one of its own."""
        result: list[Any] = [Replicate()] * self.mesh.ndim
        for own, dim in enumerate(dims):
            for axis in () if dim is None else self.axes[dim]:
                result[axis] = Shard(own)
        return tuple(result)


def is_indexed(params: Any) -> bool:
    """Whether a call counts the elements of the array: dropout does."""
    return getattr(params, "threshold", 0) > 0


def has_sums(params: Any) -> bool:
    """Whether a call adds up the rows."""
    return getattr(params, "row", None) is not None


def row_dims(split: Split, params: Any) -> range:
    return range(params.batch_ndim, len(split.shape) - 1)


def supported(op: Any, params: Any, operands: int, split: Split) -> Split:
    """The part of a split that a call of so many operands can keep; the rest is gathered."""
    ndim = len(split.shape)
    whole: set[int] = set()
    if ndim <= params.batch_ndim:  # a batch of numbers
        whole.update(range(ndim))
    fixed = op.fixed_ndim(params)
    if fixed:
        whole.add(ndim - 1)  # the dimension that is summed over
    if fixed > 1 and operands > 2:
        whole.add(ndim - 2)  # the causal rule tells queries apart: see `_shards.py`
    for dim, size in enumerate(split.shape):
        if size == 0 or size % split.parts(dim):
            whole.add(dim)
    return split.without(whole)


def dims_of(role: Role, shape: Sequence[int], split: Split, batch_ndim: int) -> list[int | None]:
    """Which dimensions of the split array those of an operand or a result are."""
    ndim = len(split.shape)
    if role is Role.FULL:
        return list(range(ndim))
    if role is Role.ROW:
        return [*range(batch_ndim), ndim - 1]
    if role is Role.INTEGER:
        return list(range(batch_ndim))
    first = ndim - len(shape)
    return [
        first + i if size == split.shape[first + i] and size > 1 else None
        for i, size in enumerate(shape)
    ]
