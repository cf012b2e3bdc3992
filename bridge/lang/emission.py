"""Programs as C++: what cpp/interpreter/generated.h runs instead of the words of bytecode.py.

The sections are those of the words. Within a section all operations stand in one loop, in
registers; what an earlier section had is computed again where that is cheap, and read from where
it was kept where it is not. Each operation is the same C++ function that the interpreter calls, so
that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.lang.bytecode import REDUCTIONS, Instruction, Writer
from bridge.lang.expressions import ELEMENTS, Expressions, Numbers
from bridge.lang.program import Program
from bridge.lang.sections import Tile, is_constant, tile_sections


def source_of(
    program: Program, arithmetic: str, dtypes: Sequence[str], has_start: bool = False
) -> str:
    """The C++ of a program.

    Args:
      program: any.
      arithmetic: "float32" or "float64".
      dtypes: of its operands and then of its results.
      has_start: as in `bytecode.words_of`.
    """
    return _Emitter(Writer(program, has_start), arithmetic, dtypes).text()


class _Emitter(Expressions):
    def __init__(self, writer: Writer, arithmetic: str, dtypes: Sequence[str]) -> None:
        super().__init__(writer, arithmetic, dtypes, "m")
        self.loads, self.stores, self.sums, self.draws = (Numbers() for _ in range(4))
        self.rows, self.integer_rows, self.kept = (Numbers() for _ in range(3))
        self.tiles = tile_sections(writer)

    # ---- Row sections ----

    def register(self, number: int) -> int:
        """The row register of a node's value."""
        return (self.integer_rows if self.is_integer(number) else self.rows)[number]

    def _constants(self) -> list[str]:
        """What fills the row registers of constants."""
        return [
            f"m.set_{'integer_' * self.is_integer(number)}row({register}, "
            f"{self.name(('row', number))});"
            for numbers in (self.rows, self.integer_rows)
            for number, register in numbers.items()
            if self.nodes[number].operation == "constant"
        ]

    def _row_array(self, number: int) -> str:
        kind, pointer = ("integer_row", "int64_t") if self.is_integer(number) else ("row", "Real")
        return f"{pointer}* const a{number} = m.{kind}({self.register(number)});"

    def _used_later(self, section: int) -> set[int]:
        """Nodes whose row values are read behind a row section, or by what is no loop."""
        used = {value[1] for tile in self.tiles[section:] for value in tile.rows}
        for tile in self.tiles[section:]:
            for instruction in tile.instructions:
                if instruction.operation == "keep":
                    used.update(number for _, number in instruction.reads)
        for later in self.writer.rows[section + 1 :]:
            for instruction in later.instructions:
                used.update(number for _, number in instruction.reads)
        for instruction in self.writer.rows[section].instructions:
            if instruction.operation == "store_row":
                used.add(instruction.reads[0][1])
        return used

    def _row_section(self, section: int) -> list[str]:
        before, loop, behind = [], [], []
        used = self._used_later(section)
        arrays: list[int] = []
        own: set[int] = set()
        for instruction in self.writer.rows[section].instructions:
            operation = instruction.operation
            if operation.endswith("spread"):
                continue
            if operation in ("load_row", "load_label"):
                number = instruction.to[1]
                before.append(
                    f"m.{operation}({instruction.arguments[0]}, {self.register(number)});"
                )
                continue
            if operation == "store_row":
                register = self.register(instruction.reads[0][1])
                behind.append(f"m.store_row({instruction.arguments[0]}, {register});")
                continue
            for value in instruction.reads:
                number = value[1]
                if number in own or is_constant(self.writer, value):
                    continue
                own.add(number)
                arrays.append(number)
                loop.append(self.read(value, f"a{number}[i]"))
            number = instruction.to[1]
            own.add(number)
            loop.append(self.defined(instruction.to, self.expression(instruction)))
            if number in used:
                arrays.append(number)
                loop.append(f"a{number}[i] = {self.as_stored(instruction.to)};")
        if loop:
            before += [self._row_array(number) for number in dict.fromkeys(arrays)]
            before += ["const int64_t count = m.padded_rows();", "BRIDGE_INDEPENDENT"]
            before.append("for (int64_t i = 0; i < count; ++i) {")
            loop = [f"  {line}" for line in loop] + ["}"]
        lines = before + loop + behind
        if not lines:
            return []
        head = f"static void rows_{section}(M& m) {{"
        return ["template <class M>", head, *(f"  {line}" for line in lines), "}"]

    # ---- Tile sections ----

    def element(self, number: int) -> tuple[str, int, bool]:
        """The C++ type of an array's elements, its size, and whether they come converted.

        There are instructions for float16 that no loop is made of.
        """
        if self.dtypes[number] in ELEMENTS and self.dtypes[number] != "float16":
            return (*ELEMENTS[self.dtypes[number]], False)
        return self.real, self.real_bytes, True

    def _tile_section(self, phase: int) -> list[str]:
        return _TileText(self, self.tiles[phase]).text(phase)

    # ---- All of it ----

    def text(self) -> str:
        rows = [self._row_section(section) for section in range(self.writer.count + 1)]
        tiles = [self._tile_section(phase) for phase in range(self.writer.count)]
        steps = []
        for section in range(self.writer.count + 1):
            if rows[section]:
                steps.append(f"rows_{section}(m);")
            if section < self.writer.count:
                steps.append(f"m.template tile<Tile_{section}>();")
        reductions = [
            sum(i.operation in REDUCTIONS for i in tile.instructions) for tile in self.tiles
        ]
        most = max(reductions, default=0)

        def streams(of: dict[Any, int], first: int) -> str:
            lines = []
            for array, half in of:
                _, size, is_converted = self.element(first + array)
                lines.append(f"{{{array}, {half}, {size}, {str(is_converted).lower()}}}")
            return ", ".join(lines) or "{}"

        sums = ", ".join(map(str, self.sums)) or "0"
        draws = ", ".join(f"{{{', '.join(map(str, each))}}}" for each in self.draws) or "{}"
        counts = {
            "LoadCount": len(self.loads),
            "StoreCount": len(self.stores),
            "Terms": most + len(self.sums),
            "Kept": len(self.kept),
            "ColumnSums": len(self.sums),
            "DrawCount": len(self.draws),
            "Rows": len(self.rows),
            "IntegerRows": len(self.integer_rows),
            "MostReductions": most,
        }
        body = [
            "using P = Program;",
            f"using Real = {self.real};",
            *(f"static constexpr int k{name} = {number};" for name, number in counts.items()),
            f"static constexpr Stream kLoads[] = {{{streams(self.loads, 0)}}};",
            f"static constexpr Stream kStores[] = {{{streams(self.stores, self.operands)}}};",
            f"static constexpr Draws kDraws[] = {{{draws}}};",
            f"static constexpr int kSums[] = {{{sums}}};",
            "static constexpr const Stream& load(int i) { return kLoads[i]; }",
            "static constexpr const Stream& store(int i) { return kStores[i]; }",
            "static constexpr const Draws& draws(int i) { return kDraws[i]; }",
            "static constexpr int column_sum(int i) { return kSums[i]; }",
            "",
            *(line for section in rows for line in section),
            *(line for tile in tiles for line in tile),
            "template <class M>",
            "static void set_constants([[maybe_unused]] M& m) {",
            *(f"  {line}" for line in self._constants()),
            "}",
            "template <class M>",
            "static void run(M& m) {",
            *(f"  {step}" for step in steps),
            "}",
        ]
        return "\n".join(
            [
                f"// {self.writer.program.name}",
                '#include "interpreter/generated.h"',
                "",
                "namespace bridge {",
                "namespace BRIDGE_ISA_NAMESPACE {",
                "namespace {",
                "",
                "struct Program {",
                *(f"  {line}" if line else "" for line in body),
                "};",
                "",
                "}  // namespace",
                "}  // namespace BRIDGE_ISA_NAMESPACE",
                "}  // namespace bridge",
                "",
                'extern "C" __attribute__((visibility("default"))) const void* bridge_machine() {',
                "  using namespace bridge::BRIDGE_ISA_NAMESPACE;",
                "  return &generated_table<Program>;",
                "}",
                "",
            ]
        )


