"""The record of the calls that `invariant` sees, for both frameworks."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()  # of all records: dynamo can trace a constructor that makes none


class CallRecord:
    """Counts of calls that were served, and of calls that passed by with the reason.

    Attributes:
      caught: the number of calls by the function's name.
      passed: the number of calls by the function's name and the reason.
    """

    def __init__(self) -> None:
        self.caught: Counter[str] = Counter()
        self.passed: Counter[tuple[str, str]] = Counter()

    def note(self, name: str, reason: str | None) -> None:
        """Counts a call: with None as served, else as one that passed by for this reason."""
        with _lock:
            if reason is None:
                self.caught[name] += 1
            else:
                self.passed[name, reason] += 1

    def __str__(self) -> str:
        with _lock:
            caught = sorted(self.caught.items())
            passed = sorted(self.passed.items())
        names = [*(name for name, _ in caught), *(name for (name, _), _ in passed)]
        width = max(map(len, names), default=0)
        lines = ["caught"] + [f"  {name:{width}}  {count}" for name, count in caught]
        lines += ["passed by"]
        lines += [f"  {name:{width}}  {count}  {reason}" for (name, reason), count in passed]
        return "\n".join(lines)


def check_report(report: Any) -> None:
    """Raises TypeError for a report that is no bool."""
    if not isinstance(report, bool):
        raise TypeError(f"invariant: report is {report!r}, expected True or False")


def within(context: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with all its calls inside a context: `invariant` as a decorator.

    Raises:
      TypeError: for something that is no function, and for a generator or a coroutine, which runs
        after its call has returned.
    """
    if not callable(function):
        raise TypeError(f"invariant: got {type(function).__name__}, expected a function")
    runs_later = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    if any(is_one(function) for is_one in runs_later):
        name = getattr(function, "__name__", repr(function))  # a partial has no name
        raise TypeError(
            f"invariant: {name} is a generator or a coroutine, expected a function "
            f"that returns its result: write the context inside it"
        )

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return wrapped


class Interception:
    """The part of a context `invariant` that both frameworks share: its report and decorator."""

    _record: CallRecord

    @property
    def caught(self) -> Counter[str]:
        return self._record.caught

    @property
    def passed(self) -> Counter[tuple[str, str]]:
        return self._record.passed

    def __str__(self) -> str:
        return str(self._record)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with all its calls inside the context (`within`)."""
        return within(self, function)
