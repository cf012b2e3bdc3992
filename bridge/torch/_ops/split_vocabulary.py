"""Logits whose columns the ranks of a process group share."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from bridge.torch._collectives.groups import ranks_of


def joined(function: str, logits: Tensor, group: Any) -> DTensor:
    """The whole of which every rank of the group has these columns.

    Raises:
      TypeError: group is no process group and no mesh; ValueError: this rank is not in it, or the
        logits are a DTensor, which knows its mesh.
    """
    if isinstance(logits, DTensor):
        raise ValueError(
            f"{function}: group is given with logits that are a DTensor, expected None: "
            "how they are split is known"
        )
    if logits.ndim == 0:
        raise ValueError(f"{function}: logits is 0-dimensional, expected [..., columns]")
    ranks_of(function, group)
    mesh = _mesh(group, logits.device.type)
    return DTensor.from_local(logits, mesh, [Shard(logits.ndim - 1)], run_check=False)


@functools.lru_cache(maxsize=16)
def _mesh(group: Any, device_type: str) -> DeviceMesh:
    if isinstance(group, DeviceMesh):
        return group
    if isinstance(group, tuple):
        group = group[0].get_group(*group[1:])
    return DeviceMesh.from_group(group, device_type)
