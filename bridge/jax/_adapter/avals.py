"""Types of traced values, and what makes the operands of a call be typed alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import ShapedArray, varying_axes_of, without_varying
from bridge.ops import Role, Spec


def spec_of(array: Any) -> Any:
    """Returns the Spec of an array, tracer or abstract value; None of None."""
    return None if array is None else Spec(tuple(array.shape), array.dtype.name)


def axes_of_space(like: Any, role: Role) -> tuple[Any, ...]:
    """Over which mesh axes an array that fills the space splits each dimension of that."""
    axes = tuple(like.sharding.spec)
    axes += (None,) * (len(like.shape) - len(axes))
    if not role.is_double:
        return axes
    names = axes[-1] if isinstance(axes[-1], tuple) else (axes[-1],) if axes[-1] else ()
    parts = math.prod([like.sharding.mesh.shape[name] for name in names])
    # Columns are whole if parts share a column, which is two of the array's.
    return axes if like.shape[-1] // 2 % parts == 0 else (*axes[:-1], None)


def _spec_in(role: Role, axes: tuple[Any, ...], batch_ndim: int) -> PartitionSpec:
    """How an array of a role is split in a space that is split over these axes."""
    if role is Role.ROW:
        axes = (*axes[:batch_ndim], axes[-1] if axes else None)
    elif not role.fills_space:
        axes = axes[:-1]
    return PartitionSpec(*axes)


def has_columns_of(role: Role) -> bool:
    """Whether a part of the columns has only a part of an array, not the same as the others."""
    return role.fills_space or not (role.has_all_rows or role is Role.INTEGER)


def result_aval(
    like: Any, first: Role, spec: Spec, role: Role, batch_ndim: int, axis: str | None = None
) -> Any:
    """Returns the type of a result of a call whose first operand has the type `like`.

    Inside `shard_map` a type says along which mesh axes its values differ, and under a mesh with
    explicit axes along which they are split: a result is in this like the first operand. Column
    sums keep what the operand's batch dimensions and columns have. `first` is the role of that. The
    columns are split over `axis`: what has none is the same along it.
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
    """Makes all values vary over the union of the mesh axes that they vary over.

    Over `axis` only those that have columns, which are split over it.

    Only inside `shard_map(check_vma=True)` does any. The transpose of this cast is the psum that a
    replicated bias's gradient needs.
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
    """Makes arrays with all rows be split alike, like the first that fills the space on a mesh.

    Only under a mesh with explicit axes does any. The transpose of this move brings the gradient of
    an array that is passed on to where the array was.
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
    """Under a mesh with explicit axes a cotangent, split as what it belongs to."""
    wanted = aval.sharding
    is_alike = wanted.mesh.empty or jax.typeof(value).sharding.spec == wanted.spec
    return value if is_alike else _moved(value, wanted)


def unsplit(value: Any, dims: slice) -> Any:
    """Under a mesh with explicit axes an array that is split along none of these dimensions."""
    own = jax.typeof(value).sharding
    axes = list(own.spec) + [None] * (value.ndim - len(own.spec))
    if not any(axes[dims]):
        return value
    axes[dims] = [None] * len(axes[dims])
    return jax.sharding.reshard(value, NamedSharding(own.mesh, PartitionSpec(*axes)))


def _moved(value: Any, sharding: Any) -> Any:
    own = jax.typeof(value).sharding
    if own == sharding:
        return value
    if own.mesh.empty:
        # This makes its gradient whole too, however XLA would split it.
        value = jax.sharding.reshard(value, NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.sharding.reshard(value, sharding)
