"""The state of a thread that torch code runs on for JAX."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from bridge._private.torch import function_modes

_SUBNORMAL = 5e-324
_threads = threading.local()


def in_gradient() -> bool:
    """Whether this is inside of `during_gradient`."""
    return getattr(_threads, "stack", None) is not None


@contextlib.contextmanager
def during_gradient() -> Iterator[None]:
    """Around a function and its backward pass, where torch.utils.checkpoint may run it again.

    What was entered into the stack of `lasting` stays until the outermost of several derivatives
    has been computed.
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
    """A stack that closes with `during_gradient`, or, outside of that, with this context."""
    if in_gradient():
        yield _threads.stack
        return
    with contextlib.ExitStack() as stack:
        yield stack


@contextlib.contextmanager
def plain_thread() -> Iterator[None]:
    """Runs as on a fresh thread, whatever the thread is in the middle of, and without gradients.

    XLA's threads flush subnormal numbers to zero, and a callback may run on the caller's thread,
    inside an autocast or a `torch.device` of his, which threads of XLA do not see.
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
        # This comes last, as the end of inference mode turns gradients on.
        with torch.no_grad():
            yield
