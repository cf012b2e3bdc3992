"""All-gathers over Gloo without the overhead of torch's functional collectives.

The overhead is some tens of microseconds per call and, for large arrays, a copy: Gloo's own
all-gather receives into a buffer of its own and copies that into the result. The buffer is a third
array beside input and output, and its fresh pages cost as much time as the exchange. So for large
arrays every rank here sends its part directly to every other rank, which receives it in place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bridge._private.torch import FakeTensor, proxy_mode
from bridge._private.torch_distributed import has_direct_gather, resolve_process_group
from bridge.torch._collectives.groups import Ranks

# From this size in bytes on, the copy costs more than W − 1 messages each way. All ranks choose the
# same way, because the size and the shapes are the same on all of them.
_LEAST_BYTES = 1 << 20

# The tag of our messages; no other exchange uses it.
_TAG = 0x6272_6467


@dataclass(frozen=True, eq=False)
class Pending:
    """An exchange under way: the work to wait for, and the memory that receives the parts."""

    works: tuple[Any, ...]
    parts: Tensor
    sent: Tensor


# Exchanges whose tensors must live until the other ranks have them, even if nobody waits here.
_under_way: deque[Pending] = deque()


def gather(x: Tensor, ranks: Ranks) -> Tensor | None:
    """Gathers a small contiguous x along dimension 0 over Gloo; None for any other x.

    Uses as little Python as possible: a process that waits for others runs from cold caches,
    several times slower than in a loop.
    """
    if type(x) is not Tensor or not x.is_contiguous() or x.is_neg() or proxy_mode() is not None:
        return None
    if not 0 < x.nbytes < _LEAST_BYTES or (group := _gloo(x, ranks)) is None:
        return None
    shape = list(x.shape)
    shape[0] *= ranks.size
    result = torch.empty(shape, dtype=x.dtype)
    group._allgather_base(result, x).wait()
    return result


def start(packed: Tensor, ranks: Ranks) -> Pending | None:
    """Starts sending and receiving; None under tracing, or if the transport is not Gloo."""
    if isinstance(packed, FakeTensor) or proxy_mode() is not None:
        return None
    if (group := _gloo(packed, ranks)) is None:
        return None
    parts = torch.empty((ranks.size, *packed.shape), dtype=packed.dtype)
    if packed.nbytes < _LEAST_BYTES:
        works = [group._allgather_base(parts.flatten(0, 1), packed)]
    else:
        works = _messages(packed, parts, group, ranks)
    pending = Pending(tuple(works), parts, packed)
    while _under_way and all(work.is_completed() for work in _under_way[0].works):
        _under_way.popleft()
    _under_way.append(pending)
    return pending


def _gloo(x: Tensor, ranks: Ranks) -> Any:
    """Returns the process group if it exchanges such arrays over Gloo, else None."""
    if not x.is_cpu or not has_direct_gather or not dist.is_gloo_available():
        return None
    group: Any = resolve_process_group(ranks.name)
    return group if type(group._get_backend(_CPU)) is dist.ProcessGroupGloo else None


_CPU = torch.device("cpu")


def _messages(packed: Tensor, parts: Tensor, group: Any, ranks: Ranks) -> list[Any]:
    distances = range(1, ranks.size)
    sources = [(ranks.rank - distance) % ranks.size for distance in distances]
    works = [group.recv([parts[source]], source, _TAG) for source in sources]
    for distance in distances:
        works.append(group.send([packed], (ranks.rank + distance) % ranks.size, _TAG))
    parts[ranks.rank].copy_(packed)
    return works


def finish(pending: Pending) -> Tensor:
    """Waits for the exchange and returns the parts `[W · n, ...]`."""
    try:
        for work in pending.works:
            work.wait()
    finally:
        if pending in _under_way:
            _under_way.remove(pending)
    return pending.parts.flatten(0, 1)
