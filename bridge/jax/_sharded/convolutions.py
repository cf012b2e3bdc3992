"""Convolutions of arrays that are split over devices outside `shard_map`.

`bridge.ops.convolution_splits` says which splits stay; any other split is gathered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.sharding import NamedSharding

from bridge._private.jax import partitions_of
from bridge.jax._sharded.products import names_of
from bridge.jax._sharded.split import Split
from bridge.ops.convolution import Arrays, ConvolutionParams, Shape, result_shape
from bridge.ops.convolution_splits import GROUPS, dims_of, own_params, space_of, supported


@dataclass(frozen=True)
class ConvolutionSite:
    """A convolution in a program.

    Attributes:
      arrays: functions of JAX, among them the convolution of whole arrays.
      params: of the convolution.
      shapes: of a, b and perhaps the bias.
      x64: the setting of JAX; XLA asks for the program of a shard in another thread.
    """

    arrays: Arrays
    params: ConvolutionParams
    shapes: tuple[Shape, ...]
    x64: bool

    @property
    def space(self) -> Shape:
        return space_of(self.shapes, self.params)

    def dims(self) -> list[list[int | None]]:
        return dims_of(self.shapes, self.params)

    def supported(self, split: Split, *, alone: bool) -> Split:
        return supported(split, self.params)

    def rule(self) -> SdyShardingRule:
        """Returns the rule by which XLA may carry a split from one array to another."""
        fresh = (f"own{i}" for i in itertools.count())
        a, b, *bias = self.shapes
        shapes = [a, b, *bias, result_shape(a, b, None, self.params)]
        sizes: dict[str, Any] = {}

        def factor(size: Any, dim: int | None) -> Any:
            if dim is None:
                return next(fresh)
            if self.params.groups == 1 or dim != GROUPS or size == self.params.groups:
                return f"d{dim}"
            own = next(fresh)
            sizes[own] = size // self.params.groups
            return CompoundFactor(f"d{dim}", own)

        *operands, result = (
            ArrayMapping(*map(factor, shape, dims))
            for shape, dims in zip(shapes, self.dims(), strict=True)
        )
        is_alone = any(f"d{GROUPS}" in mapping for mapping in (*operands, result))
        if sizes and not is_alone:
            sizes[f"d{GROUPS}"] = self.params.groups
        return SdyShardingRule(tuple(operands), (result,), **sizes)

    def on_shard(self, split: Split | None, *operands: Any) -> Any:
        """Returns the result of one shard, or of the whole call if split is None."""
        a, b, *rest = operands
        params = self.params if split is None else own_params(self.params, split)
        with jax.enable_x64(self.x64):
            return self.arrays.convolution(a, b, rest[0] if rest else None, params)


def _typed(avals: Sequence[Any], params: ConvolutionParams) -> Split:
    """Returns the split of the space that the types of a and b state."""
    shapes = [aval.shape for aval in avals]
    space = space_of(shapes, params)
    mesh = next(a for a in avals if not a.sharding.mesh.empty).sharding.mesh
    axes: list[tuple[str, ...]] = [()] * len(space)
    *dims, result_dims = dims_of(shapes, params)
    sizes = dict(zip(result_dims, result_shape(shapes[0], shapes[1], None, params), strict=True))
    for aval, own in zip(avals[:2], dims, strict=False):
        entries = (*partitions_of(aval.sharding.spec), *(None,) * aval.ndim)[: aval.ndim]
        for entry, dim in zip(entries, own, strict=True):
            names = names_of(entry)
            used = set(itertools.chain(*axes))
            if dim is None or axes[dim] or used & set(names):
                continue
            if dim in sizes and sizes[dim] % math.prod([mesh.shape[name] for name in names]) == 0:
                axes[dim] = names
    return Split(space, tuple(axes), tuple(mesh.shape.items()))


def result_spec(a: Any, b: Any, params: ConvolutionParams) -> tuple[Any, ...]:
    """Returns the axes of the result's dimensions, from the types of a and b (explicit axes)."""
    split = _typed([a, b], params)
    return tuple(split.spec(dims_of([a.shape, b.shape], params)[-1]))


def on_explicit_axes(site: ConvolutionSite, *operands: Any) -> Any:
    """The convolution under a mesh with explicit axes; the types of a and b decide the split."""
    avals = [jax.typeof(operand) for operand in operands]
    mesh = next(a for a in avals if not a.sharding.mesh.empty).sharding.mesh
    typed = _typed(avals, site.params)
    split = supported(typed, site.params)
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
