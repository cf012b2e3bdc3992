"""Calls on arrays that are split over devices outside `shard_map`, without needless gathering.

Under `jax.jit` XLA decides the split of arrays after this module was lowered: it gets a sharding
rule, and later asks for the program of one shard. Under a mesh with explicit axes the types state
the split of arrays, and the program of one shard goes into a `shard_map`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from bridge._private.jax import (
    assignment_of,
    axes_in_shard_map,
    device_count,
    ir,
    is_for_export,
)
from bridge.jax._sharded.shards import Run, call_on_shard
from bridge.jax._sharded.split import Split, axes_of_space
from bridge.ops import Role
from bridge.ops.definition import Op, space_of
from bridge.ops.splitting import dims_of, has_whole_rows, supported, wanted_roles

FREE_MESH = AbstractMesh((), ())


class Site:
    """A call of an op in a program: the properties of all its arrays, for any split."""

    def __init__(
        self, run: Run, op: Op[Any], params: Any, slots: Sequence[int], count: int, shapes: Any
    ) -> None:
        self._run, self.op, self.params = run, op, params
        self.slots, self.count, self.shapes = tuple(slots), count, shapes
        # Read here, because XLA asks for the program of a shard in another thread.
        self.x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        roles = op.operand_roles(count, params)
        self.operand_roles = [roles[slot] for slot in slots]
        self.result_roles = wanted_roles(op, params)
        self.space = space_of(shapes[0], roles[0])

    @property
    def words(self) -> str:
        """Identifies the call in the key of JAX's compilation cache."""
        return f"{self.op.name} {self.slots} of {self.count} {self.params}"

    def run(self, split: Split | None, *operands: Any) -> tuple[Any, ...]:
        """Returns the results of one shard, or of the whole call if split is None."""
        placed: list[Any] = [None] * self.count
        for slot, operand in zip(self.slots, operands, strict=True):
            placed[slot] = operand
        with jax.enable_x64(self.x64):
            if split is None:
                results = self._run(self.op, placed, self.params)
            else:
                results = call_on_shard(self._run, self.op, placed, self.params, split)
        return tuple(result for result in results if result is not None)

    def supported(self, split: Split, *, alone: bool) -> Split:
        return supported(self.op, self.params, self.operand_roles, split, alone=alone)

    def dims(self, split: Split) -> tuple[list[Any], list[Any]]:
        """Maps the dimensions of each operand and result to dimensions of the space."""
        batch_ndim = self.params.batch_ndim
        return (
            [
                dims_of(role, shape, split, batch_ndim)
                for role, shape in zip(self.operand_roles, self.shapes, strict=True)
            ],
            [dims_of(role, (), split, batch_ndim) for role in self.result_roles],
        )

    def rule(self, *, alone: bool) -> SdyShardingRule:
        """Returns the rule by which XLA may carry a split from one array to another."""
        whole = Split(self.space, ((),) * len(self.space), ())
        fresh = (f"own{i}" for i in itertools.count())
        columns = self.space[-1] if self.space else 0
        last = f"d{len(self.space) - 1}"

        def mapping(dims: list[Any], role: Role) -> ArrayMapping:
            named: list[Any] = [next(fresh) if dim is None else f"d{dim}" for dim in dims]
            if role.is_double and columns < 2:
                named[-1] = next(fresh)  # there are no columns to split
            elif role.is_double:
                # A part of the columns has two numbers per column. If the halves are not where a
                # shard needs them, the program of the shard moves them.
                named[-1] = CompoundFactor(last, "two")
            return ArrayMapping(*named)

        operands, results = (
            tuple(map(mapping, dims, roles))
            for dims, roles in zip(
                self.dims(whole), (self.operand_roles, self.result_roles), strict=True
            )
        )
        # A rule lists its factors in the order of their first use in the arrays.
        dims = [*itertools.chain(*operands, *results)]
        sizes: dict[str, Any] = {"two": 2} if any(isinstance(dim, tuple) for dim in dims) else {}
        if sizes and last not in dims:
            sizes[last] = columns
        # One column is two numbers of the array, which devices cannot share.
        fixed = {dim for dim in dims if columns < 2 and str(dim).startswith("own")}
        if has_whole_rows(self.op, self.params, self.operand_roles, columns, alone=alone):
            fixed.add(last)
        ordered = dict.fromkeys(
            itertools.chain(*(dim if isinstance(dim, tuple) else (dim,) for dim in dims))
        )
        whole_factors = tuple(factor for factor in ordered if factor in fixed)
        return SdyShardingRule(operands, results, need_replication_factors=whole_factors, **sizes)


