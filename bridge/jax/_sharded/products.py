"""Matrix products on arrays that are split over devices outside `shard_map`.

`bridge.ops.product_splits` says which splits stay; any other split is gathered.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding

from bridge._private.jax import assignment_of, partitions_of
from bridge.jax._sharded.partitioning import FREE_MESH, mesh_of, parts_by_device, split_of_parts
from bridge.jax._sharded.split import Split
from bridge.ops.product import ProductParams, Shape
from bridge.ops.product_splits import Arrays, added, dims_of, own_params, space_of, supported


class Site(Protocol):
    """A call in a program whose arrays XLA splits."""

    @property
    def space(self) -> Shape:
        """The dimensions of the call, among which the split is agreed."""

    def dims(self) -> list[list[int | None]]:
        """Maps the dimensions of all operands and of the result to the space."""

    def supported(self, split: Split, *, alone: bool) -> Split:
        """Returns the part of a split that devices can keep; `alone`: without communication."""

    def rule(self) -> SdyShardingRule:
        """Returns the rule by which XLA may carry a split from one array to another."""

    def on_shard(self, split: Split | None, *operands: Any) -> Any:
        """Returns the result of one shard, or of the whole call if split is None."""


@dataclass(frozen=True)
class ProductSite:
    """A product in a program.

    Attributes:
      arrays: functions of JAX, among them the product of whole arrays.
      params: of the product.
      shapes, dtypes: of a, b and perhaps the bias.
      x64: the setting of JAX; XLA asks for the program of a shard in another thread.
    """

    arrays: Arrays
    params: ProductParams
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    x64: bool

    @property
    def space(self) -> Shape:
        return space_of(self.shapes, self.params)

    def dims(self) -> list[list[int | None]]:
        return dims_of(self.shapes, self.params)

    def supported(self, split: Split, *, alone: bool) -> Split:
        return supported(split, alone=alone)

    def rule(self) -> SdyShardingRule:
        """Returns the rule by which XLA may carry a split from one array to another."""
        fresh = (f"own{i}" for i in itertools.count())
        *operands, result = (
            ArrayMapping(*(next(fresh) if dim is None else f"d{dim}" for dim in dims))
            for dims in self.dims()
        )
        return SdyShardingRule(tuple(operands), (result,))

    def on_shard(self, split: Split | None, *operands: Any) -> Any:
        """Returns the result of one shard, or of the whole call if split is None."""
        a, b, *rest = operands
        bias = rest[0] if rest else None
        with jax.enable_x64(self.x64):
            if split is None or split.parts(len(split.shape) - 1) == 1:
                return self.arrays.product(a, b, bias, self.params)
            own = own_params(self.params, self.dtypes)
            sums = _gathered(self.arrays.product(a, b, None, own), split.axes[-1])
            return added(self.arrays, sums, bias, self.params.dtype, own.dtype)


def _gathered(own: Any, axes: tuple[str, ...]) -> Any:
    """Returns `[parts, ...]`; the bits travel as integers, which no conversion changes."""
    words = np.uint64 if own.dtype.itemsize == 8 else np.uint32
    bits = lax.all_gather(lax.bitcast_convert_type(own, words), axes)
    return lax.bitcast_convert_type(bits, own.dtype)


def on_automatic_axes(site: Site, *operands: Any, alone: bool = False) -> Any:
    """The call where XLA decides the split of its arrays."""

    @custom_partitioning
    def whole(*operands: Any) -> Any:
        return site.on_shard(None, *operands)

    whole.def_partition(
        partial(_partition, site, alone),
        infer_sharding_from_operands=partial(_infer, site, alone),
        sharding_rule=site.rule(),
        decode_shardings=False,
    )
    return whole(*operands)


def _partition(site: Site, alone: bool, mesh: Any, arguments: Any, result: Any) -> Any:
    split, own = _agreed(site, alone, [*arguments, result])
    *operands, output = (NamedSharding(own, split.spec(dims)) for dims in site.dims())
    return own, partial(_on_one_device, site, split), output, tuple(operands)


def _on_one_device(site: Site, split: Split, *operands: Any) -> Any:
    with jax.sharding.use_abstract_mesh(FREE_MESH):
        return site.on_shard(split, *operands)


def _infer(site: Site, alone: bool, mesh: Any, arguments: Any, result: Any) -> Any:
    split, own = _agreed(site, alone, arguments)
    return NamedSharding(own, split.spec(site.dims()[-1]))


def _agreed(site: Site, alone: bool, arrays: Sequence[Any]) -> tuple[Split, Mesh]:
    """Chooses one split of the space from the splits of its arrays, the result's first."""
    space = site.space
    whole = Split(space, ((),) * len(space), ())
    part: Any = None
    split = whole
    order = [*zip(arrays, site.dims(), strict=False)][::-1]
    devices = next(array.sharding.device_set for array, _ in order if array.sharding is not None)
    for array, dims in order:
        if array.sharding is None:
            continue
        own = parts_by_device(array.shape, assignment_of(array))
        for number, dim in enumerate(dims):
            if own is None or dim is None or not own[number].any():
                continue
            given = np.zeros((len(space), own.shape[1]), int) if part is None else part.copy()
            if given[dim].any():
                continue
            given[dim] = own[number]
            found = split_of_parts(space, given)
            used = [*itertools.chain(*found.axes)]
            wanted = sum(bool(row.any()) for row in given)
            if len(set(used)) == len(used) and sum(map(bool, found.axes)) == wanted:
                kept = site.supported(found, alone=alone)
                if kept.axes[dim]:
                    part, split = given, found
    return split, mesh_of(devices, split)


