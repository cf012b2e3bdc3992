"""One rank fails: the errors of `all_gather` on the others, in one process of several."""

from __future__ import annotations

import datetime
import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

import bridge.torch as bt
from tests.distributed.processes import Place
from tests.distributed.torch_processes import IMPATIENT_SECONDS


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _impatient_group() -> Any:
    """Returns a group that may break, because nothing else uses it."""
    return dist.new_group(timeout=datetime.timedelta(seconds=IMPATIENT_SECONDS))


def _told(place: Place, call: object) -> str:
    """Returns the error of the call, with the messages of all_gather and of the transport."""
    try:
        call()  # type: ignore[operator]
    except RuntimeError as error:
        message = str(error)
        assert message.startswith("all_gather"), message
        assert f"this is rank {place.rank} of the group" in message, message
        return message
    raise AssertionError("no error, though a rank is missing")


def killed_before(place: Place, check: bool) -> str:
    x = torch.ones(1000, requires_grad=True)
    bt.all_gather(x, check=check)
    if place.rank == 1:
        _die()
    return _told(place, lambda: bt.all_gather(x, check=check))


def killed_in_the_middle(place: Place) -> str:
    """The rank is killed while its large array is being sent."""
    x = torch.ones(1 << 24)
    if place.rank == 1:
        pending = bt.all_gather(x, async_op=True, check=False)
        time.sleep(0.02)
        del pending
        _die()
    return _told(place, lambda: [bt.all_gather(x, check=False) for _ in range(3)])


def killed_before_backward(place: Place) -> str:
    x = torch.ones(1000, requires_grad=True)
    y = bt.all_gather(x)
    if place.rank == 1:
        _die()
    return _told(place, lambda: y.sum().backward())


def killed_before_local_backward(place: Place) -> None:
    """The backward pass of "local" needs no other rank."""
    x = torch.ones(1000, requires_grad=True)
    y = bt.all_gather(x, grad="local")
    if place.rank == 1:
        _die()
    time.sleep(0.2)
    y.sum().backward()
    assert x.grad is not None


def late(place: Place, seconds: float) -> None:
    group = _impatient_group()
    x = torch.full((2,), place.rank)
    if place.rank == 1:
        time.sleep(seconds)
    assert bt.all_gather(x, group=group).view(-1, 2)[:, 0].tolist() == list(range(place.world_size))


def too_late(place: Place, seconds: float, count: int) -> str:
    """The others give up; so does the late rank when it arrives."""
    group = _impatient_group()
    x = torch.ones(count)
    if place.rank == 1:
        time.sleep(seconds)
    return _told(place, lambda: bt.all_gather(x, group=group, check=False))


def one_raises(place: Place) -> str:
    group = _impatient_group()
    x = torch.ones(2)
    if place.rank == 1:
        raise KeyError("this rank's own mistake")
    return _told(place, lambda: bt.all_gather(x, group=group))


def skips_backward(place: Place) -> str:
    """A rank that does not use the gathered array has no backward pass; the others wait for it."""
    group = _impatient_group()
    x = torch.ones(2, requires_grad=True)
    y = bt.all_gather(x, group=group)
    if place.rank == 1:
        time.sleep(IMPATIENT_SECONDS + 2)
        return "skipped"
    return _told(place, lambda: y.sum().backward())
