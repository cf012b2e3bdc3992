"""Functions that a loop of their own starts, before another finishes them.

A processor looks some hundred instructions ahead. What is one long chain of them, as a logistic
function is, it computes for two or three vectors at a time, and waits; of half a chain it has twice
as many under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.lang.registers import Instruction
from bridge.lang.sections import Tile, part_of, weight_of

# Those whose starts are alike have them in common; that of sigmoid is e^-|x|, thus that of -x.
_STARTS = {
    "sigmoid": "silu",
    "silu": "silu",
    "gelu_tanh": "gelu_tanh",
    "gelu_tanh_1": "gelu_tanh_1",
    "gelu_tanh_2": "gelu_tanh_1",
    "gelu_sigmoid": "gelu_sigmoid",
    "gelu_sigmoid_1": "gelu_sigmoid_1",
    "gelu_sigmoid_2": "gelu_sigmoid_1",
}
_LONG = 8  # by sections.weight_of: a function, or so many cheap operations
_MOST = 8  # starts of a section: what they leave lies on the stack, and in a first-level cache


def starts_of(tile: Tile, made_by: Mapping[Any, Instruction]) -> dict[tuple[str, Any], list[Any]]:
    """What a section starts in a loop of its own: the values that it is for, by the operation that
    starts them and the value that it takes.

    Args:
      tile: the section.
      made_by: its instructions by the values that they make.
    """
    found: dict[tuple[str, Any], list[Any]] = {}
    for instruction in tile.instructions:
        start = _STARTS.get(instruction.operation)
        if start is None:
            continue
        of = instruction.reads[0]
        made = made_by.get(of)
        if instruction.operation == "sigmoid" and made is not None and made.operation == "neg":
            of = made.reads[0]
        is_new = (start, of) not in found
        # Both loops compute what that is made from.
        if is_new and (len(found) == _MOST or weight_of(part_of(tile, (), [of])) >= _LONG):
            continue
        found.setdefault((start, of), []).append(instruction.to)
    return found
