"""Functions that make ops from the declarations of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.declared import DeclaredOp


def declared(
    keep: Sequence[str] = (), vjp: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], DeclaredOp]:
    """Works like `bridge.op`, without the import of a framework."""
    return lambda function: DeclaredOp(function, tuple(keep), vjp, is_own=True)


def named(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Sets the name for messages: the public function that calls the op."""

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__name__ = name
        return function

    return give


def shape_of(array: Any) -> tuple[int, ...]:
    """Returns an array's shape; () for other objects and nested tensors, which the op refuses."""
    return () if getattr(array, "is_nested", False) else tuple(getattr(array, "shape", ()))
