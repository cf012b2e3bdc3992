"""Checks for testing the processes themselves, without a framework."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.distributed.processes import Place


def join(place: Place) -> None:
    pass


def where(place: Place, extra: int) -> tuple[int, int, int, bool]:
    return place.rank, place.world_size, extra, place.directory.is_dir()


def much(place: Place, count: int) -> bytes:
    return bytes([place.rank]) * count


def misbehave(place: Place, rank: int, how: str) -> Any:
    if place.rank != rank:
        return "well"
    if how == "raise":
        raise ValueError("as it was told to")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "return what cannot be sent":
        return lambda: None
    time.sleep(1000)
    return None
