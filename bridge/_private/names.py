"""The look-up of private names of a framework, so that a missing one is reported where it matters.

A name is looked up once. If it is gone, a public or slower substitute takes its place. If there is
no substitute, an ImportError names the framework version without it and the versions with it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

# Paths to treat as missing; a test fills it before it imports anything else of bridge.
hidden: set[str] = set()

_NOTHING: Any = object()


class Name(NamedTuple):
    """A private name in use.

    Attributes:
      path: dotted, from the framework on; for a private attribute its name alone.
      why: its purpose, and the substitute.
      is_needed: True if there is no substitute.
    """

    path: str
    why: str
    is_needed: bool


class Names:
    """The private names of one framework, and the versions of it that were tested."""

    def __init__(self, framework: str, known: str) -> None:
        self.framework, self.known = framework, known
        self.entries: list[Name] = []

    def find(self, path: str, why: str, fallback: Any = _NOTHING) -> Any:
        """Returns the object with this path, or the fallback.

        Raises:
          ImportError: if there is neither.
        """
        self._note(path, why, fallback)
        value = _look_up(path)
        return self._without(path, fallback) if value is _NOTHING else value

    def find_function(self, path: str, why: str) -> Callable[..., Any]:
        """Returns the function with this path; if missing, one that raises an ImportError."""
        self._note(path, why, _NOTHING)
        value = _look_up(path)

        def gone(*_: Any, **__: Any) -> Any:
            return self._without(path, _NOTHING)

        return gone if value is _NOTHING else value  # type: ignore[no-any-return]

    def later(self, path: str, why: str, fallback: Any = _NOTHING) -> Callable[[], Any]:
        """Returns a function that looks the name up when called.

        For modules that take long to import, and for names that only some functions need.
        """
        self._note(path, why, fallback)

        def look_up() -> Any:
            value = _look_up(path)
            return self._without(path, fallback) if value is _NOTHING else value

        return look_up

    def if_loaded(self, path: str, why: str, fallback: Any) -> Callable[[], Any]:
        """Returns a function that gives the name if its module is loaded, else the fallback.

        It never imports the module itself.
        """
        self._note(path, why, fallback)
        module, _, name = path.rpartition(".")
        if path in hidden:
            return lambda: fallback
        return lambda: getattr(sys.modules.get(module), name, fallback)

    def attribute(self, name: str, why: str) -> None:
        """Lists an attribute of objects that hot or traced code reads directly."""
        self.entries.append(Name(name, why, False))

    def _note(self, path: str, why: str, fallback: Any) -> None:
        self.entries.append(Name(path, why, fallback is _NOTHING))

    def _without(self, path: str, fallback: Any) -> Any:
        if fallback is not _NOTHING:
            return fallback
        version = getattr(importlib.import_module(self.framework), "__version__", "unknown")
        raise ImportError(
            f"bridge needs {path}, which {self.framework} {version} lacks; bridge was run with "
            f"{self.framework} {self.known}"
        )


def _look_up(path: str) -> Any:
    """Returns the object with this path; _NOTHING if it is missing or hidden."""
    if path in hidden:
        return _NOTHING
    first, *rest = path.split(".")
    value: Any = importlib.import_module(first)
    for i, part in enumerate(rest, 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(path.split(".")[:i]))
            except ImportError:
                return _NOTHING
    return value
