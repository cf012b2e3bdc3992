"""Text of the loops of tile sections in C++ for the CPU; cpu_sections.py joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridge.lang import roles
from bridge.lang.bytecode import Writer
from bridge.lang.dtypes import DTYPES, FLOATING, OF_8_BITS, OF_16_BITS, OF_MASKS
from bridge.lang.emission.expressions import Expressions, Numbers
from bridge.lang.emission.sections import LargestCount, Tile, makers, named_column, tile_sections
from bridge.lang.instructions import BLOCK_REDUCTIONS, REDUCTIONS, symbol_of
from bridge.lang.registers import Instruction


class Registers(Expressions):
    """Numbers of the arrays, row registers, saved values and random words that sections use."""

    def __init__(
        self, writer: Writer, arithmetic: str, dtypes: Sequence[str], free: Sequence[int] = ()
    ) -> None:
        super().__init__(writer, arithmetic, dtypes, "m", free)
        self.loads, self.stores, self.sums, self.draws = (Numbers() for _ in range(4))
        self.thresholds = Numbers()  # of dropout, if they are free constants
        self.rows, self.integer_rows, self.kept = (Numbers() for _ in range(3))
        self.tiles = tile_sections(writer)

    def register(self, number: int) -> int:
        """Returns the row register of a node's value."""
        return (self.integer_rows if self.is_integer(number) else self.rows)[number]

    def is_vector(self, number: int) -> bool:
        """True for a 16-bit vector shared by all rows."""
        operands = self.writer.program.operands
        is_shared = number < len(operands) and operands[number].role is roles.Row
        return is_shared and self.dtypes[number] in OF_16_BITS

    def element(self, number: int) -> tuple[str, int, bool]:
        """Returns the C++ type of an array's elements, its size, and True if they come converted.

        float16 is converted by instructions that compilers use in no loop of their own. A shared
        vector is converted once for many rows.
        """
        dtype = self.dtypes[number]
        if self.block_of(number):
            return self.real, self.real_bytes, True
        is_read_as_it_is = dtype != "float16" and dtype in (*FLOATING, *OF_8_BITS, *OF_MASKS)
        if is_read_as_it_is and not self.is_vector(number):
            return (*DTYPES[dtype][:2], False)
        return self.real, self.real_bytes, True


