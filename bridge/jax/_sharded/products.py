"""Matrix products on arrays that are split over devices outside `shard_map`.

Batches, rows and columns of the result may be split; every device computes its part. A contraction
may be split where each device has a power of two of leaves: its sum is then a subtree of the
whole sum, the devices exchange these sums, and each adds them in the tree. Any other split is
gathered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding

from bridge._private.jax import assignment_of, partitions_of
from bridge.jax._sharded.partitioning import FREE_MESH, mesh_of, parts_by_device, split_of_parts
from bridge.jax._sharded.split import Split
from bridge.ops.product import LEAF, ProductParams, Shape, sizes

Run = Callable[[Any, Any, Any, ProductParams], Any]


@dataclass(frozen=True)
class ProductSite:
    """A product in a program: its space has the batches, m, n and k as dimensions.

    Attributes:
      run: computes a product of whole arrays.
      params: of the product.
      shapes: of a, b and perhaps the bias.
      x64: the setting of JAX; XLA asks for the program of a shard in another thread.
    """

    run: Run
    params: ProductParams
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    x64: bool

    @property
    def space(self) -> Shape:
        a, b, *_ = self.shapes
        batches = (y if x == 1 else x for x, y in zip(a[:-2], b[:-2], strict=True))
        return (*batches, *sizes(a, b, self.params))

    def dims(self) -> list[list[int | None]]:
        """Maps the dimensions of all operands and of the result to those of the space."""
        count = len(self.space) - 3
        m, n, k = range(count, count + 3)
        own = [(k, m) if self.params.transposed_a else (m, k)]
        own += [(n, k) if self.params.transposed_b else (k, n)]
        own += [(n,)] * (len(self.shapes) - 2)
        found: list[list[int | None]] = []
        for shape, last in zip(self.shapes, own, strict=True):
            batches = shape[: len(shape) - len(last)]
            found.append([*(i if s > 1 else None for i, s in enumerate(batches)), *last])
        return [*found, [*range(count), m, n]]

    def rule(self) -> SdyShardingRule:
        """Returns the rule by which XLA may carry a split from one array to another."""
        fresh = (f"own{i}" for i in itertools.count())
        *operands, result = (
            ArrayMapping(*(next(fresh) if dim is None else f"d{dim}" for dim in dims))
            for dims in self.dims()
        )
        return SdyShardingRule(tuple(operands), (result,))

    def supported(self, split: Split, *, alone: bool) -> Split:
        """Returns the part of a split that shards can keep."""
        last = len(split.shape) - 1
        axes = list(split.axes)
        for dim, size in enumerate(split.shape):
            leaves = split.local(dim) // LEAF if size % split.parts(dim) == 0 else 0
            is_subtree = (
                size > 0 and split.local(dim) == leaves * LEAF and leaves & -leaves == leaves
            )
            if size == 0 or size % split.parts(dim) or (dim == last and (alone or not is_subtree)):
                axes[dim] = ()
        return replace(split, axes=tuple(axes))

    def on_shard(self, split: Split | None, *operands: Any) -> Any:
        """Returns the result of one shard, or of the whole call if split is None."""
        a, b, *rest = operands
        bias = rest[0] if rest else None
        with jax.enable_x64(self.x64):
            if split is None or split.parts(len(split.shape) - 1) == 1:
                return self.run(a, b, bias, self.params)
            wide = "float64" if "float64" in (*self.dtypes, self.params.dtype) else "float32"
            own = self.run(a, b, None, replace(self.params, dtype=wide))
            return self._added(_gathered(own, split.axes[-1]), bias)

    def _added(self, sums: Any, bias: Any) -> Any:
        """Adds `[parts, *batches, m, n]` in the tree; only the last sum is rounded.

        The kernels of a product add here, since XLA on a CPU flushes subnormal numbers.
        """
        dtype, (parts, *batches, m, n) = sums.dtype.name, sums.shape
        while parts > 2:
            pairs = sums[: parts // 2 * 2].reshape(parts // 2, 2, -1)
            ones = jnp.ones((parts // 2, 1, 2), sums.dtype)
            added = self.run(ones, pairs, None, ProductParams(dtype))
            added = added.reshape(-1, *batches, m, n)
            sums = jnp.concatenate([added, sums[parts // 2 * 2 :]]) if parts % 2 else added
            parts = sums.shape[0]
        # The pair is the contraction of a product whose batches are the batches and the rows.
        pair = jnp.moveaxis(sums, 0, -2)
        if bias is not None and bias.ndim > 1:
            bias = jnp.expand_dims(bias, -2)
        ones = jnp.ones((*(1,) * len(batches), 1, 1, parts), sums.dtype)
        params = ProductParams(self.params.dtype)
        return self.run(ones, pair, bias, params).reshape(*batches, m, n)


def _gathered(own: Any, axes: tuple[str, ...]) -> Any:
    """Returns `[parts, ...]`; the bits travel as integers, which no conversion changes."""
    words = np.uint64 if own.dtype.itemsize == 8 else np.uint32
    bits = lax.all_gather(lax.bitcast_convert_type(own, words), axes)
    return lax.bitcast_convert_type(bits, own.dtype)


def on_automatic_axes(site: ProductSite, *operands: Any, alone: bool = False) -> Any:
    """The product where XLA decides the split of its arrays."""

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


def _partition(site: ProductSite, alone: bool, mesh: Any, arguments: Any, result: Any) -> Any:
    split, own = _agreed(site, alone, [*arguments, result])
    *operands, output = (NamedSharding(own, split.spec(dims)) for dims in site.dims())
    return own, partial(_on_one_device, site, split), output, tuple(operands)


def _on_one_device(site: ProductSite, split: Split, *operands: Any) -> Any:
    with jax.sharding.use_abstract_mesh(FREE_MESH):
        return site.on_shard(split, *operands)


def _infer(site: ProductSite, alone: bool, mesh: Any, arguments: Any, result: Any) -> Any:
    split, own = _agreed(site, alone, arguments)
    return NamedSharding(own, split.spec(site.dims()[-1]))


def _agreed(site: ProductSite, alone: bool, arrays: Sequence[Any]) -> tuple[Split, Mesh]:
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
        names = set(_names(own))
        is_free = not names & set(itertools.chain(*map(_names, found)))
        found.append(own if is_free else None)
    return tuple(found)


def _names(entry: Any) -> tuple[str, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def on_explicit_axes(site: ProductSite, *operands: Any) -> Any:
    """The product under a mesh with explicit axes; the types of a and b decide the split."""
    a, b, *_ = map(jax.typeof, operands)
    mesh = a.sharding.mesh if not a.sharding.mesh.empty else b.sharding.mesh
    spec = result_spec(a, b, site.params)
    k = _k_axes(a, b, site.params)
    if set(k) & set(itertools.chain(*map(_names, spec))):
        k = ()
    axes = (*map(_names, spec), k)
    typed = Split(site.space, axes, tuple(mesh.shape.items()))
    split = site.supported(typed, alone=False)
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
    first = _names(of_a[-2 if params.transposed_a else -1])
    return first or _names(of_b[-1 if params.transposed_b else -2])
