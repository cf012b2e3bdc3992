"""What the tile sections of a program compute, where all of one stands in a single loop."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.lang.bytecode import REDUCTIONS, Writer
from bridge.lang.program import Node, constant_of, sole_column
from bridge.lang.registers import Instruction

# What costs no more than to read it from where it was kept.
_CHEAP = frozenset(
    (
        *("neg", "abs", "not", "add", "sub", "mul", "fma", "minimum", "maximum", "where"),
        *("lt", "le", "eq", "ne", "and", "or", "float", "column", "round_float32"),
    )
)
_MOST_AGAIN = 8  # such operations
_FREE = ("load", "load_mask", "store", "spread", "add_columns", *REDUCTIONS)


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


def streams_of(tile: Tile) -> list[tuple[int, int]]:
    """The operands and halves that a section loads, each once."""
    found = [
        (i.arguments[0], i.arguments[1])
        for i in tile.instructions
        if i.operation in ("load", "load_mask")
    ]
    return list(dict.fromkeys(found))


def weight_of(tile: Tile) -> int:
    """How long it computes, roughly, in cheap operations."""
    names = [each.operation.removeprefix("integer_") for each in tile.instructions]
    return sum(1 if name in _CHEAP else 8 for name in names if name not in _FREE)


def part_of(tile: Tile, roots: Collection[int], values: Collection[Any] = ()) -> Tile:
    """What of a tile section some of its instructions, by number, and some values need."""
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
    """What all sections behind the first that reads a stream could take of that one instead: a
    value that takes two operations or more on elements of the stream alone, the longest to compute;
    None if there is none, or no such sections."""
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
    """Whether a section would read a stream if it had a value."""
    given = [replace(each, reads=()) if each.to == value else each for each in tile.instructions]
    roots = [
        number
        for number, each in enumerate(given)
        if each.to is None or each.operation in REDUCTIONS
    ]
    return stream in streams_of(part_of(Tile(given), roots))


def makers(tile: Tile) -> dict[Any, Instruction]:
    """What a tile section computes, by value."""
    return {each.to: each for each in tile.instructions if each.to is not None}


def named_column(writer: Writer, condition: Any) -> Any:
    """The value of a row that the number of the column is compared to, if a condition is that."""
    number = sole_column(writer.nodes, condition[1])
    return None if number is None else ("tile", number)


@dataclass
class Pick:
    """A sum whose terms are -0.0 in every column but one: what a value is there."""

    value: Any
    column: Any  # a row has one of it


def pick_of(writer: Writer, tile: Tile, reduction: Instruction) -> Pick | None:
    """Whether a reduction of the section is one: sum(where(column() == label, value, -0.0))."""
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
    """A sum of a 1 for each element of a row that equals the largest one."""

    load: Instruction  # of the element
    largest: Any  # a row has one of it

    def is_taken_by(self, instruction: Instruction) -> bool:
        """Whether that is a term of what is less, beside the count."""
        is_term = instruction.operation.startswith("log_sum_term")
        return is_term and tuple(instruction.reads) == (self.load.to, self.largest)


def largest_count_of(
    writer: Writer, made_by: dict[Any, Instruction], reduction: Instruction, free: Collection[int]
) -> LargestCount | None:
    """Whether a reduction is one: sum(where(x < max(x), 0, 1)), no constant being free."""
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
    """A section whose results are others in one column of each row, by some choice."""

    column: Any  # a row has one of it
    others: Tile  # what it computes in the others


def one_column_of(writer: Writer, tile: Tile) -> OneColumn | None:
    """Whether a section is one: where(column() == label, a, b) in each result, and no more.

    What is drawn, kept or reduced is so in every column.
    """
    instructions = tile.instructions
    found = {*REDUCTIONS, "keep", "add_columns"} & {each.operation for each in instructions}
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
    # Where it spares no function, another loop is not worth its code.
    return OneColumn(columns[0], part) if len(part.instructions) < len(instructions) else None


@dataclass
class ConstantRows:
    """A section that stores nothing but constants in rows of which a condition says so."""

    condition: Any  # a row has one of it
    holds: bool  # in these rows
    stores: Tile


def constant_rows_of(writer: Writer, tile: Tile, free: Collection[int]) -> ConstantRows | None:
    """Whether a section is one, no constant being free: rows that a loss ignores have no gradient.

    What is drawn, kept or reduced is so in every row.
    """
    if tile.written or any(
        each.operation in (*REDUCTIONS, "keep", "add_columns") for each in tile.instructions
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
    """Nodes that are constants where a condition holds, or does not."""

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
        """A store of the constant."""
        ((kind, value),) = store.reads
        number = self._number(value)
        constant = None if number is None else self._constants.get(_bits(number))
        return None if constant is None else replace(store, reads=[(kind, constant)])


def _bits(number: float) -> tuple[float, float]:
    return number, math.copysign(1, number)


def without_picks(writer: Writer, tile: Tile) -> tuple[Tile, dict[Any, Pick]]:
    """A section without those of its sums that are picks, and these by what they are the sum of.

    Only of sections that still reduce something: behind that all who share a row have read it.
    """
    found = {}
    for instruction in tile.instructions:
        if instruction.operation in REDUCTIONS and (pick := pick_of(writer, tile, instruction)):
            part = part_of(tile, (), (pick.value,))
            if all(each.operation != "keep" for each in part.instructions):
                found[instruction.to] = pick
    roots = [
        number
        for number, each in enumerate(tile.instructions)
        if (each.to is None or each.operation in REDUCTIONS) and each.to not in found
    ]
    if not any(tile.instructions[root].operation in REDUCTIONS for root in roots):
        return tile, {}
    return part_of(tile, roots), found
