"""How the declarations of the catalogue become ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.declared import DeclaredOp


def declared(
    keep: Sequence[str] = (), vjp: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], DeclaredOp]:
    """`bridge.op`, without a framework being imported for it."""
    return lambda function: DeclaredOp(function, tuple(keep), vjp, is_own=True)


def named(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The name in messages: that of the public function which calls this."""

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__name__ = name
        return function

    return give


def shape_of(array: Any) -> tuple[int, ...]:
    """Its shape; () of what has none, a nested tensor of torch too, which the op then refuses."""
    return () if getattr(array, "is_nested", False) else tuple(getattr(array, "shape", ()))
