"""Choices of columns on arrays that are split over devices outside `shard_map`.

A split of the rows stays, and nothing is communicated; columns are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bridge._private.jax import assignment_of, partitions_of
from bridge.jax._sharded.partitioning import FREE_MESH, mesh_of, parts_by_device, split_of_parts
from bridge.jax._sharded.split import Split


@dataclass(frozen=True)
class SelectionSite:
    """A choice of columns in a program.

    Attributes:
      bind: bind(x, *words) is the call on whole arrays, or on those of one shard.
      shape: of x.
      operands: the number of operands, all with the same rows.
      x64: the setting of JAX; XLA asks for the program of a shard in another thread.
    """

    bind: Callable[..., Any]
    shape: tuple[int, ...]
    operands: int
    x64: bool

    def run(self, *operands: Any) -> Any:
        with jax.enable_x64(self.x64):
            return self.bind(*operands)

    def rule(self) -> SdyShardingRule:
        """Returns the rule by which XLA may carry a split from one array to another."""
        rows = [f"d{dim}" for dim in range(len(self.shape) - 1)]
        arrays = [ArrayMapping(*rows, f"own{i}") for i in range(self.operands + 1)]
        return SdyShardingRule(tuple(arrays[:-1]), (arrays[-1],))


def axes_of_rows(x: Any) -> tuple[Any, ...]:
    """Returns the mesh axes of the dimensions of x but the last, from its type."""
    axes = (*partitions_of(x.sharding.spec), *(None,) * x.ndim)
    return axes[: x.ndim - 1]


def on_automatic_axes(site: SelectionSite, *operands: Any, alone: bool = False) -> Any:
    """The call where XLA decides the split of its arrays."""

    @custom_partitioning
    def whole(*operands: Any) -> Any:
        return site.run(*operands)

    whole.def_partition(
        partial(_partition, site),
        infer_sharding_from_operands=partial(_infer, site),
        sharding_rule=site.rule(),
        decode_shardings=False,  # its decoder fails on some shardings
    )
    return whole(*operands)


def _partition(site: SelectionSite, mesh: Any, arguments: Any, result: Any) -> Any:
    split, own = _agreed(site, [*arguments, result])
    each = NamedSharding(own, split.spec([*range(len(site.shape) - 1), None]))
    return own, partial(_on_one_device, site), each, (each,) * site.operands


def _on_one_device(site: SelectionSite, *operands: Any) -> Any:
    with jax.sharding.use_abstract_mesh(FREE_MESH):
        return site.run(*operands)


def _infer(site: SelectionSite, mesh: Any, arguments: Any, result: Any) -> Any:
    split, own = _agreed(site, arguments)
    return NamedSharding(own, split.spec([*range(len(site.shape) - 1), None]))


def _agreed(site: SelectionSite, arrays: Sequence[Any]) -> tuple[Split, Mesh]:
    """Chooses the finest split of the rows among the arrays."""
    last = len(site.shape) - 1
    found = Split(site.shape, ((),) * (last + 1), ())
    known = [array for array in arrays if array.sharding is not None]
    for array in known:
        part = parts_by_device(array.shape, assignment_of(array))
        if part is None:
            continue
        part[last] = 0
        split = split_of_parts(site.shape, part)
        if split.shards > found.shards:
            found = split
    return found, mesh_of(known[0].sharding.device_set, found)


def on_explicit_axes(site: SelectionSite, *operands: Any) -> Any:
    """The call under a mesh with explicit axes; the type of x decides the split."""
    x = jax.typeof(operands[0])
    mesh, rows = x.sharding.mesh, axes_of_rows(x)
    spec = PartitionSpec(*rows, None)
    placed = [jax.sharding.reshard(each, NamedSharding(mesh, spec)) for each in operands]
    return jax.shard_map(
        site.run,
        mesh=mesh,
        in_specs=(spec,) * len(placed),
        out_specs=spec,
        axis_names=frozenset(mesh.axis_names),
        check_vma=False,
    )(*placed)
