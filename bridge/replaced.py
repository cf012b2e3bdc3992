"""The report of `replace`, which replaces layers of a model in either framework."""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Replaced:
    """The result of `replace`; `print` shows it.

    Attributes:
      done: for each replaced layer or function, by name, the op that computes it now.
      left: for each candidate that was not replaced, the reason.
      before: for each layer or function that an earlier call replaced, its op.
    """

    done: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Restores the original computation of everything in `done`."""
        while self._undo:
            self._undo.pop()()
        self.done.clear()

    def __str__(self) -> str:
        lines = [f"{count} × {op}" for op, count in Counter(self.done.values()).items()]
        for op, count in Counter(self.before.values()).items():
            lines.append(f"{count} × {op}, replaced by an earlier call")
        for why, count in Counter(self.left.values()).items():
            names = [name for name, reason in self.left.items() if reason == why]
            lines.append(f"left {count}, such as {', '.join(names[:3])}: {why}")
        return "\n".join(lines) or "nothing"


def names_read_by(function: Any) -> Iterator[str]:
    """Yields the global names and attributes in the code of a Python function."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is not None:
        yield from _names_in(code)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
