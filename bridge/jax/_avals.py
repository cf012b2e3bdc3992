"""Types of traced values: what JAX's releases from 0.9 on name differently is named here alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

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
        return jax.core.ShapedArray(spec.shape, dtype)
    axes = tuple(like.sharding.spec)
    axes += (None,) * (len(like.shape) - len(axes))
    if role is Role.ROW:
        axes = (*axes[:batch_ndim], axes[-1] if axes else None)
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*axes))
    return like.update(shape=spec.shape, dtype=dtype, weak_type=False, sharding=sharding)


def _varying_axes(value: Any) -> frozenset[Any]:
    aval = jax.typeof(value)
    if hasattr(aval, "vma"):  # until 0.9
        return aval.vma
    return aval.manual_axis_type.varying


def vary_alike(values: Sequence[Any]) -> list[Any]:
    """Makes all values vary over the union of the mesh axes that they vary over.

    Only inside `shard_map(check_vma=True)` does any. The transpose of this cast is the psum that a
    replicated bias's gradient needs.
    """
    axes = [_varying_axes(value) for value in values]
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
    """Makes full arrays be split like the first one, which the result is typed like.

    Only under a mesh with explicit axes does any. The transpose of this move brings the gradient of
    an array that is passed on to where the array was.
    """
    like = jax.typeof(values[0]).sharding
    if like.mesh.empty:
        return list(values)
    return [
        jax.sharding.reshard(value, like)
        if role is Role.FULL and jax.typeof(value).sharding != like
        else value
        for value, role in zip(values, roles, strict=True)
    ]
