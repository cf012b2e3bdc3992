"""Detects a process forked from one in which JAX was running: JAX's threads are missing in it.

Loaded with `bridge` itself, so that a child knows even if its first use of the bindings comes
later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

after_jax = False
_told: list[Callable[[], None]] = []


def tell(function: Callable[[], None]) -> None:
    """Registers `function` to be called in every child that is forked after JAX has started."""
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
    """True in a child without XLA's threads, if the parent had not imported bridge."""
    tasks = Path("/proc/self/task")
    if not _jax_has_started() or not tasks.exists():
        return False
    names = [(task / "comm").read_text() for task in tasks.iterdir()]
    # A running XLA has thread pools, thus more than three threads, even if their names change.
    return len(names) < 4 and not any(name.startswith("tf_XLA") for name in names)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
    after_jax = _threads_are_missing()
