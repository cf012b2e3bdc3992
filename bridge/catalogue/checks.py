"""Checks of static parameters: each returns the value that a program has fixed, or raises.

A check is called as check(function, name, value), with the public function's name for messages. It
raises TypeError for a value of another type and ValueError for a value that is not allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge.lang.tracing import Check
from bridge.ops.scalars import real_number


def number(expected: str, is_allowed: Callable[[float], bool]) -> Check:
    """Returns the check of a real number, which becomes a float."""

    def check(function: str, name: str, value: Any) -> float:
        found = real_number(function, name, value)
        if not is_allowed(found):
            raise ValueError(f"{function}: {name} is {found}, expected {expected}")
        return found

    return check


def optional(check_given: Check) -> Check:
    """Returns a check that also allows None."""

    def check(function: str, name: str, value: Any) -> Any:
        return None if value is None else check_given(function, name, value)

    return check


def word(words: Iterable[str], shown: Callable[[str], str] = repr) -> Check:
    """Returns the check of a text that is one of a few words."""
    allowed = tuple(words)

    def check(function: str, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(
                f"{function}: {name} is {value!r}, expected one of {', '.join(map(shown, allowed))}"
            )
        return value

    return check


def flag(function: str, name: str, value: Any) -> bool:
    """Checks a truth value."""
    if not isinstance(value, bool):
        raise TypeError(f"{function}: {name} is {value!r}, expected True or False")
    return value


def check_each(checks: Mapping[str, Check], function: str, /, **values: Any) -> None:
    """Runs the checks of static arguments that a module stores."""
    for name, value in values.items():
        checks[name](function, name, value)


finite = number("a finite number", math.isfinite)
positive = number("a positive number", lambda value: value > 0)
probability = number("a probability, from 0 to 1", lambda value: 0.0 <= value <= 1.0)
# A row of zeros gives NaN with an eps that is 0 in float32.
eps = number(
    "a positive finite number that float32 has", lambda value: 2.0**-149 <= value < math.inf
)
