"""Functions that make ops from the declarations of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bridge.declared import DeclaredOp
from bridge.lang.tracing import Check


def declared(
    keep: Sequence[str] = (),
    vjp: Callable[..., Any] | None = None,
    checks: Mapping[str, Check] | None = None,
    needs: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], DeclaredOp]:
    """Works like `bridge.op`, without the import of a framework.

    Args:
      checks: the check of each static parameter, which both frameworks run at the first call of a
        kind.
      needs: static parameters that must be 0 without an operand, and the operand's name.
    """
    return lambda function: DeclaredOp(function, tuple(keep), vjp, checks, needs, is_own=True)


def named(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Sets the name for messages: the public function that calls the op."""

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__name__ = name
        return function

    return give


def shape_of(array: Any) -> tuple[int, ...]:
    """Returns an array's shape; () for other objects and nested tensors, which the op refuses."""
    return () if getattr(array, "is_nested", False) else tuple(getattr(array, "shape", ()))