def on_explicit_axes(site: Site, *operands: Any) -> Sequence[Any]:
    """The call under a mesh with explicit axes; the type of the first operand decides the split."""
    like = jax.typeof(operands[0])
    mesh = like.sharding.mesh
    names = frozenset(_explicit_names(mesh))
    axes = tuple(_names_of(entry) for entry in axes_of_space(like, site.operand_roles[0]))
    typed = Split(site.space, axes, tuple(mesh.shape.items()))
    split = site.supported(typed, alone=False)
    operand_dims, result_dims = site.dims(split)
    operand_specs = [split.spec(dims) for dims in operand_dims]
    result_specs = tuple(split.spec(dims) for dims in result_dims)
    placed = [
        jax.sharding.reshard(operand, NamedSharding(mesh, spec))
        for operand, spec in zip(operands, operand_specs, strict=True)
    ]
    results = jax.shard_map(
        partial(site.run, split),
        mesh=mesh,
        in_specs=tuple(operand_specs),
        out_specs=result_specs,
        axis_names=names,
        check_vma=False,
    )(*placed)
    return [
        jax.sharding.reshard(result, NamedSharding(mesh, typed.spec(dims)))
        for result, dims in zip(results, result_dims, strict=True)
    ]


def on_named_axis(site: Site, axis: str, *operands: Any) -> tuple[Any, ...]:
    """The call inside a `shard_map` over an axis whose devices have equal parts of the columns.

    Raises:
      ValueError: the op needs whole rows.
    """
    count = jax.lax.axis_size(axis)
    *rows, columns = site.space
    axes = ((),) * len(rows) + ((axis,),)
    split = Split((*rows, columns * count), axes, ((axis, count),))
    if site.supported(split, alone=False) != split:
        raise ValueError(f"{site.op.name}: columns that are split over {axis!r} must be whole")
    return site.run(split, *operands)


def place_of(
    context: Any,
    avals: Sequence[Any],
    on_explicit: Callable[..., Any],
    on_automatic: Callable[..., Any],
) -> Callable[..., Any] | None:
    """Returns the function that makes a call on several devices; None in a one-device program.

    Args:
      avals: the types that may split the call.
      on_explicit, on_automatic: the call for such types, and where XLA decides the split.
    """
    if is_for_export(context) or not any(aval.shape for aval in avals):
        return None
    if any(map(has_explicit_axes, avals)):
        return on_explicit
    axes = axes_in_shard_map(context)
    if axes is not None:
        manual, automatic = axes
        return partial(on_automatic, alone=True) if manual and automatic else None
    return on_automatic if device_count(context) > 1 else None


def has_explicit_axes(aval: Any) -> bool:
    return bool(_explicit_names(aval.sharding.mesh))


def _explicit_names(mesh: Any) -> list[str]:
    if mesh.empty:
        return []
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return [name for name, kind in kinds if kind is AxisType.Explicit]


