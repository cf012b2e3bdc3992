"""Whether this process was forked off one in which JAX was running, whose threads stayed behind.

Loaded with `bridge` itself, so that a child that is the first to touch the border knows too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

after_jax = False
_told: list[Callable[[], None]] = []


def tell(function: Callable[[], None]) -> None:
    """Calls `function` in every child that is forked after JAX has started."""
    _told.append(function)


def _jax_has_started() -> bool:
    xla_bridge = sys.modules.get("jax._src.xla_bridge")
    if xla_bridge is None:
        return False
    started: Callable[[], bool] | None = getattr(xla_bridge, "backends_are_initialized", None)
    return started is None or started()


def _in_child() -> None:
    global after_jax
    if _jax_has_started():
        after_jax = True
        for function in _told:
            function()


def _threads_are_missing() -> bool:
    """Whether XLA's threads are not there, in a child that is the first to import bridge at all."""
    tasks = Path("/proc/self/task")
    if not _jax_has_started() or not tasks.exists():
        return False
    names = [(task / "comm").read_text() for task in tasks.iterdir()]
    # A running XLA has its pools, which are more than these, whatever they may be called one day.
    return len(names) < 4 and not any(name.startswith("tf_XLA") for name in names)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
    after_jax = _threads_are_missing()
