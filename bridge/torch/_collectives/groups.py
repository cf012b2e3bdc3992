"""The ranks that take part in an exchange, and the comparison of their arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from bridge._private.torch import FakeTensor, functorch_active, no_interpreters
from bridge._private.torch_distributed import (
    all_gather_numbers,
    device_types,
    is_known_group,
    resolve_process_group,
)
from bridge.collectives import SIGNATURE_LENGTH, Signature, fault_of


class Ranks(NamedTuple):
    """A process group as an exchange needs it.

    Attributes:
      name: the group's name in torch's functional collectives; "" without a group.
      size: number of ranks.
      rank: this process's number in the group.
    """

    name: str
    size: int
    rank: int


_ALONE = Ranks("", 1, 0)

_HAS_GROUPS = dist.is_available()


def ranks_of(function: str, group: Any) -> Ranks:
    """Returns the ranks of `group`.

    Args:
      function: the first words of error messages.
      group: a ProcessGroup, a DeviceMesh of one dimension, (DeviceMesh, number or name of a
        dimension), or None for the default group. Without a default group, None is this process
        alone.

    Raises:
      TypeError: group has another type.
      ValueError: this process does not belong to the group; the group does not exist (any more); or
        there is no default group although the launcher's WORLD_SIZE is more than 1.
    """
    if group is None:
        # The dynamo of torch 2.11 treats WORLD as a group even if there is none.
        if not _HAS_GROUPS or not dist.is_initialized():
            return _without_group(function)
        return _ranks(dist.group.WORLD)
    if not isinstance(group, dist.ProcessGroup):
        group = _group_of_mesh(function, group)
    if torch.compiler.is_compiling():
        return _ranks(group)
    if not is_known_group(group):
        raise ValueError(
            f"{function}: group is a process group that was destroyed, or that "
            "torch.distributed does not know; make one with torch.distributed.new_group"
        )
    ranks = _ranks(group)
    if ranks.rank < 0:
        raise ValueError(_outside(function))
    return ranks


def _ranks(group: Any) -> Ranks:
    return Ranks(group.group_name, group.size(), group.rank())


def _outside(function: str) -> str:
    return (
        f"{function}: group does not have this process (global rank {dist.get_rank()}) among its "
        "ranks; call it only on the ranks of the group"
    )


def _without_group(function: str) -> Ranks:
    size = os.environ.get("WORLD_SIZE", "1")
    if size.isdigit() and int(size) > 1:
        raise ValueError(
            f"{function}: there is no process group, but WORLD_SIZE is {size}; call "
            "torch.distributed.init_process_group first"
        )
    return _ALONE


def _group_of_mesh(function: str, group: Any) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    if group is dist.GroupMember.NON_GROUP_MEMBER:  # the result of new_group on other ranks
        raise ValueError(_outside(function))
    mesh, *dims = group if isinstance(group, tuple) else (group,)
    if not isinstance(mesh, DeviceMesh) or len(dims) > 1:
        raise TypeError(
            f"{function}: group has type {type(group).__name__}, expected a ProcessGroup, a "
            "DeviceMesh of one dimension, (DeviceMesh, dimension) or None"
        )
    if not dims and mesh.ndim != 1:
        raise ValueError(
            f"{function}: group is a DeviceMesh of {mesh.ndim} dimensions, expected one; name the "
            f"dimension, as in group=(mesh, {(mesh.mesh_dim_names or (0,))[0]!r})"
        )
    dim = dims[0] if dims else 0
    names = mesh.mesh_dim_names or ()
    known = (
        dim in names if isinstance(dim, str) else isinstance(dim, int) and dim in range(mesh.ndim)
    )
    if not known:
        raise ValueError(
            f"{function}: group names dimension {dim!r} of a DeviceMesh, expected 0 to "
            f"{mesh.ndim - 1}{f' or one of {names}' if names else ''}"
        )
    if not torch.compiler.is_compiling() and mesh.get_coordinate() is None:
        raise ValueError(_outside(function))
    return mesh.get_group(dim)


def check_by_default() -> bool:
    """True if ranks compare arguments in calls without `check`: BRIDGE_CHECK_COLLECTIVES."""
    return os.environ.get("BRIDGE_CHECK_COLLECTIVES", "1") != "0"


def place_of(x: torch.Tensor) -> str:
    """Describes the place of x for the comparison of ranks: a FakeTensor cannot be sent."""
    if isinstance(x, FakeTensor):
        return "a FakeTensor"
    return f"a device of type {x.device.type!r}"


def agree(
    function: str,
    ranks: Ranks,
    mine: Signature,
    found: Callable[[], Sequence[str]],
    check: bool,
    **words: str,
) -> None:
    """Raises the error that `fault_of` finds in the signatures of all ranks, if any.

    The ranks exchange 128 bytes each. With `check` off, or with one rank, nothing is exchanged and
    only this rank's signature is checked. `words` are arguments of `fault_of`.
    """
    signatures = [mine]
    if check and ranks.size > 1:
        own = list(mine.numbers())
        rows = _gather_numbers(function, ranks, own)
        signatures = [mine if row == own else Signature.from_numbers(row) for row in rows]
        if all(signature is mine for signature in signatures):
            signatures = [mine]
    fault = fault_of(function, signatures, found, **words)
    if fault is not None:
        raise fault


def _gather_numbers(function: str, ranks: Ranks, numbers: list[int]) -> list[list[int]]:
    if functorch_active():
        # The transforms apply to the caller's tensors, not to these numbers.
        with no_interpreters():
            return _exchanged_numbers(function, ranks, numbers)
    return _exchanged_numbers(function, ranks, numbers)


def _exchanged_numbers(function: str, ranks: Ranks, numbers: list[int]) -> list[list[int]]:
    group = resolve_process_group(ranks.name)
    device = _device_of(group)
    sent = torch.tensor(numbers, dtype=torch.int64, device=device)
    got = torch.empty(ranks.size * SIGNATURE_LENGTH, dtype=torch.int64, device=device)
    try:
        all_gather_numbers(group, got, sent).wait()
    except RuntimeError as error:
        raise explained(error, function, ranks) from error
    return got.view(ranks.size, SIGNATURE_LENGTH).tolist()


def _device_of(group: Any) -> torch.device:
    """Returns the device of the group's exchanges: the CPU if possible, to wait for no accelerator.

    Computed at each call, in a few microseconds: a new group may have a destroyed group's name.
    """
    devices = device_types(group)
    return next((d for d in devices if d.type == "cpu"), devices[0])


def explained(error: RuntimeError, function: str, ranks: Ranks) -> RuntimeError:
    """Adds to an error of the transport its meaning for the caller; returns others unchanged."""
    if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
        return error
    if "No backend type associated" in str(error):  # for the device: no exchange was tried
        return error
    others = ranks.size - 1
    return type(error)(
        f"{function}: the exchange with {others} other rank{'s' * (others > 1)} failed (this is "
        f"rank {ranks.rank} of the group): one of them ended, raised before it came here, or did "
        "not come within the group's timeout. The group cannot be used any more. The transport "
        f"says: {error}"
    )
