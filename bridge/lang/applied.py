"""Operations of the row's values by name, and the parts that all other functions need."""

from __future__ import annotations

from typing import Any

from bridge.lang.program import COLUMNS
from bridge.lang.refusals import Unusable
from bridge.lang.values import Value, builder_of

__all__ = ["column", "columns", "stop_gradient", "where"]


def apply(operation: str, *arguments: Any, static: Any = None) -> Value:
    """Applies an operation, given by its name."""
    for argument in arguments:
        if isinstance(argument, Unusable):
            argument.refused()
    return builder_of(*arguments).apply(operation, *arguments, static=static)


def parameter(number: float, name: str) -> Value:
    """A number that may differ from call to call of the same kernel."""
    return builder_of().parameter(number, name)


def where(condition: Any, x: Any, y: Any) -> Value:
    """x where the condition holds, else y; the operand not chosen gets a gradient of 0.

    This holds even if its derivative is infinite there, such as the derivative of log at 0. An
    operand that is NaN there may still give NaN.
    """
    return apply("where", condition, x, y)


def stop_gradient(x: Any) -> Value:
    """x, treated as a constant by all derivatives."""
    return apply("stop_gradient", x)


def column() -> Value:
    """The index of the column, an integer, from 0."""
    return builder_of().node("column", axes=COLUMNS, dtype="int")


def columns() -> Value:
    """The number of columns of a row, an integer."""
    builder = builder_of()
    if builder.length is not None:
        return builder.length
    return builder.node("columns", axes=0, dtype="int")