def _names_of(entry: Any) -> tuple[str, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def name_in_cache_key(words: str, results: Any) -> None:
    """Writes the op and its parameters into the lowered call of these results.

    Without them, JAX's compilation cache would see only the address of a Python object in a
    partitioned call, or nothing, and could confuse calls with different parameters.
    """
    for value in jax.tree.leaves(results):
        call = value.owner
        if getattr(call, "name", "") == "stablehlo.custom_call":
            call.attributes[_FRONTEND] = ir.DictAttr.get({"bridge": ir.StringAttr.get(words)})


_FRONTEND = "mhlo.frontend_attributes"


def on_automatic_axes(site: Site, *operands: Any, alone: bool = False) -> Sequence[Any]:
    """The call where XLA decides the split of its arrays.

    `alone`: True inside a `shard_map` over some of the axes, where a shard of XLA cannot know its
    own position.
    """

    @custom_partitioning
    def whole(*operands: Any) -> tuple[Any, ...]:
        return site.run(None, *operands)

    whole.def_partition(
        partial(_partition, site, alone),
        infer_sharding_from_operands=partial(_infer, site, alone),
        sharding_rule=site.rule(alone=alone),
        decode_shardings=False,  # its decoder fails on some shardings; `_split_of` does not
    )
    return whole(*operands)


def _partition(site: Site, alone: bool, mesh: Any, arguments: Any, results: Any) -> Any:
    """Answers XLA with the sharding of all arrays and the program of one shard."""
    roles = [*site.operand_roles, *site.result_roles]
    mesh, split = _agreed(site, alone, [*arguments, *results], roles)
    operands, outputs = _shardings(site, split, mesh)
    return mesh, partial(_run_on_one_device, site, split), outputs, operands


def _run_on_one_device(site: Site, split: Split, *operands: Any) -> tuple[Any, ...]:
    # In jax 0.12 the mesh of the compiling code is active here. Types of arrays made inside would
    # name that mesh, but the types of the operands do not.
    with jax.sharding.use_abstract_mesh(FREE_MESH):
        return site.run(split, *operands)


def _infer(site: Site, alone: bool, mesh: Any, arguments: Any, results: Any) -> Any:
    """Returns the sharding of the results for given operands; XLA asks only without Shardy."""
    mesh, split = _agreed(site, alone, arguments, site.operand_roles)
    return _shardings(site, split, mesh)[1]


def _agreed(
    site: Site, alone: bool, arrays: Sequence[Any], roles: Sequence[Role]
) -> tuple[Mesh, Split]:
    """Chooses one split of the space: the finest among the arrays that fill it."""
    # Shardy alone tells the sharding of some arrays here, for example of constants.
    full = [
        (array, role)
        for array, role in zip(arrays, roles, strict=True)
        if role.fills_space and array.sharding is not None
    ]
    splits = []
    for array, role in full:
        split = _split_of(array.shape, assignment_of(array))
        split = replace(split, shape=space_of(array.shape, role))
        splits.append(site.supported(split, alone=alone))
    split = max(splits, key=lambda split: split.shards)
    return mesh_of(full[0][0].sharding.device_set, split), split


def _shardings(site: Site, split: Split, mesh: Mesh) -> tuple[Any, Any]:
    operands, results = site.dims(split)
    return (
        tuple(NamedSharding(mesh, split.spec(dims)) for dims in operands),
        tuple(NamedSharding(mesh, split.spec(dims)) for dims in results),
    )


def mesh_of(devices: Any, split: Split) -> Mesh:
    """Returns a mesh with the axes of a split, of devices in XLA's order.

    The identity of the devices does not matter: XLA identifies them by their position.
    """
    names, sizes = zip(*split.sizes, strict=True) if split.sizes else ((), ())
    array = np.fromiter(itertools.cycle(devices), object, math.prod(sizes))
    return Mesh(array.reshape(sizes), names)


def _split_of(shape: Sequence[int], assignment: Any) -> Split:
    """Returns the split that an assignment of devices describes, over the mesh axes found in it.

    The array is whole if no mesh gives this assignment.
    """
    part = parts_by_device(shape, assignment)
    if part is None:
        return Split(tuple(shape), ((),) * len(shape), ())
    return split_of_parts(shape, part)


def parts_by_device(shape: Sequence[int], assignment: Any) -> Any:
    """Returns the index of each device's part along each dimension, `[dimensions, devices]`."""
    if assignment is None:
        return None
    return np.array(np.unravel_index(np.argsort(assignment, axis=None), assignment.shape))[
        : len(shape)
    ]


def split_of_parts(shape: Sequence[int], part: Any) -> Split:
    """Returns the split with these parts, over the mesh axes found in them; whole if none fit."""
    ndim = len(shape)
    whole = Split(tuple(shape), ((),) * ndim, ())
    axes = _axes_in(part)
    sizes = tuple((f"axis{i}", size) for i, (size, _) in enumerate(axes))
    # The part reached by one step along an axis gives the order of axes within a dimension.
    steps = [part[:, stride] for _, stride in axes]
    used = [
        sorted((i for i, step in enumerate(steps) if step[dim]), key=lambda i: -steps[i][dim])
        for dim in range(ndim)
    ]
    device = np.arange(part.shape[1])
    for dim, own in enumerate(used):
        expected = np.zeros_like(device)
        for i in own:
            size, stride = axes[i]
            expected = expected * size + device // stride % size
        if (expected != part[dim]).any():
            return whole
    return Split(tuple(shape), tuple(tuple(sizes[i][0] for i in own) for own in used), sizes)


def _axes_in(part: Any) -> list[tuple[int, int]]:
    """Returns sizes and strides of axes of the coarsest mesh that may give `part`, slowest first.

    `part` is `[dimensions, devices]`. Along one axis all steps cover the same distance. The first
    step of the next axis covers another distance, or both are one axis. So an axis ends where the
    distance changes.
    """
    axes: list[tuple[int, int]] = []
    count = part.shape[1]
    stride = 1
    while stride < count:
        along = part[:, ::stride]
        even = (along == along[:, 1:2] * np.arange(along.shape[1])).all(axis=0)
        size = along.shape[1] if even.all() else int(np.argmin(even))
        if not size or count // stride % size:
            return [(count, 1)]  # no mesh found; the caller sees that this one does not give `part`
        axes.insert(0, (size, stride))
        stride *= size
    return axes
