"""Functions split in two loops: the first starts them, the second finishes them.

A processor looks some hundred instructions ahead. A long chain of dependent instructions, such as a
logistic function, fills that window with two or three vectors, and the processor waits. Half a
chain leaves room for twice as many vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.lang.emission.sections import Tile, part_of, weight_of
from bridge.lang.instructions import BY_NAME
from bridge.lang.registers import Instruction

_LONG = 8  # in units of sections.weight_of: one function, or 8 cheap operations
_MOST = 8  # starts of a section; their arrays lie on the stack and shall fit the first-level cache


def starts_of(tile: Tile, made_by: Mapping[Any, Instruction]) -> dict[tuple[str, Any], list[Any]]:
    """Selects the functions that a section starts in a loop of its own.

    Args:
      tile: the section.
      made_by: its instructions, by the values that they compute.

    Returns:
      The values to finish, by (starting operation, argument of the function).
    """
    found: dict[tuple[str, Any], list[Any]] = {}
    for instruction in tile.instructions:
        halves = BY_NAME[instruction.operation].halves
        if halves is None:
            continue
        start, of = halves.first, instruction.reads[0]
        made = made_by.get(of)
        # Sigmoid starts with e^-|x|, so it shares the start of -x.
        if instruction.operation == "sigmoid" and made is not None and made.operation == "neg":
            of = made.reads[0]
        is_new = (start, of) not in found
        # The argument is computed in both loops.
        if is_new and (len(found) == _MOST or weight_of(part_of(tile, (), [of])) >= _LONG):
            continue
        found.setdefault((start, of), []).append(instruction.to)
    return found
