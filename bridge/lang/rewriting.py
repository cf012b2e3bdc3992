"""Copies of a program in another builder, with replacements for some nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bridge.lang.program import Program, Result
from bridge.lang.values import Builder, Value


def rewritten(
    program: Program, builder: Builder, replacement: Callable[[int, tuple[int, ...]], Value | None]
) -> list[Value]:
    """Copies the nodes of a program into a builder and returns the copies, in order.

    Args:
      replacement: replacement(number, inputs) returns the value that replaces a node, given the
        numbers of the copies of its inputs; None to copy the node unchanged.
    """
    values: list[Value] = []
    for number, node in enumerate(program.nodes):
        inputs = tuple(values[i].number for i in node.inputs)
        value = replacement(number, inputs)
        if value is None:
            value = builder.node(
                node.operation, inputs, node.static, axes=node.axes, dtype=node.dtype
            )
        values.append(value)
    return values


def result_of(values: Sequence[Value], result: Result) -> Result:
    """Returns a copy of the result that refers to the copied nodes."""
    return replace(result, nodes=tuple(values[i].number for i in result.nodes))
