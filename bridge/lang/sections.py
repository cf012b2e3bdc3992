"""What the tile sections of a program compute, where all of one stands in a single loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.lang.bytecode import REDUCTIONS, Instruction, Writer

# What costs no more than to read it from where it was kept.
_CHEAP = frozenset(
    (
        *("neg", "abs", "not", "add", "sub", "mul", "fma", "minimum", "maximum", "where"),
        *("lt", "le", "eq", "ne", "and", "or", "float", "column"),
    )
)
_MOST_AGAIN = 8  # such operations


@dataclass
class Tile:
    """A tile section.

    Attributes:
      instructions: in their order; of what earlier sections had, those that run again.
      read, written: values that are kept between sections.
      rows: values that a row has one of, which it reads.
    """

    instructions: list[Instruction] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)
    written: list[Any] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)


def is_constant(writer: Writer, value: Any) -> bool:
    return writer.nodes[value[1]].operation == "constant"


def tile_sections(writer: Writer, keeps: bool = True) -> list[Tile]:
    """Those of a program. What takes more to compute again is kept by the section that has it, if
    it `keeps` anything."""
    producers: dict[Any, Instruction] = {}
    first_section: dict[Any, int] = {}
    for number, section in enumerate(writer.tiles):
        for instruction in section.instructions:
            if instruction.to is not None and not instruction.again:
                producers[instruction.to] = instruction
                first_section[instruction.to] = number

    def cost(value: Any) -> int:
        """How many cheap operations it takes to compute a value again; too many, if others."""
        producer = producers.get(value)
        if producer is None:  # a row has one of it, or it is a constant
            return 0
        if producer.operation in ("load", "load_mask"):
            return 1
        if producer.operation.removeprefix("integer_") not in _CHEAP:
            return _MOST_AGAIN + 1
        return min(1 + sum(map(cost, producer.reads)), _MOST_AGAIN + 1)

    tiles = []
    for section in writer.tiles:
        tile = Tile()
        needed: set[Any] = set()
        for instruction in reversed(section.instructions):
            value = instruction.to
            is_root = value is None or instruction.operation in REDUCTIONS
            if not is_root and value not in needed:
                continue
            # What is kept is kept as a floating number: no integer.
            is_kept = keeps and instruction.again and writer.nodes[value[1]].dtype != "int"
            if is_kept and cost(value) > _MOST_AGAIN:
                tile.read.insert(0, value)
                continue
            tile.instructions.insert(0, instruction)
            if instruction.operation != "keep":
                needed.update(instruction.reads)
        for instruction in tile.instructions:
            for value in instruction.reads if instruction.operation != "keep" else ():
                is_of_row = value not in first_section and not is_constant(writer, value)
                if is_of_row and value not in tile.rows:
                    tile.rows.append(value)
        tiles.append(tile)
    for tile in tiles:
        for value in tile.read:
            if value not in tiles[first_section[value]].written:
                tiles[first_section[value]].written.append(value)
    return tiles
