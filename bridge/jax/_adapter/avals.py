"""Types of traced values, and what makes the operands of a call be typed alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import ShapedArray, varying_axes_of
from bridge.ops import Role, Spec


def spec_of(array: Any) -> Any:
    """Returns the Spec of an array, tracer or abstract value; None of None."""
    return None if array is None else Spec(tuple(array.shape), array.dtype.name)


def result_aval(like: Any, spec: Spec, role: Role, batch_ndim: int) -> Any:
    """Returns the type of a result of a call whose first operand has the type `like`.

    Inside `shard_map` a type says along which mesh axes its values differ, and under a mesh with
    explicit axes along which they are split: a result is in this like the first operand. Column
    sums keep what the operand's batch dimensions and columns have.
    """
    dtype = jax.numpy.dtype(spec.dtype)
    if like.sharding.mesh.empty:
        return ShapedArray(spec.shape, dtype)
    axes = tuple(like.sharding.spec)
    axes += (None,) * (len(like.shape) - len(axes))
    if role is Role.ROW:
        axes = (*axes[:batch_ndim], axes[-1] if axes else None)
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*axes))
    return like.update(shape=spec.shape, dtype=dtype, weak_type=False, sharding=sharding)


def vary_alike(values: Sequence[Any]) -> list[Any]:
    """Makes all values vary over the union of the mesh axes that they vary over.

    Only inside `shard_map(check_vma=True)` does any. The transpose of this cast is the psum that a
    replicated bias's gradient needs.
    """
    axes = [varying_axes_of(jax.typeof(value)) for value in values]
    union = frozenset().union(*axes)
    if not union:
        return list(values)
    order = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in union]
    return [
        jax.lax.pcast(value, missing, to="varying")
        if (missing := tuple(name for name in order if name not in own))
        else value
        for value, own in zip(values, axes, strict=True)
    ]


def split_alike(values: Sequence[Any], roles: Sequence[Role]) -> list[Any]:
    """Makes full arrays be split alike, like the first one that is on a mesh.

    Only under a mesh with explicit axes does any. The transpose of this move brings the gradient of
    an array that is passed on to where the array was.
    """
    shardings = [jax.typeof(value).sharding for value in values]
    placed = [
        sharding
        for sharding, role in zip(shardings, roles, strict=True)
        if role is Role.FULL and not sharding.mesh.empty
    ]
    return [
        _moved(value, placed[0])
        if placed and role is Role.FULL and sharding != placed[0]
        else value
        for value, sharding, role in zip(values, shardings, roles, strict=True)
    ]


def _moved(value: Any, sharding: Any) -> Any:
    if jax.typeof(value).sharding.mesh.empty:
        # This makes its gradient whole too, however XLA would split it.
        value = jax.sharding.reshard(value, NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.sharding.reshard(value, sharding)
