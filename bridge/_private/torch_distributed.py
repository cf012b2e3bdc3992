"""The private names of torch.distributed, for groups of processes and DTensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bridge._private.torch import names

all_gather_into_tensor = names.find_function(
    "torch.ops._c10d_functional.all_gather_into_tensor.default", "is a gather in a graph"
)
all_to_all_single = names.find_function(
    "torch.ops._c10d_functional.all_to_all_single.default",
    "exchanges the halves of packed DTensors",
)
reduce_scatter_tensor = names.find_function(
    "torch.ops._c10d_functional.reduce_scatter_tensor.default",
    "is the gradient of a gather in a graph",
)
wait_tensor = names.find_function(
    "torch.ops._c10d_functional.wait_tensor.default", "waits for one of these collectives"
)
resolve_process_group = names.find_function(
    "torch.distributed.distributed_c10d._resolve_process_group", "finds a group by its name"
)
_world = names.find(
    "torch.distributed.distributed_c10d._world",
    "has the existing groups; without it torch raises its own error for a destroyed group",
    None,
)
_GROUP = "torch.distributed.ProcessGroup"
_allgather_base = names.find(
    f"{_GROUP}._allgather_base",
    "gathers on Gloo at the least cost; without it torch's collectives are used",
    None,
)
_get_backend = names.find(
    f"{_GROUP}._get_backend",
    "finds out if a group uses Gloo; without it torch's collectives gather",
    None,
)
_device_types = names.find(
    f"{_GROUP}._device_types",
    "has the devices of a group; without it the names of its backends give them",
    None,
)
has_direct_gather = _allgather_base is not None and _get_backend is not None
names.attribute("_allgather_base", "is called on a group where every microsecond counts")
names.attribute("_get_backend", "is called on a group where every microsecond counts")


def is_known_group(group: Any) -> bool:
    return _world is None or group in _world.pg_map


def all_gather_numbers(group: Any, into: Tensor, x: Tensor) -> Any:
    """Starts to gather x from all ranks into existing memory; returns the work handle."""
    if _allgather_base is None:
        return dist.all_gather_into_tensor(into, x, group=group, async_op=True)
    return group._allgather_base(into, x)


def device_types(group: Any) -> list[torch.device]:
    """Returns the devices whose tensors a group exchanges."""
    if _device_types is None:
        pairs = str(dist.get_backend_config(group)).split(",")
        return [torch.device(pair.partition(":")[0]) for pair in pairs]
    return list(group._device_types)


_dtensor_dispatcher = names.later(
    "torch.distributed.tensor.DTensor._op_dispatcher",
    "has the flag to treat plain tensors beside DTensors as replicated; without it they are not",
    None,
)
names.attribute("_allow_implicit_replication", "is this flag of the DTensor dispatcher")


def replicates_plain_tensors() -> bool:
    """True inside `torch.distributed.tensor.experimental.implicit_replication`."""
    return getattr(_dtensor_dispatcher(), "_allow_implicit_replication", False)
