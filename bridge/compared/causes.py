"""The difference behind a part as a sentence, where it is one of the known mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.compared.search import Found, Search


@dataclass(frozen=True)
class Cause:
    """A sentence; `is_certain` where both sides' numbers were read off their operations."""

    text: str = ""
    is_certain: bool = False


def cause_of(found: Found, search: Search) -> Cause:
    """Returns the known mistake that a part shows, an empty sentence for others."""
    for rule in _RULES:
        cause = rule(found, search)
        if cause is not None:
            return cause
    return Cause()


_RULES: list[Callable[[Any, Any], Cause | None]] = []
