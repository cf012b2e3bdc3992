"""Analysis of tile sections: the operations of each, and patterns with a cheaper kernel."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.lang.bytecode import Writer
from bridge.lang.instructions import BLOCK_REDUCTIONS, REDUCTIONS, cost_of
from bridge.lang.program import Node, constant_of, sole_column
from bridge.lang.registers import Instruction

_CHEAP = 1  # costs no more than to read its value from where it was saved
_MOST_AGAIN = 8  # cheap operations to compute a value again rather than save it


@dataclass
class Tile:
    """A tile section.

    Attributes:
      instructions: in their order; instructions of earlier sections only if they run again.
      read, written: values saved between sections.
      rows: per-row values that it reads.
    """

    instructions: list[Instruction] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)
    written: list[Any] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)


def is_constant(writer: Writer, value: Any) -> bool:
    return writer.nodes[value[1]].operation == "constant"


def tile_sections(writer: Writer, keeps: bool = True) -> list[Tile]:
    """Returns the tile sections of a program.

    If `keeps`, a value that is expensive to compute again is saved by its first section.
    """
    producers: dict[Any, Instruction] = {}
    first_section: dict[Any, int] = {}
    for number, section in enumerate(writer.tiles):
        for instruction in section.instructions:
            if instruction.to is not None and not instruction.again:
                producers[instruction.to] = instruction
                first_section[instruction.to] = number

    def cost(value: Any) -> int:
        """Returns the cheap operations that compute a value again; above the limit for others."""
        producer = producers.get(value)
        if producer is None:  # a per-row value or a constant
            return 0
        if producer.operation in ("load", "load_mask"):
            return 1
        if cost_of(producer.operation).cpu != _CHEAP:
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
            # Values are saved as floating numbers, so integers are not.
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


def streams_of(tile: Tile) -> list[tuple[int, int]]:
    """Returns the (operand, half) pairs that a section loads, each once."""
    found = [
        (i.arguments[0], i.arguments[1])
        for i in tile.instructions
        if i.operation in ("load", "load_mask")
    ]
    return list(dict.fromkeys(found))


def weight_of(tile: Tile) -> int:
    """Estimates the time of a section, in cheap operations."""
    return sum(cost_of(each.operation).cpu for each in tile.instructions)


def part_of(tile: Tile, roots: Collection[int], values: Collection[Any] = ()) -> Tile:
    """Returns the part of a section that some instructions, by number, and some values need."""
    needed = set(values)
    part = Tile()
    for number, instruction in reversed([*enumerate(tile.instructions)]):
        if number in roots or instruction.to in needed:
            part.instructions.insert(0, instruction)
            if instruction.operation != "keep":
                needed.update(instruction.reads)
    part.read = [value for value in tile.read if value in needed]
    part.rows = [value for value in tile.rows if value in needed]
    part.written = [i.to for i in part.instructions if i.to in tile.written]
    return part


def value_instead(writer: Writer, tiles: Sequence[Tile], stream: tuple[int, int]) -> Any:
    """Returns a value that later sections can read instead of the stream it is computed from.

    The value is computed in the first section that loads the stream, by two or more operations on
    elements of the stream only; of several values the longest is taken. Later sections that have it
    do not load the stream. None if there is no such value or no later section.
    """
    first, *later = [tile for tile in tiles if stream in streams_of(tile)]
    found, most = None, 2
    for value in [each.to for each in first.instructions if later and each.to is not None]:
        part = part_of(first, (), [value])
        operations = len(part.instructions) - 1  # beside the load
        if (
            operations >= most
            and writer.nodes[value[1]].dtype == "float"
            and streams_of(part) == [stream]
            and not any(_reads_beside(tile, value, stream) for tile in later)
        ):
            found, most = value, operations + 1
    return found


def _reads_beside(tile: Tile, value: Any, stream: tuple[int, int]) -> bool:
    """True if a section would still read a stream if it had a value."""
    given = [replace(each, reads=()) if each.to == value else each for each in tile.instructions]
    roots = [
        number
        for number, each in enumerate(given)
        if each.to is None or each.operation in REDUCTIONS
    ]
    return stream in streams_of(part_of(Tile(given), roots))


def makers(tile: Tile) -> dict[Any, Instruction]:
    """Returns the instructions of a tile section by the values they compute."""
    return {each.to: each for each in tile.instructions if each.to is not None}


def named_column(writer: Writer, condition: Any) -> Any:
    """Returns `label` for a condition `column() == label` with a per-row label, else None."""
    number = sole_column(writer.nodes, condition[1])
    return None if number is None else ("tile", number)


@dataclass
class Pick:
    """A sum whose terms are -0.0 in every column but one: it equals a value at that column."""

    value: Any
    column: Any  # a per-row value


def pick_of(writer: Writer, tile: Tile, reduction: Instruction) -> Pick | None:
    """Matches sum(where(column() == label, value, -0.0))."""
    made_by = makers(tile)
    term = made_by.get(reduction.reads[0])
    if reduction.operation != "sum" or term is None or term.operation != "where":
        return None
    condition, value, other = term.reads
    column = named_column(writer, condition)
    if column is None or not is_constant(writer, other):
        return None
    zero = constant_of(writer.nodes[other[1]])
    return Pick(value, column) if zero == 0 and math.copysign(1, zero) < 0 else None


@dataclass
class LargestCount:
    """A sum with a 1 for each element of a row that equals the largest one."""

    load: Instruction  # of the element
    largest: Any  # a per-row value

    def is_taken_by(self, instruction: Instruction) -> bool:
        """True for the log Σ eˣ term of the same elements and the same largest one."""
        is_term = instruction.operation.startswith("log_sum_term")
        return is_term and tuple(instruction.reads) == (self.load.to, self.largest)


def largest_count_of(
    writer: Writer, made_by: dict[Any, Instruction], reduction: Instruction, free: Collection[int]
) -> LargestCount | None:
    """Matches sum(where(x < max(x), 0, 1)) with constants that are not free."""
    term = made_by.get(reduction.reads[0])
    if reduction.operation != "sum" or term is None or term.operation != "where":
        return None
    condition, *numbers = term.reads
    if any(not is_constant(writer, each) or each[1] in free for each in numbers):
        return None
    less = made_by.get(condition)
    if less is None or less.operation != "lt":
        return None
    x, largest = less.reads
    load, node = made_by.get(x), writer.nodes[largest[1]]
    is_largest = (node.operation, node.inputs) == ("max", (x[1],))
    counts = [constant_of(writer.nodes[each[1]]) for each in numbers] == [0.0, 1.0]
    if load is None or load.operation != "load" or not is_largest or not counts:
        return None
    return LargestCount(load, largest)


@dataclass
class OneColumn:
    """A section whose results differ in one column of each row, by selects on the column."""

    column: Any  # a per-row value
    others: Tile  # the computation for all other columns


def one_column_of(writer: Writer, tile: Tile) -> OneColumn | None:
    """Matches a section whose results are where(column() == label, a, b).

    It must not draw, save or reduce values: that happens in every column.
    """
    instructions = tile.instructions
    found = {*REDUCTIONS, *BLOCK_REDUCTIONS, "keep", "add_columns"} & {
        each.operation for each in instructions
    }
    if found or tile.written:
        return None
    taken: dict[Any, Any] = {}
    columns = []
    for each in instructions:
        if each.operation == "where":
            condition, _, other = each.reads
            column = named_column(writer, condition)
            if column is not None:
                columns.append(column)
                taken[each.to] = taken.get(other, other)
    if len(set(columns)) != 1:
        return None
    others = Tile(
        [
            replace(each, reads=[taken.get(value, value) for value in each.reads])
            for each in instructions
        ],
        tile.read,
        rows=tile.rows,
    )
    roots = [number for number, each in enumerate(instructions) if each.operation == "store"]
    part = part_of(others, roots)
    # If no instruction is saved, another loop is not worth its code.
    return OneColumn(columns[0], part) if len(part.instructions) < len(instructions) else None


@dataclass
class ConstantRows:
    """A section that stores only constants in rows selected by a condition."""

    condition: Any  # a per-row value
    holds: bool  # the value of the condition in these rows
    stores: Tile


def constant_rows_of(writer: Writer, tile: Tile, free: Collection[int]) -> ConstantRows | None:
    """Matches a section that stores constants in some rows, such as rows that a loss ignores.

    The constants must not be free. The section must not draw, save or reduce values: that happens
    in every row.
    """
    if tile.written or any(
        each.operation in (*REDUCTIONS, *BLOCK_REDUCTIONS, "keep", "add_columns")
        for each in tile.instructions
    ):
        return None
    chosen = [each.reads[0] for each in tile.instructions if each.operation == "where"]
    for condition in dict.fromkeys(value for value in chosen if value in tile.rows):
        for holds in (False, True):
            known = _Known(writer, free, condition[1], holds)
            stores = [known.stored(each) for each in tile.instructions if each.operation == "store"]
            if stores and all(each is not None for each in stores):
                return ConstantRows(condition, holds, Tile([each for each in stores if each]))
    return None


class _Known:
    """The nodes that are constants if a condition has the given value."""

    def __init__(self, writer: Writer, free: Collection[int], condition: int, holds: bool) -> None:
        self.nodes, self.condition, self.holds = writer.nodes, condition, holds
        self._constants = {
            _bits(constant_of(node)): number
            for number, node in enumerate(writer.nodes)
            if (node.operation, node.dtype) == ("constant", "float") and number not in free
        }
        self._numbers: dict[int, float | None] = {n: bits[0] for bits, n in self._constants.items()}

    def _number(self, of: int) -> float | None:
        if of not in self._numbers:
            self._numbers[of] = self._found(self.nodes[of])
        return self._numbers[of]

    def _found(self, node: Node) -> float | None:
        if node.operation == "where" and node.inputs[0] == self.condition:
            return self._number(node.inputs[1 if self.holds else 2])
        if node.operation not in ("where", "add"):
            return None
        first, second = map(self._number, node.inputs[-2:])
        if first is None or second is None:
            return None
        if node.operation == "where":
            return first if _bits(first) == _bits(second) else None
        return first + second if 0 in (first, second) else None  # others would have to be rounded

    def stored(self, store: Instruction) -> Instruction | None:
        """Returns the store of the constant, or None if its value is no known constant."""
        ((kind, value),) = store.reads
        number = self._number(value)
        constant = None if number is None else self._constants.get(_bits(number))
        return None if constant is None else replace(store, reads=[(kind, constant)])


def _bits(number: float) -> tuple[float, float]:
    return number, math.copysign(1, number)


def without_picks(writer: Writer, tile: Tile) -> tuple[Tile, dict[Any, Pick]]:
    """Separates the sums that are picks from a section; returns the rest, and picks by their sums.

    Only for sections with other reductions: after these, all threads of a row have read its
    elements.
    """
    found = {}
    for instruction in tile.instructions:
        if instruction.operation in REDUCTIONS and (pick := pick_of(writer, tile, instruction)):
            part = part_of(tile, (), (pick.value,))
            loaded = [array for array, _ in streams_of(part)]
            operands = writer.program.operands
            is_simple = not any(getattr(operands[i].role, "block", 0) for i in loaded)
            others = {"keep", *BLOCK_REDUCTIONS} & {each.operation for each in part.instructions}
            if is_simple and not others:
                found[instruction.to] = pick
    roots = [
        number
        for number, each in enumerate(tile.instructions)
        if (each.to is None or each.operation in REDUCTIONS) and each.to not in found
    ]
    if not any(tile.instructions[root].operation in REDUCTIONS for root in roots):
        return tile, {}
    return part_of(tile, roots), found
