"""The Python functions that a call enters: its cost, counted instead of timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Called:
    """A function that was entered; `file` is "" if it is not written in Python."""

    file: str
    name: str


def calls_of(run: Callable[[], Any]) -> list[Called]:
    """Returns the functions that `run` enters on this thread, without `run` itself.

    Among functions that are not written in Python, only builtin functions and methods are seen.
    """
    found: list[Called] = []

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            found.append(Called(frame.f_code.co_filename, frame.f_code.co_qualname))
        elif event == "c_call":
            found.append(Called("", getattr(function, "__qualname__", repr(function))))

    collects = gc.isenabled()
    gc.disable()  # the callbacks of a collection are not part of the call
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return found[1:-1]  # without `run` and `sys.setprofile`
