"""The split of an array over mesh axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from bridge._private.jax import partitions_of
from bridge.ops import Role
from bridge.ops.splitting import AnySplit


@dataclass(frozen=True)
class Split(AnySplit):
    """The names of the mesh axes that split each dimension of an array.

    Attributes:
      sizes: names and sizes of the mesh axes.
    """

    sizes: tuple[tuple[str, int], ...]

    def size(self, axis: str) -> int:
        return dict(self.sizes)[axis]

    @property
    def shards(self) -> int:
        return math.prod(map(self.parts, range(len(self.shape))))

    def index(self, dim: int) -> Any:
        """Returns the index of this shard along a dimension; call it inside the mapped function."""
        return lax.axis_index(self.axes[dim]) if self.axes[dim] else 0

    def in_order_of_mesh(self, dim: int) -> tuple[tuple[str, ...], list[int]]:
        """Returns the axes of a dimension in mesh order, and the number of each part along them.

        `lax.ppermute` numbers devices in mesh order, whatever order of axes it is given.
        """
        own = self.axes[dim]
        axes = tuple(name for name, _ in self.sizes if name in own)
        number = np.arange(self.parts(dim)).reshape([self.size(axis) for axis in axes])
        return axes, number.transpose([axes.index(axis) for axis in own]).ravel().tolist()

    def spec(self, dims: Sequence[int | None]) -> PartitionSpec:
        """Returns the spec of an array with these dimensions of this split; None for its own."""
        return PartitionSpec(
            *(None if dim is None else self.axes[dim] or None for dim in dims),
        )


def axes_of_space(like: Any, role: Role) -> tuple[Any, ...]:
    """Returns the mesh axes that split each dimension of the space, from an array that fills it."""
    axes = partitions_of(like.sharding.spec)
    axes += (None,) * (len(like.shape) - len(axes))
    if not role.is_double:
        return axes
    names = axes[-1] if isinstance(axes[-1], tuple) else (axes[-1],) if axes[-1] else ()
    parts = math.prod([like.sharding.mesh.shape[name] for name in names])
    # Columns stay whole if shards would share a column, which is two numbers of the array.
    return axes if like.shape[-1] // 2 % parts == 0 else (*axes[:-1], None)
