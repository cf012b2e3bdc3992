"""Logits whose columns, and weights whose rows, the ranks of a process group share."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from bridge._private.torch import (
    constant_to_dynamo,
    forward_ad,
    functorch_active,
    resolve_process_group,
)
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
    """The whole of which every rank of the group has this part, along a dimension.

    Args:
      check: raises what is wrong with this rank's arguments; takes the number of ranks.
      argument: what the function calls the part.
      others: gives words for other arguments that are alike on all ranks.

    Raises:
      TypeError: group is no process group and no mesh; what `check` raises.
      ValueError: this rank is not in the group, or the part is a DTensor, which knows its mesh;
        what `check` raises. On every rank where ranks have parts of other shapes or dtypes, or
        other words, or `check` raised on one of them.
      NotImplementedError: in forward mode and under torch.func.
    """
    if isinstance(part, DTensor):
        raise ValueError(
            f"{function}: group is given with {argument} that are a DTensor, expected None: "
            "how they are split is known"
        )
    ranks = ranks_of(function, group)
    if functorch_active() or forward_ad._current_level >= 0:
        raise NotImplementedError(
            f"{function}: group is given under a transform of torch.func or in forward mode, which "
            "follow no exchange between ranks; expected None there, or autograd"
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
    """Raises on all ranks what would leave some of them waiting for others."""
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
            advice="every rank must have as many rows and as many columns: pad the vocabulary",
            others=others,
        )
    except (TypeError, ValueError):
        if refused is None:
            raise
    if refused is not None:
        raise refused


# What dynamo, which makes no mesh, finds one by that was made outside of its graph; and the groups
# that they are of, as another one may get the name of one that was destroyed.
_meshes = types.SimpleNamespace()
_groups: dict[str, Any] = {}


def _mesh_of(ranks: Ranks, device_type: str) -> DeviceMesh:
    """The mesh of a process group; the same one while that exists."""
    return getattr(_meshes, _make_mesh(ranks.name, device_type))  # type: ignore[no-any-return]


@constant_to_dynamo
def _make_mesh(name: str, device_type: str) -> str:
    """Makes sure that there is a mesh, and returns its name."""
    group = resolve_process_group(name)
    key = f"{device_type}_{name}"
    if _groups.get(key) is not group:
        setattr(_meshes, key, DeviceMesh.from_group(group, device_type))
        _groups[key] = group
    return key
