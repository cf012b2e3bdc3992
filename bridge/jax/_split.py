"""How an array is split over mesh axes, and which splits of its dimensions a call can keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax import lax
from jax.sharding import PartitionSpec

from bridge.ops import Role

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """The mesh axes over which each dimension of an array is split, the first one slowest.

    Attributes:
      shape: of the whole array.
      axes: for each dimension, names of mesh axes.
      sizes: names and sizes of the mesh axes.
    """

    shape: tuple[int, ...]
    axes: tuple[Axes, ...]
    sizes: tuple[tuple[str, int], ...]

    def parts(self, dim: int) -> int:
        sizes = dict(self.sizes)
        return math.prod(sizes[name] for name in self.axes[dim])

    def local(self, dim: int) -> int:
        return self.shape[dim] // self.parts(dim)

    @property
    def shards(self) -> int:
        return math.prod(map(self.parts, range(len(self.shape))))

    def index(self, dim: int) -> Any:
        """The number of this shard along a dimension; inside of the mapped function."""
        return lax.axis_index(self.axes[dim]) if self.axes[dim] else 0

    def without(self, dims: Any) -> Split:
        """The same, but whole along these dimensions."""
        axes = tuple(() if dim in dims else own for dim, own in enumerate(self.axes))
        return replace(self, axes=axes)

    def spec(self, dims: Sequence[int | None]) -> PartitionSpec:
        """Of an array whose dimensions are these of the split one; None for one of its own."""
        return PartitionSpec(
            *(None if dim is None else self.axes[dim] or None for dim in dims),
        )


def is_indexed(params: Any) -> bool:
    """Whether a call counts the elements of the array: dropout does."""
    return getattr(params, "threshold", 0) > 0


def has_sums(params: Any) -> bool:
    """Whether a call adds up the rows."""
    return getattr(params, "row", None) is not None


def row_dims(split: Split, params: Any) -> range:
    return range(params.batch_ndim, len(split.shape) - 1)


def supported(op: Any, params: Any, operands: int, split: Split, *, alone: bool) -> Split:
    """The part of a split that a call of so many operands can keep; the rest is gathered.

    `alone`: shards can neither tell their number nor talk.
    """
    ndim = len(split.shape)
    whole: set[int] = set()
    if ndim <= params.batch_ndim:  # a batch of numbers
        whole.update(range(ndim))
    fixed = op.fixed_ndim(params)
    if fixed:
        whole.add(ndim - 1)  # the dimension that is summed over
    if fixed > 1 and (alone or operands > 2):
        whole.add(ndim - 2)  # the causal rule tells queries apart: see `_shards.py`
    if alone and (is_indexed(params) or has_sums(params)):
        whole.update(row_dims(split, params))
    if alone and is_indexed(params):
        whole.add(ndim - 1)
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
        return [*range(batch_ndim), None]
    first = ndim - len(shape)
    return [
        first + i if size == split.shape[first + i] and size > 1 else None
        for i, size in enumerate(shape)
    ]