def result_spec(a: Any, b: Any, params: ProductParams) -> tuple[Any, ...]:
    """Returns the axes of the result's dimensions, from the types of a and b (explicit axes)."""
    of_a, of_b = ((*partitions_of(x.sharding.spec), *(None,) * x.ndim)[: x.ndim] for x in (a, b))
    found = [x if x is not None else y for x, y in zip(of_a[:-2], of_b[:-2], strict=True)]
    for own in (of_a[-1 if params.transposed_a else -2], of_b[-2 if params.transposed_b else -1]):
        names = set(names_of(own))
        is_free = not names & set(itertools.chain(*map(names_of, found)))
        found.append(own if is_free else None)
    return tuple(found)


def names_of(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes in an entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def on_explicit_axes(site: ProductSite, *operands: Any) -> Any:
    """The product under a mesh with explicit axes; the types of a and b decide the split."""
    a, b, *_ = map(jax.typeof, operands)
    mesh = a.sharding.mesh if not a.sharding.mesh.empty else b.sharding.mesh
    spec = result_spec(a, b, site.params)
    k = _k_axes(a, b, site.params)
    if set(k) & set(itertools.chain(*map(names_of, spec))):
        k = ()
    axes = (*map(names_of, spec), k)
    typed = Split(site.space, axes, tuple(mesh.shape.items()))
    split = supported(typed)
    *operand_dims, result_dims = site.dims()
    placed = [
        jax.sharding.reshard(operand, NamedSharding(mesh, split.spec(dims)))
        for operand, dims in zip(operands, operand_dims, strict=True)
    ]
    result = jax.shard_map(
        partial(site.on_shard, split),
        mesh=mesh,
        in_specs=tuple(split.spec(dims) for dims in operand_dims),
        out_specs=split.spec(result_dims),
        axis_names=frozenset(mesh.axis_names),
        check_vma=False,
    )(*placed)
    return jax.sharding.reshard(result, NamedSharding(mesh, typed.spec(result_dims)))


def _k_axes(a: Any, b: Any, params: ProductParams) -> tuple[str, ...]:
    of_a, of_b = ((*partitions_of(x.sharding.spec), *(None,) * x.ndim)[: x.ndim] for x in (a, b))
    first = names_of(of_a[-2 if params.transposed_a else -1])
    return first or names_of(of_b[-1 if params.transposed_b else -2])
