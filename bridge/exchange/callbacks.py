"""A record of threads that are inside a callback from JAX, where JAX must not be called again.

A callback holds a thread of the runtime. A computation started from the callback may wait for that
thread: one callback works, many of them deadlock. So JAX is refused there, in both directions of
conversion. This module imports neither framework.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_threads = threading.local()


@contextlib.contextmanager
def inside_callback(function: str) -> Iterator[None]:
    """Records that this thread runs `function` for JAX."""
    before = getattr(_threads, "function", None)
    _threads.function = function
    try:
        yield
    finally:
        _threads.function = before


def refuse_in_callback(what: str) -> None:
    """Raises RuntimeError if this thread is inside a callback from JAX."""
    function = getattr(_threads, "function", None)
    if function is not None:
        raise RuntimeError(
            f"{what}: called by {function}, a torch function that runs inside a jitted JAX "
            "function, by a callback; JAX can deadlock when it is called again from there. Call "
            "the torch function outside jit, or compute this part in JAX before it"
        )
