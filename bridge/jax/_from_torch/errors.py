"""Exceptions of torch functions inside callbacks, for whoever wants them themselves.

XLA passes on text alone, so the exceptions wait here to be asked for.
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
    """Keeps an exception for `torch_errors`, and raises one that tells XLA all about it.

    Args:
        name: of the torch function.
        aloud: whether to log it too: where other devices wait for this one in a collective, XLA
            ends the process before anybody is told.
    """
    try:
        yield
    except BaseException as error:  # Ctrl-C arrives here too, on the main thread
        # The frames would keep tensors whose memory is XLA's.
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
    """A class, as a generator cannot raise StopIteration."""

    def __exit__(self, kind: Any, error: BaseException | None, frames: Any) -> None:
        if not isinstance(error, RuntimeError | ValueError):  # as which depends on where JAX stands
            return
        text = str(error)
        with _failures_lock:
            found = [n for n in _failures if f"[torch error {n};" in text]
            original = _failures.pop(found[0]) if found else None
        if original is not None:
            raise original from error


def torch_errors() -> contextlib.AbstractContextManager[None]:
    """Raises the exceptions of torch functions themselves where jitted code is called.

    An exception inside a callback reaches the caller of a jitted function as JAX's JaxRuntimeError,
    whose text has the torch code's traceback. Around the call, and around whatever waits for its
    results, this raises the original exception with its own traceback instead, with JAX's as its
    cause: a KeyboardInterrupt too, if Ctrl-C is pressed while the function runs. Eager calls need
    it not.

    Example:
        with bridge.jax.torch_errors():
            step(params, batch).block_until_ready()
    """
    return _TorchErrors()
