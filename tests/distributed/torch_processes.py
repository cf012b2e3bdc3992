"""torch's ranks join by Gloo on loopback, with a file store and short timeouts."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist

import bridge.torch  # noqa: F401  (seconds, which no rank is to spend while another waits)
from tests.distributed.processes import Place

JOIN = "tests.distributed.torch_processes:join"
JOIN_NCCL = "tests.distributed.torch_processes:join_nccl"
JOIN_IMPATIENTLY = "tests.distributed.torch_processes:join_impatiently"

# The time a rank waits for another: longer than a late rank's delay; a dead rank is missed then.
TIMEOUT_SECONDS = 20.0
IMPATIENT_SECONDS = 5.0


def join(place: Place) -> None:
    """Makes the default process group."""
    torch.set_num_threads(1)
    _initialise(place, "store", TIMEOUT_SECONDS)


def join_impatiently(place: Place) -> None:
    """Joins like `join`, with a short timeout for tests in which a rank fails."""
    torch.set_num_threads(1)
    _initialise(place, "store", IMPATIENT_SECONDS)


def join_nccl(place: Place) -> None:
    """Joins with one rank on one GPU."""
    torch.cuda.set_device(0)
    _initialise(place, "store", TIMEOUT_SECONDS, "nccl")


def _initialise(place: Place, store: str, seconds: float, backend: str = "gloo") -> None:
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(place.directory / store), place.world_size),
        rank=place.rank,
        world_size=place.world_size,
        timeout=datetime.timedelta(seconds=seconds),
    )
