"""Programs written into another builder, with other values in the place of some nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bridge.lang.program import Program, Result
from bridge.lang.values import Builder, Value


def rewritten(
    program: Program, builder: Builder, replacement: Callable[[int, tuple[int, ...]], Value | None]
) -> list[Value]:
    """The values that stand for a program's nodes in the builder.

    Args:
      replacement: replacement(number, inputs) returns what stands for a node, given the numbers of
        what stands for its inputs; None where the node stays as it is.
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
    """A result of the program, from the values that stand for its nodes."""
    return replace(result, nodes=tuple(values[i].number for i in result.nodes))
