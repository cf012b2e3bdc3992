"""The state of threads that run torch code for JAX."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from bridge._private.torch import function_modes

_SUBNORMAL = 5e-324
_threads = threading.local()


def in_gradient() -> bool:
    """True inside `during_gradient`."""
    return getattr(_threads, "stack", None) is not None


@contextlib.contextmanager
def during_gradient() -> Iterator[None]:
    """Wraps a function and its backward pass, in which torch.utils.checkpoint may run it again.

    Contexts on the stack of `lasting` stay open until the outermost of nested derivatives is
    computed.
    """
    if in_gradient():
        yield
        return
    with contextlib.ExitStack() as stack:
        _threads.stack = stack
        try:
            yield
        finally:
            _threads.stack = None


@contextlib.contextmanager
def lasting() -> Iterator[contextlib.ExitStack]:
    """Yields a stack that closes with the enclosing `during_gradient`, else with this context."""
    if in_gradient():
        yield _threads.stack
        return
    with contextlib.ExitStack() as stack:
        yield stack


@contextlib.contextmanager
def plain_thread() -> Iterator[None]:
    """Runs code as on a fresh thread: without gradients and without the thread's torch modes.

    XLA's threads flush subnormal numbers to zero. A callback may also run on the caller's thread,
    inside the caller's autocast or `torch.device`, which XLA's own threads do not have.
    """
    flushes = _SUBNORMAL * 1.0 == 0.0
    with contextlib.ExitStack() as stack:
        if flushes:
            torch.set_flush_denormal(False)
            stack.callback(torch.set_flush_denormal, True)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if function_modes():
            stack.enter_context(torch.device("cpu"))
        # This comes last, because the end of inference mode enables gradients.
        with torch.no_grad():
            yield
