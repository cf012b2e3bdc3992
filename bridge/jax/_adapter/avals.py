"""Types of traced values, and casts that give the operands of a call matching types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import ShapedArray, partitions_of, varying_axes_of, without_varying
from bridge.jax._sharded.split import axes_of_space
from bridge.ops import Role, Spec


def spec_of(array: Any) -> Any:
    """Returns the Spec of an array, tracer or abstract value; None for None."""
    return None if array is None else Spec(tuple(array.shape), array.dtype.name)


def _spec_in(role: Role, axes: tuple[Any, ...], batch_ndim: int) -> PartitionSpec:
    """Returns the sharding of an array with this role, in a space split over these axes."""
    if role is Role.ROW:
        axes = (*axes[:batch_ndim], axes[-1] if axes else None)
    elif not role.fills_space:
        axes = axes[:-1]
    return PartitionSpec(*axes)


def has_columns_of(role: Role) -> bool:
    """True if each part of the columns has its own part of such an array, not the same array."""
    return role.fills_space or not (role.has_all_rows or role is Role.INTEGER)


def result_aval(
    like: Any, first: Role, spec: Spec, role: Role, batch_ndim: int, axis: str | None = None
) -> Any:
    """Returns the type of a call's result.

    Inside `shard_map` a type records the mesh axes along which values vary, and under a mesh with
    explicit axes the axes that split the array. A result has the axes of the first operand. Column
    sums have the axes of its batch dimensions and columns.

    Args:
      like: the type of the first operand.
      first: the role of the first operand.
      spec: shape and dtype of the result.
      role: the role of the result.
      batch_ndim: the number of batch dimensions.
      axis: the mesh axis that splits the columns. A result without columns is the same along it.
    """
    dtype = jax.numpy.dtype(spec.dtype)
    if axis in varying_axes_of(like) and not has_columns_of(role):
        like = without_varying(like, axis)
    if like.sharding.mesh.empty:
        return ShapedArray(spec.shape, dtype)
    placed = _spec_in(role, axes_of_space(like, first), batch_ndim)
    sharding = NamedSharding(like.sharding.mesh, placed)
    return like.update(shape=spec.shape, dtype=dtype, weak_type=False, sharding=sharding)


def vary_alike(
    values: Sequence[Any], axis: str | None = None, has_columns: Sequence[bool] = ()
) -> list[Any]:
    """Casts all values so that they vary over the union of their mesh axes.

    Values vary over `axis`, which splits the columns, only if they have columns. The cast does
    something only inside `shard_map(check_vma=True)`. Its transpose is the psum that the gradient
    of a replicated bias needs.
    """
    axes = [varying_axes_of(jax.typeof(value)) for value in values]
    union = frozenset().union(*axes)
    if not union:
        return list(values)
    order = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in union]
    wanted = [
        [name for name in order if name != axis or has_columns[i]] for i in range(len(values))
    ]
    return [
        jax.lax.pcast(value, missing, to="varying")
        if (missing := tuple(name for name in names if name not in own))
        else value
        for value, own, names in zip(values, axes, wanted, strict=True)
    ]


def split_alike(values: Sequence[Any], roles: Sequence[Role]) -> list[Any]:
    """Reshards operands with all rows like the first operand that fills the space on a mesh.

    This does something only under a mesh with explicit axes. The transpose of the move brings the
    gradient back to the sharding of the original array.
    """
    for like, first in zip(map(jax.typeof, values), roles, strict=True):
        if first.fills_space and not like.sharding.mesh.empty:
            axes, mesh = axes_of_space(like, first), like.sharding.mesh
            return [
                _moved(value, NamedSharding(mesh, _spec_in(role, axes, 0)))
                if role.has_all_rows
                else value
                for value, role in zip(values, roles, strict=True)
            ]
    return list(values)


def split_as(value: Any, aval: Any) -> Any:
    """Reshards a cotangent like its primal, under a mesh with explicit axes."""
    wanted = aval.sharding
    is_alike = wanted.mesh.empty or jax.typeof(value).sharding.spec == wanted.spec
    return value if is_alike else _moved(value, wanted)


def unsplit(value: Any, dims: slice) -> Any:
    """Returns the array split along none of these dimensions, under a mesh with explicit axes."""
    own = jax.typeof(value).sharding
    axes = list(partitions_of(own.spec))
    axes += [None] * (value.ndim - len(axes))
    if not any(axes[dims]):
        return value
    axes[dims] = [None] * len(axes[dims])
    return jax.sharding.reshard(value, NamedSharding(own.mesh, PartitionSpec(*axes)))


def _moved(value: Any, sharding: Any) -> Any:
    own = jax.typeof(value).sharding
    if own == sharding:
        return value
    if own.mesh.empty:
        # The first reshard keeps the gradient whole too, whatever XLA would choose for it.
        value = jax.sharding.reshard(value, NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.sharding.reshard(value, sharding)
