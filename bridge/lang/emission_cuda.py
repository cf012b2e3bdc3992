"""Programs as CUDA C++: what cpp/interpreter/generated_walk.cuh runs instead of the words of
bytecode.py.

A program is one function of a row. What a row has one of stands in variables; a section over its
elements is a loop over chunks, vectors and elements, before which everything that it reads of the
chunk is loaded. Where rows stay in registers, sections after the first take from there what they
read again, and what would take long to compute again, as far as registers are to spare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.lang import roles
from bridge.lang.bytecode import REDUCTIONS, Instruction, Writer
from bridge.lang.expressions import ELEMENTS, TYPES, Expressions, Numbers
from bridge.lang.program import Program
from bridge.lang.sections import Tile, tile_sections

# A thread has so many elements of a chunk. Of the 128 registers that two blocks of a multiprocessor
# leave it, so many are for what it keeps from section to section, and with what a section loads
# before it computes so many.
_ELEMENTS_OF_THREAD = 32
_KEPT_REGISTERS = 72
_LOADED_REGISTERS = 80
# With more operations in its sections a program is no longer written out for each element of a
# thread: it would be slow to compile, and too long for the instruction cache.
_MOST_UNROLLED = 110
_LONG = frozenset(("div", "sqrt", "rsqrt", "keep"))  # as some ten of the short ones are
_SHORT = frozenset(
    (
        *("load", "load_mask", "column", "neg", "abs", "not", "float", "add", "sub", "mul", "fma"),
        *("minimum", "maximum", "where", "lt", "le", "eq", "ne", "and", "or"),
        *("store", "add_columns", "sum", "max", "argmax"),
    )
)


@dataclass(frozen=True)
class Emitted:
    """The text, and what who launches its kernels must know.

    Attributes:
      source: C++.
      vector: columns side by side that a thread has.
      cells: 8 bytes of shared memory that are needed for each chunk of a row.
      is_resident: whether a kernel holds rows in registers.
    """

    source: str
    vector: int
    cells: int
    is_resident: bool


def cuda_source_of(
    program: Program, arithmetic: str, dtypes: Sequence[str], has_start: bool = False
) -> Emitted:
    """The CUDA C++ of a program. The arguments are those of `emission.source_of`."""
    return _Emitter(Writer(program, has_start), arithmetic, dtypes).emitted()


def _weight(instruction: Instruction) -> int:
    """About how many short operations an instruction is."""
    name = instruction.operation.removeprefix("integer_")
    return 1 if name in _SHORT else 10 if name in _LONG else 25


class _Emitter(Expressions):
    def __init__(self, writer: Writer, arithmetic: str, dtypes: Sequence[str]) -> None:
        super().__init__(writer, arithmetic, dtypes, "w")
        self.tiles = tile_sections(writer, keeps=False)
        self.loads, self.stores, self.sums = (Numbers() for _ in range(3))
        self.load_counts: dict[Any, int] = {}
        for tile in self.tiles:
            for stream in self._streams(tile):
                self.load_counts[stream] = self.load_counts.get(stream, 0) + 1
        self.cells = 0
        self._choose_kept()

    # ---- What the kernels are ----

    @property
    def vector(self) -> int:
        """As many columns as the shortest numbers that are read have in 16 bytes."""
        sizes = [self._element(operand)[1] for operand, _ in self.load_counts]
        shortest = min((size for size in sizes if size > 1), default=self.real_bytes)
        return min(16 // shortest, 4 if self.real_bytes == 8 else 8)

    @property
    def is_resident(self) -> bool:
        return bool(self.kept or self.kept_loads)

    def _element(self, array: int) -> tuple[str, int]:
        return ELEMENTS[self.dtypes[array]]

    def _streams(self, tile: Tile) -> list[tuple[int, int]]:
        found = [
            (i.arguments[0], i.arguments[1])
            for i in tile.instructions
            if i.operation in ("load", "load_mask")
        ]
        return list(dict.fromkeys(found))

    def _registers(self, size: int) -> int:
        return _ELEMENTS_OF_THREAD * size // 4

    def _choose_kept(self) -> None:
        """Streams that several sections read first, then values in the order of sections."""
        left = _KEPT_REGISTERS
        self.kept_loads: set[Any] = set()
        self.kept: set[Any] = set()
        candidates = [(self.kept_loads, s, self._element(s[0])[1]) for s in self.load_counts]
        candidates = [each for each in candidates if self.load_counts[each[1]] > 1]
        for tile in tile_sections(self.writer):
            for value in tile.written:
                size = 1 if self.dtype(value) == "bool" else self.real_bytes
                candidates.append((self.kept, value, size))
        for chosen, what, size in candidates:
            registers = self._registers(size)
            if registers <= left:
                chosen.add(what)
                left -= registers
        self._choose_whole(_LOADED_REGISTERS - (_KEPT_REGISTERS - left))

    def _choose_whole(self, left: int) -> None:
        """Streams of which a whole chunk is loaded at once: those of all rows last, which caches
        have."""
        operands = self.writer.program.operands
        self.whole = set(self.kept_loads)

        def rank(stream: tuple[int, int]) -> bool:
            return stream[0] < len(operands) and operands[stream[0]].role is roles.Row

        by_section = [left] * len(self.tiles)
        for stream in sorted(self.load_counts.keys() - self.whole, key=lambda s: (rank(s), s)):
            sections = [i for i, tile in enumerate(self.tiles) if stream in self._streams(tile)]
            registers = self._registers(self._element(stream[0])[1])
            if all(by_section[i] >= registers for i in sections):
                self.whole.add(stream)
                for i in sections:
                    by_section[i] -= registers

    # ---- What a row has one of ----

    def _row_section(self, section: int) -> list[str]:
        lines = []
        for instruction in self.writer.rows[section].instructions:
            operation = instruction.operation
            if operation.endswith("spread"):
                continue
            array = instruction.arguments[0] if instruction.arguments else 0
            if operation == "store_row":
                element, _ = self._element(self.operands + array)
                value = self.as_stored(instruction.reads[0])
                lines.append(f"w.template store_row<{element}>({self.operands + array}, {value});")
                continue
            if operation == "load_row":
                text = f"w.template load_row<{self._element(array)[0]}>({array})"
            elif operation == "load_label":
                text = f"w.load_label({array})"
            else:
                text = self.expression(instruction)
            lines.append(self.defined(instruction.to, text))
        return lines

    # ---- Sections ----

    def _tile_section(self, phase: int) -> list[str]:
        tile = self.tiles[phase]
        declared, loads, vector, body, stored, added, ended = ([] for _ in range(7))
        shared, behind = [], []
        cells = 0
        for stream in self._streams(tile):
            is_first = stream not in self.loads
            name = f"x{self.loads[stream]}"
            if is_first:
                element = self._element(stream[0])[0]
                how = [str(stream in of).lower() for of in (self.kept_loads, self.whole)]
                kind = f"Load<W, {element}, {', '.join(how)}>"
                declared.append(f"{kind} {name}(w, {stream[0]}, {stream[1]});")
            loads.append(f"{name}.load{'' if is_first else '_again'}(part);")
            vector.append(f"{name}.load_vector(part, q);")
        draws = Numbers()
        for instruction in tile.instructions:
            operation, arguments = instruction.operation, instruction.arguments
            if operation in ("store", "add_columns"):
                name, to, element = self._stream_out(operation, *arguments)
                vector.append(f"Store<W, {element}> {name};")
                declared.append(f"{element}* const {name}_to = {to};")
                body.append(f"{name}.put(e, {self.as_stored(instruction.reads[0])});")
                array = self.operands + arguments[0]
                stride = "1" if operation == "add_columns" else f"w.col_stride({array})"
                stored.append(f"{name}.store(part, q, {name}_to, {stride});")
                continue
            if operation in REDUCTIONS:
                number = instruction.to[1]
                value = self.as_stored(instruction.reads[0])
                if operation == "sum":
                    declared.append(f"RowSum<W> s{number};")
                    vector.append(f"Terms<W> t{number};")
                    body.append(f"t{number}.put(part.is_in(q, e), e, {value});")
                    added.append(f"s{number}.add(q, t{number});")
                    ended.append(f"s{number}.end_chunk(w, {cells});")
                    result = f"s{number}.end(w, {cells})"
                else:
                    is_place = operation == "argmax"
                    declared.append(f"RowLargest<W, {str(is_place).lower()}> s{number};")
                    body.append(f"s{number}.put(part.is_in(q, e), w.col(q) + e, {value});")
                    shared.append(f"s{number}.share(w, {cells});")
                    behind.append(f"s{number}.end(w, {cells});")
                    result = f"s{number}.{'place' if is_place else 'number'}()"
                behind.append(self.defined(instruction.to, result))
                cells += 2 if operation == "argmax" else 1
                continue
            if operation == "keep":
                drawn = ", ".join(self.name(value) for value in instruction.reads)
                drawn += ", int64_t(0)" * (3 - len(instruction.reads))
                if drawn not in draws:
                    vector.append(f"uint32_t d{draws[drawn]}[W::kVector];")
                    vector.append(f"if (part.reaches(q)) w.draw({drawn}, q, d{draws[drawn]});")
                text = f"d{draws[drawn]}[e] >= uint32_t({instruction.extra})"
            else:
                text = self._element_text(instruction)
            body += self._value(instruction, text, declared)
        self.cells = max(self.cells, cells)
        meets = ["w.meet();"] if cells else []
        return [
            *declared,
            *meets,
            "w.each_chunk([&](const auto& part) {",
            *(f"  {line}" for line in loads),
            "  w.each_vector([&](int q) {",
            *(f"    {line}" for line in vector),
            "    if (part.reaches(q)) {",
            "      w.each_element([&](int e) {",
            *(f"        {line}" for line in body),
            "      });",
            *(f"      {line}" for line in stored),
            "    }",
            *(f"    {line}" for line in added),
            "  });",
            f"}}, [&] {{ {' '.join(ended)} }});",
            *shared,
            *meets,
            *behind,
        ]

    def _stream_out(self, operation: str, result: int, half: int) -> tuple[str, str, str]:
        """A result of a section: its name, where it is written, and its type."""
        if operation == "add_columns":
            number = self.sums[result]
            return f"z{number}", f"w.summed({number})", "Real"
        array = self.operands + result
        element, _ = self._element(array)
        return (
            f"y{self.stores[result, half]}",
            f"w.template place<{element}>({array}, {half})",
            element,
        )

    def _element_text(self, instruction: Instruction) -> str:
        operation = instruction.operation
        if operation in ("load", "load_mask"):
            stream = self.loads[instruction.arguments[0], instruction.arguments[1]]
            return f"x{stream}.{'truth' if operation == 'load_mask' else 'real'}(q, e)"
        if operation == "column":
            return "w.col(q) + e"
        return self.expression(instruction)

    def _value(self, instruction: Instruction, text: str, declared: list[str]) -> list[str]:
        value = instruction.to
        if value not in self.kept:
            return [self.defined(value, text)]
        name = f"k{value[1]}"
        if instruction.again:
            return [self.defined(value, f"{name}.kIs ? {name}.take(q, e) : ({text})")]
        declared.append(f"Kept<W, {TYPES[self.dtype(value)]}, true> {name};")
        return [self.defined(value, text), f"{name}.put(q, e, {self.name(value)});"]

    # ---- All of it ----

    def emitted(self) -> Emitted:
        lines: list[str] = []
        for section in range(self.writer.count + 1):
            lines += self._row_section(section)
            if section < self.writer.count:
                lines += self._tile_section(section)
        instructions = [i for tile in self.tiles for i in tile.instructions]
        is_large = sum(map(_weight, instructions)) > _MOST_UNROLLED
        kinds = ["ShortAligned", "ShortAny", "LongAligned", "LongAny"]
        kinds += ["ResidentAligned"] * self.is_resident
        constants = {
            "int kArrays": len(self.dtypes),
            "int kVector": self.vector,
            "int kMinBlocks": 1 if self.real_bytes == 8 else 2,
            "bool kIsLarge": str(is_large).lower(),
            "bool kIsResident": str(self.is_resident).lower(),
            "bool kDraws": str(any(i.operation == "keep" for i in instructions)).lower(),
        }
        source = [
            f"// {self.writer.program.name}",
            '#include "interpreter/generated_walk.cuh"',
            "",
            "namespace bridge::interpreter {",
            "",
            "struct Program {",
            f"  using Real = {self.real};",
            *(f"  static constexpr {name} = {value};" for name, value in constants.items()),
            "",
            "  template <class W>",
            "  static BRIDGE_DEVICE void row(W& w) {",
            *(f"    {line}" for line in lines),
            "  }",
            "};",
            "",
            *(f"using {kind}Kernel = {kind}<Program>;" for kind in kinds),
            "",
            "}  // namespace bridge::interpreter",
            "",
            *(
                f"BRIDGE_GENERATED_KERNEL({_entry(kind)}, bridge::interpreter::{kind}Kernel)"
                for kind in kinds
            ),
            "",
        ]
        return Emitted("\n".join(source), self.vector, self.cells, self.is_resident)


def _entry(kind: str) -> str:
    """As cpp/interpreter/generated_call.h names the kernels."""
    return "bridge" + "".join(f"_{c.lower()}" if c.isupper() else c for c in kind)
