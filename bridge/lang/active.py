"""The program that is being traced by this thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bridge.lang.errors import DeclarationError


class _Active(threading.local):
    def __init__(self) -> None:
        self.builders: list[Any] = []


_active = _Active()


def current() -> Any:
    """Returns the builder of `while_active`, or None outside of declarations."""
    return _active.builders[-1] if _active.builders else None


def while_active(builder: Any, call: Callable[[], Any]) -> Any:
    """Runs a call while functions without a value argument, such as `column()`, use `builder`."""
    _active.builders.append(builder)
    try:
        return call()
    except TypeError as error:
        # JAX replaces the error that a value raised by an error of its own.
        told = error.__context__
        if isinstance(told, DeclarationError) and not isinstance(error, DeclarationError):
            raise told from None
        raise
    finally:
        _active.builders.pop()
