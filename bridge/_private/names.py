"""How a private name of a framework is looked up, so that its loss is known where it happens.

A name is looked up once. Where it is gone something public or slower takes its place; where there
is no such thing an ImportError says which version has lost it, and which ones are known to have it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

# Paths that are taken to be gone: a test fills it before it imports anything else of bridge.
hidden: set[str] = set()

_NOTHING: Any = object()


class Name(NamedTuple):
    """A private name that is used.

    Attributes:
      path: dotted, from the framework on; of a private attribute its name alone.
      why: what it is for, and what is done without it.
      is_needed: whether there is nothing to do without it.
    """

    path: str
    why: str
    is_needed: bool


class Names:
    """The private names of one framework, and the versions of it that were run."""

    def __init__(self, framework: str, known: str) -> None:
        self.framework, self.known = framework, known
        self.entries: list[Name] = []

    def find(self, path: str, why: str, fallback: Any = _NOTHING) -> Any:
        """What has this path, or the fallback.

        Raises:
          ImportError: there is neither.
        """
        self._note(path, why, fallback)
        value = _look_up(path)
        return self._without(path, fallback) if value is _NOTHING else value

    def find_function(self, path: str, why: str) -> Callable[..., Any]:
        """What has this path; where it is gone, what raises that ImportError when it is called."""
        self._note(path, why, _NOTHING)
        value = _look_up(path)

        def gone(*_: Any, **__: Any) -> Any:
            return self._without(path, _NOTHING)

        return gone if value is _NOTHING else value  # type: ignore[no-any-return]

    def later(self, path: str, why: str, fallback: Any = _NOTHING) -> Callable[[], Any]:
        """A function that does the same, when it is called: for modules that take long to import,
        and for names without which everything else goes on."""
        self._note(path, why, fallback)

        def look_up() -> Any:
            value = _look_up(path)
            return self._without(path, fallback) if value is _NOTHING else value

        return look_up

    def if_loaded(self, path: str, why: str, fallback: Any) -> Callable[[], Any]:
        """A function that does the same, and answers with the fallback until someone else has
        imported the module."""
        self._note(path, why, fallback)
        module, _, name = path.rpartition(".")
        if path in hidden:
            return lambda: fallback
        return lambda: getattr(sys.modules.get(module), name, fallback)

    def attribute(self, name: str, why: str) -> None:
        """Notes an attribute of objects that is read where it is needed: in hot or traced code."""
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
    """What has this path; _NOTHING if nothing has, or it is hidden."""
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
