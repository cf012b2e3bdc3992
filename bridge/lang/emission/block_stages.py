"""Tile sections cut at their reductions of blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bridge.lang.emission.sections import Tile, part_of
from bridge.lang.instructions import BLOCK_REDUCTIONS, REDUCTIONS
from bridge.lang.registers import Instruction


def block_stages(tile: Tile) -> list[tuple[list[Instruction], Tile]]:
    """Returns the reductions of blocks in groups, each with the part that computes its inputs.

    A group comes after the groups that its inputs need. Parts end at reductions of earlier groups.
    """
    depth: dict[Any, int] = {}
    groups: dict[int, list[Instruction]] = {}
    for each in tile.instructions:
        reads = each.reads if each.operation != "keep" else ()
        own = max((depth.get(value, 0) for value in reads), default=0)
        if each.operation in BLOCK_REDUCTIONS:
            groups.setdefault(own, []).append(each)
            own += 1
        if each.to is not None:
            depth[each.to] = own
    cut = without_block_inputs(tile)
    return [
        (group, part_of(cut, (), [value for each in group for value in each.reads]))
        for _, group in sorted(groups.items())
    ]


def without_block_inputs(tile: Tile) -> Tile:
    """Returns the section with reductions of blocks that read nothing, as if they were loads."""
    instructions = [
        replace(each, reads=()) if each.operation in BLOCK_REDUCTIONS else each
        for each in tile.instructions
    ]
    return replace(tile, instructions=instructions)


def last_stage(tile: Tile) -> Tile:
    """Returns the part of a section after its reductions of blocks."""
    cut = without_block_inputs(tile)
    roots = [
        number
        for number, each in enumerate(cut.instructions)
        if each.to is None or each.operation in REDUCTIONS or each.to in tile.written
    ]
    return part_of(cut, roots)


def has_blocks(tile: Tile) -> bool:
    return any(each.operation in BLOCK_REDUCTIONS for each in tile.instructions)
