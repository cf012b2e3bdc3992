"""A vocabulary split among the ranks of a process group: columns of logits, rows of weights."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from bridge._private.torch import constant_to_dynamo, forward_ad, functorch_active
from bridge._private.torch_distributed import resolve_process_group
from bridge.collectives import REFUSED, Signature
from bridge.torch._collectives.groups import Ranks, agree, check_by_default, place_of, ranks_of


def joined(
    function: str,
    part: Tensor,
    group: Any,
    check: Callable[[int], None],
    argument: str = "logits",
    dim: int = -1,
    others: Callable[[], str] = str,
) -> DTensor:
    """Returns a DTensor whose part on this rank is `part`, split along a dimension.

    Args:
      check: check(number of ranks) raises an error if this rank's arguments are wrong.
      argument: the part's name in the function's signature.
      others: returns a text of the other arguments, which must be equal on all ranks.

    Raises:
      TypeError: group is not a process group or a mesh; errors of `check`.
      ValueError: this rank is not in the group, or the part is a DTensor, which has a mesh already;
        errors of `check`. On every rank, if the ranks' shapes, dtypes or texts differ, or if
        `check` raised on one of them.
      NotImplementedError: in forward mode and under torch.func.
    """
    if isinstance(part, DTensor):
        raise ValueError(
            f"{function}: group is given and {argument} is a DTensor, expected None: the DTensor "
            "has a mesh already"
        )
    ranks = ranks_of(function, group)
    if functorch_active() or forward_ad._current_level >= 0:
        raise NotImplementedError(
            f"{function}: group is given under a transform of torch.func or in forward mode, which "
            "cannot follow an exchange between ranks; expected None, or reverse mode of autograd"
        )
    if not torch.compiler.is_compiling():
        _agree(function, argument, part, ranks, check, others())
    mesh = group if isinstance(group, DeviceMesh) else _mesh_of(ranks, part.device.type)
    return DTensor.from_local(part, mesh, [Shard(dim % part.ndim)], run_check=False)


def _agree(
    function: str,
    argument: str,
    part: Any,
    ranks: Ranks,
    check: Callable[[int], None],
    others: str,
) -> None:
    """Raises on all ranks any error that would leave some of them waiting for others."""
    refused = None
    try:
        check(ranks.size)
    except (TypeError, ValueError) as error:
        refused = error
    is_tensor = isinstance(part, Tensor)
    kind = str(part.dtype).removeprefix("torch.") if is_tensor else ""
    shape = tuple(part.shape) if is_tensor else ()
    if is_tensor:
        others = ", ".join(filter(None, (others, place_of(part))))
    claim = REFUSED if refused else 0
    signature = Signature.of(kind, shape, 0, True, "sum", False, claim, others)
    found = f"{argument} of dtype {kind} and shape {list(shape)}"
    try:
        agree(
            function,
            ranks,
            signature,
            lambda: (found,),
            check_by_default(),
            array=argument,
            advice="all ranks must have equal numbers of rows and columns: pad the vocabulary",
            others=others,
        )
    except (TypeError, ValueError):
        if refused is None:
            raise
    if refused is not None:
        raise refused


# Dynamo makes no mesh, but finds one by its name that was made outside of its graph. The groups are
# stored too: a new group may get the name of one that was destroyed.
_meshes = types.SimpleNamespace()
_groups: dict[str, Any] = {}


def _mesh_of(ranks: Ranks, device_type: str) -> DeviceMesh:
    """Returns the mesh of a process group; the same object while the group exists."""
    return getattr(_meshes, _make_mesh(ranks.name, device_type))  # type: ignore[no-any-return]


@constant_to_dynamo
def _make_mesh(name: str, device_type: str) -> str:
    """Makes the mesh if there is none, and returns its name."""
    group = resolve_process_group(name)
    key = f"{device_type}_{name}"
    if _groups.get(key) is not group:
        setattr(_meshes, key, DeviceMesh.from_group(group, device_type))
        _groups[key] = group
    return key