class _TileText:
    """One tile section: what stands before its loop, and in it."""

    def __init__(self, emitter: _Emitter, tile: Tile) -> None:
        self.emitter = emitter
        self.used: dict[str, list[int]] = {
            name: [] for name in ("Loads", "Stores", "Words", "ColumnSums", "Rows", "IntegerRows")
        }
        self.reductions: list[str] = []
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
            return self._reduce(instruction)
        elif operation == "store":
            return self._store(instruction)
        elif operation == "add_columns":
            return self._add_columns(instruction.arguments[0], instruction.reads[0])
        else:
            text = self.emitter.expression(instruction)
        self.loop.append(self.emitter.defined(instruction.to, text))

    def _load(self, instruction: Instruction) -> str:
        operand, half = instruction.arguments
        stream = self.emitter.loads[operand, half]
        element, _, _ = self.emitter.element(operand)
        self.used["Loads"].append(stream)
        pointer = f"reinterpret_cast<const {element}*>(at.load[{stream}])"
        self.before.append(f"const {element}* const x{stream} = {pointer};")
        is_mask = instruction.operation == "load_mask"
        return f"x{stream}[i] != 0" if is_mask else f"to_real<Real>(x{stream}[i])"

    def _keep(self, instruction: Instruction) -> str:
        registers = [self.emitter.register(number) for _, number in instruction.reads]
        draw = self.emitter.draws[tuple([*registers, -1][:3])]
        if draw not in self.used["Words"]:
            self.used["Words"].append(draw)
            self.before.append(f"const uint32_t* const w{draw} = at.words[{draw}];")
        return f"w{draw}[i] >= uint32_t({instruction.extra})"

    def _reduce(self, instruction: Instruction) -> None:
        term = len(self.reductions)
        register = self.emitter.register(instruction.to[1])
        operation = instruction.operation.capitalize()
        self.reductions.append(f"{{k{operation}, {term}, {register}}}")
        self.before.append(f"Real* const t{term} = at.term[{term}];")
        self.loop.append(f"t{term}[i] = {self.emitter.as_stored(instruction.reads[0])};")

    def _store(self, instruction: Instruction) -> None:
        result, half = instruction.arguments
        stream = self.emitter.stores[result, half]
        element, _, is_converted = self.emitter.element(self.emitter.operands + result)
        self.used["Stores"].append(stream)
        pointer = f"reinterpret_cast<{element}*>(at.store[{stream}])"
        self.before.append(f"{element}* const y{stream} = {pointer};")
        name = self.emitter.name(instruction.reads[0])
        rounded = name if is_converted else f"math::round_to<{element}>({name})"
        self.loop.append(f"y{stream}[i] = {rounded};")

    def _add_columns(self, result: int, value: Any) -> None:
        number = self.emitter.sums[result]
        self.used["ColumnSums"].append(number)
        self.before.append(f"Real* const s{number} = at.lane[{number}];")
        name = self.emitter.name(value)
        self.loop.append(f"s{number}[i] = kFlat ? {name} : s{number}[i] + {name};")

    def text(self, phase: int) -> list[str]:
        lists = [
            f"using {name} = List<{', '.join(map(str, of))}>;" for name, of in self.used.items()
        ]
        reductions = ", ".join(self.reductions) or "{}"
        return [
            f"struct Tile_{phase} {{",
            *(f"  {line}" for line in lists),
            f"  static constexpr int kReduces = {len(self.reductions)};",
            f"  static constexpr Reduces kReductions[] = {{{reductions}}};",
            "  template <bool kFlat>",
            "  static __attribute__((noinline)) void body(const Places<P>& at, int64_t count) {",
            *(f"    {line}" for line in self.before),
            "    if (count % kStep != 0) __builtin_unreachable();",
            "    BRIDGE_INDEPENDENT",
            "    for (int64_t i = 0; i < count; ++i) {",
            *(f"      {line}" for line in self.loop),
            "    }",
            "  }",
            "};",
        ]
