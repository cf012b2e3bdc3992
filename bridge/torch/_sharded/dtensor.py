"""The ops on DTensors: each process computes its part, and only necessary parts are gathered.

Every dispatcher op has a rule for DTensor, below autograd, so that the rules also serve
derivatives, which are calls of ops. For each dimension of the mesh, all arrays take the layout of
the first array that it splits; docs/sharding.md lists the splits that stay. This module imports
torch.distributed; it is imported after the first DTensor exists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bridge.ops import OPS
from bridge.ops.definition import Op, space_of
from bridge.ops.splitting import dims_of, supported
from bridge.torch._adapter.dispatcher import flattened, library, overloads, trimmed
from bridge.torch._adapter.integers import seed_on_mesh
from bridge.torch._sharded.convolutions import register_convolutions
from bridge.torch._sharded.products import register_products
from bridge.torch._sharded.rows import one_mesh, refuse_plain
from bridge.torch._sharded.selections import register_selections
from bridge.torch._sharded.shards import call_on_shard, gather_along
from bridge.torch._sharded.split import Split, placed, spread


def run(op: Op[Any], operands: tuple[Any, ...], params: Any) -> tuple[Any, ...]:
    """Runs a call with some DTensors among its operands; returns DTensors.

    Raises:
      TypeError: a row vector is a DTensor, and no operand that fills the space is one.
      ValueError: operands are on different meshes, or this process is not in their mesh.
    """
    roles = op.operand_roles(len(operands), params)
    given = [(o, role) for o, role in zip(operands, roles, strict=True) if isinstance(o, DTensor)]
    function, names = op.words(params)
    mesh = one_mesh(function, operands)
    if not any(role.fills_space for _, role in given):
        refuse_plain(function, names, operands)
    space = space_of(operands[0].shape, roles[0])
    whole = Split(space, ((),) * len(space), mesh)
    split = whole.like(
        [
            (operand, dims_of(role, operand.shape, whole, params.batch_ndim))
            for operand, role in given
            if role.fills_space
        ]
    )
    present = [role for o, role in zip(operands, roles, strict=True) if o is not None]
    split = supported(op, params, present, split)
    local = [
        None
        if operand is None
        else placed(operand, split, dims_of(role, operand.shape, split, params.batch_ndim))
        for operand, role in zip(operands, roles, strict=True)
    ]
    results = call_on_shard(op, local, params, split)
    return tuple(
        None
        if result is None
        else spread(result, split, dims_of(role, result.shape, split, params.batch_ndim))
        for result, role in zip(results, op.result_roles(params), strict=True)
    )


def _same_on_mesh(seed: Tensor, x: Any) -> Tensor:
    """Returns the seed of the first process in x's mesh, on all its processes."""
    if isinstance(x, DTensor):
        for axis in range(x.device_mesh.ndim):
            seed = gather_along(seed.reshape(1), x.device_mesh, axis, 0)[0]
    return seed


def _register(op: Op[Any], overload: Any) -> None:
    def rule(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        params = op.params_type(**(kwargs or {}))
        return flattened(run(op, trimmed(op, tuple(args)), params))

    torch.library.register_torch_dispatch(overload, DTensor, rule, lib=library)


seed_on_mesh.append(_same_on_mesh)
register_products()
register_selections()
register_convolutions()
for (_name, *_), _overload in overloads.items():
    _register(OPS[_name], _overload)
