"""Exceptions of torch functions inside callbacks, for callers that want the original exception.

XLA passes on only text, so the exceptions are stored here until `torch_errors` takes them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

_log = logging.getLogger("bridge")
_failures: OrderedDict[int, BaseException] = OrderedDict()
_numbers = itertools.count(1)
_failures_lock = threading.Lock()
_KEPT_FAILURES = 32


class TorchFunctionError(RuntimeError):
    """A torch function has raised inside a callback; the message has its traceback."""


@contextlib.contextmanager
def reported(name: str, aloud: bool) -> Iterator[None]:
    """Stores an exception for `torch_errors`, and raises another that contains its whole text.

    Args:
        name: the name of the torch function.
        aloud: True to log the exception too. If other devices wait for this one in a collective,
            XLA ends the process before the caller sees an exception.
    """
    try:
        yield
    except BaseException as error:  # Ctrl-C too, on the main thread
        # The frames would keep tensors alive whose memory belongs to XLA.
        link: BaseException | None = error
        while link is not None:
            traceback.clear_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
        number = next(_numbers)
        with _failures_lock:
            _failures[number] = error
            while len(_failures) > _KEPT_FAILURES:
                _failures.popitem(last=False)
        text = "".join(traceback.format_exception(error))
        if aloud:
            _log.error("from_torch: %s raised on one of several devices:\n%s", name, text)
        raise TorchFunctionError(
            f"from_torch: {name} raised {type(error).__name__}: {error} [torch error {number}; "
            f"`with bridge.jax.torch_errors():` raises it itself]\n{text}"
        ) from None


class _TorchErrors(contextlib.AbstractContextManager[None], contextlib.ContextDecorator):
    """A class instead of a generator, which cannot raise StopIteration."""

    def __exit__(self, kind: Any, error: BaseException | None, frames: Any) -> None:
        if not isinstance(error, RuntimeError | ValueError):  # JAX raises either, by context
            return
        text = str(error)
        with _failures_lock:
            found = [n for n in _failures if f"[torch error {n};" in text]
            original = _failures.pop(found[0]) if found else None
        if original is not None:
            raise original from error


def torch_errors() -> contextlib.AbstractContextManager[None]:
    """Makes calls of jitted code raise the original exceptions of torch functions.

    An exception inside a callback reaches the caller of a jitted function as JAX's JaxRuntimeError,
    and its text has the traceback of the torch code. Put this context manager around the call and
    around the code that waits for its results. It raises the original exception with its own
    traceback, and JAX's exception as the cause. It also raises the KeyboardInterrupt if Ctrl-C is
    pressed while the function runs. Eager calls do not need it.

    Example:
        with bridge.jax.torch_errors():
            step(params, batch).block_until_ready()
    """
    return _TorchErrors()