class TileText:
    """The text of a tile section or a part of one: its loop, and the lines before it.

    Args:
      apart: counts of largest elements, in a chunk whose other elements are copied apart.
      holds: True to assign results to variables instead of memory; `held` has their streams.
      started: values whose functions another loop has started, with the numbers of its arrays.
    """

    def __init__(
        self,
        emitter: Registers,
        tile: Tile,
        apart: Sequence[LargestCount] = (),
        holds: bool = False,
        started: Mapping[Any, int] | None = None,
    ) -> None:
        self.emitter, self.tile, self.made_by = emitter, tile, makers(tile)
        self.apart, self.holds, self.started = apart, holds, started or {}
        self.held: dict[int, str] = {}
        self.used: dict[str, list[int]] = {
            name: [] for name in ("Loads", "Stores", "Words", "ColumnSums", "Rows", "IntegerRows")
        }
        self.reductions: list[Instruction] = []
        self.before: list[str] = []
        self.loop: list[str] = []
        for value in tile.rows:
            self._read_row(value)
        for value in tile.read:
            self._take_kept(value, "const Real")
            self.loop.append(emitter.read(value, f"k{value[1]}[i]"))
        for instruction in tile.instructions:
            self._write(instruction)
            if instruction.to in tile.written:
                self._take_kept(instruction.to, "Real")
                stored = emitter.as_stored(instruction.to)
                self.loop.append(f"k{instruction.to[1]}[i] = {stored};")

    def _read_row(self, value: Any) -> None:
        number = value[1]
        register = self.emitter.register(number)
        is_integer = self.emitter.is_integer(number)
        self.used["IntegerRows" if is_integer else "Rows"].append(register)
        kind, pointer = ("int64_t", "integer_row") if is_integer else ("Real", "row")
        self.before.append(f"const {kind}* const a{number} = at.{pointer}[{register}];")
        self.before.append(f"const {kind} c{number} = a{number}[0];")
        self.loop.append(self.emitter.read(value, f"(kFlat ? a{number}[i] : c{number})"))

    def _take_kept(self, value: Any, kind: str) -> None:
        register = self.emitter.kept[value]
        self.before.append(f"{kind}* const k{value[1]} = at.kept[{register}];")

    def _write(self, instruction: Instruction) -> None:
        operation = instruction.operation
        if operation in ("load", "load_mask"):
            text = self._load(instruction)
        elif operation == "column":
            text = "kFlat ? at.columns[i] : at.col + i"
        elif operation == "keep":
            text = self._keep(instruction)
        elif operation in REDUCTIONS:
            self.reductions.append(instruction)
            return
        elif operation == "store":
            return self._store(instruction)
        elif operation == "add_columns":
            return self._add_columns(instruction.arguments[0], instruction.reads[0])
        elif operation in BLOCK_REDUCTIONS:
            text = f"block{instruction.to[1]}[i]"
        elif instruction.to in self.started:
            number, code = self.started[instruction.to], symbol_of(instruction.operation)
            value = self.emitter.name(instruction.reads[0])
            text = f"finish<{code}>({value}, {{first{number}[i], second{number}[i]}})"
        elif any(count.is_taken_by(instruction) for count in self.apart):
            text = self._term_of_less(instruction)
        else:
            text = self.emitter.expression(instruction)
            column = named_column(self.emitter.writer, instruction.to)
            if column is not None:
                # Compares 32-bit numbers: a register has twice as many.
                place = f"d{instruction.to[1]}"
                at = f"place_in_piece({self.of_row(column)}, at.col, kSumChunk)"
                self.before.append(f"const auto {place} = static_cast<int32_t>({at});")
                text = f"kFlat ? {text} : i == {place}"
        self.loop.append(self.emitter.defined(instruction.to, text))

    def of_row(self, value: Any) -> str:
        """Returns the text of a per-row value in code for one row."""
        return f"c{value[1]}" if value in self.tile.rows else self.emitter.name(value)

    def _load(self, instruction: Instruction) -> str:
        operand, half = instruction.arguments
        stream = self.emitter.loads[operand, half]
        element, _, _ = self.emitter.element(operand)
        self.used["Loads"].append(stream)
        pointer = f"reinterpret_cast<const {element}*>(at.load[{stream}])"
        self.before.append(f"const {element}* const x{stream} = {pointer};")
        is_mask = instruction.operation == "load_mask"
        return f"x{stream}[i] != 0" if is_mask else f"to_real<Real>(x{stream}[i])"

    def _term_of_less(self, instruction: Instruction) -> str:
        x, largest = instruction.reads
        of_16 = str(instruction.operation.endswith("16")).lower()
        row, made = f"row{instruction.to[1]}", f"math::log_sum_row<{of_16}>"
        self.before.append(f"const auto {row} = {made}({self.of_row(largest)});")
        less = f"to_real<Real>(less{x[1]}[i])"
        return f"math::log_sum_term_of_less<{of_16}>({less}, {row})"

    def _keep(self, instruction: Instruction) -> str:
        registers = [self.emitter.register(number) for _, number in instruction.reads]
        draw = self.emitter.draws[tuple([*registers, -1][:3])]
        if draw not in self.used["Words"]:
            self.used["Words"].append(draw)
            self.before.append(f"const uint32_t* const w{draw} = at.words[{draw}];")
        if instruction.extra not in self.emitter.free.values():
            return f"w{draw}[i] > {self.emitter.last_dropped(instruction)}"
        number = self.emitter.thresholds[instruction.extra]
        line = f"const uint32_t last_dropped{number} = at.last_dropped[{number}];"
        if line not in self.before:
            self.before.append(line)
        return f"w{draw}[i] > last_dropped{number}"

    def _store(self, instruction: Instruction) -> None:
        result, half = instruction.arguments
        stream = self.emitter.stores[result, half]
        element, _, is_converted = self.emitter.element(self.emitter.operands + result)
        self.used["Stores"].append(stream)
        pointer = f"reinterpret_cast<{element}*>(at.store[{stream}])"
        self.before.append(f"{element}* const y{stream} = {pointer};")
        name = self.emitter.name(instruction.reads[0])
        rounded = name if is_converted else f"math::round_to<{element}>({name})"
        if self.holds:
            self.held[stream] = element
        self.loop.append(f"{f'own{stream}' if self.holds else f'y{stream}[i]'} = {rounded};")

    def _add_columns(self, result: int, value: Any) -> None:
        number = self.emitter.sums[result]
        self.used["ColumnSums"].append(number)
        self.before.append(f"Real* const s{number} = at.leaf[{number}];")
        name = self.emitter.name(value)
        self.loop.append(f"s{number}[i] = kFlat ? {name} : s{number}[i] + {name};")

    @property
    def terms(self) -> list[str]:
        """The terms of the reductions."""
        return [self.emitter.as_stored(instruction.reads[0]) for instruction in self.reductions]

    def head(self, *others: str) -> list[str]:
        """Returns the lines before the loop, or before `others`, which use the loop's variables."""
        lines = [*self.loop, *self.terms, *others]
        return [*self.emitter.free_in(lines, "at.constant[{}]"), *self.before]
