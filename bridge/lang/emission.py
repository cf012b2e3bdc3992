"""Programs as C++: what cpp/interpreter/generated.h runs instead of the words of bytecode.py.

The sections are those of the words. Within a section all operations stand in one loop, in
registers; what an earlier section had is computed again where that is cheap, and read from where
it was kept where it is not. Each operation is the same C++ function that the interpreter calls, so
that both give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bridge.lang.bytecode import REDUCTIONS, Instruction, Writer
from bridge.lang.program import Program, constant_of
from bridge.lang.sections import is_constant, tile_sections

# Elements that a loop converts itself. There are instructions for float16 that no loop is made of.
_ELEMENTS = {
    "float32": ("float", 4),
    "float64": ("double", 8),
    "bfloat16": ("math::bfloat16", 2),
    "bool": ("uint8_t", 1),
    "uint8": ("uint8_t", 1),
}
_TYPES = {"float": "Real", "bool": "bool", "int": "int64_t"}
_CPP_NAMES = {
    "neg": "Negative",
    "abs": "Absolute",
    "sqrt": "SquareRoot",
    "rsqrt": "ReciprocalRoot",
    "sub": "Subtract",
    "mul": "Multiply",
    "div": "Divide",
}
_INFIX = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|"}
_INTEGER_INFIX = {"add": "+", "sub": "-", "mul": "*"}


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


class _Numbers(dict[Any, int]):
    """Numbers of things, in the order in which they are asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


class _Emitter:
    def __init__(self, writer: Writer, arithmetic: str, dtypes: Sequence[str]) -> None:
        self.writer, self.nodes = writer, writer.nodes
        self.dtypes = dtypes
        self.operands = len(dtypes) - len(writer.program.results)
        self.real, self.real_bytes = _ELEMENTS[arithmetic]
        self.loads, self.stores, self.sums, self.draws = (_Numbers() for _ in range(4))
        self.rows, self.integer_rows, self.kept = (_Numbers() for _ in range(3))
        self.tiles = tile_sections(writer)

    # ---- Expressions ----

    def _dtype(self, value: Any) -> str:
        return self.nodes[value[1]].dtype

    def _name(self, value: Any) -> str:
        """A value where it is used: a constant itself, or a variable."""
        node = self.nodes[value[1]]
        if node.operation != "constant":
            return f"v{value[1]}"
        number = constant_of(node)
        if node.dtype == "int":
            return f"int64_t({number})" if number > -(2**63) else "INT64_MIN"
        if node.dtype == "bool":
            return "true" if number else "false"
        if math.isfinite(number):
            return f"Real({float(number).hex()})"
        text = '__builtin_nan("")' if math.isnan(number) else "__builtin_inf()"
        return f"{'-' if math.copysign(1, number) < 0 else ''}Real({text})"

    def _expression(self, instruction: Instruction) -> str:
        operation = instruction.operation
        read = [self._name(value) for value in instruction.reads]
        plain = operation.removeprefix("integer_")
        if plain == "where":
            return f"{read[0]} ? {read[1]} : {read[2]}"
        if plain in _INFIX:
            return f"{read[0]} {_INFIX[plain]} {read[1]}"
        if operation == "not":
            return f"!{read[0]}"
        if operation == "float":
            return f"static_cast<Real>({read[0]})"
        if operation == "columns":
            return "m.cols()"
        if operation == "integer_neg":
            return f"static_cast<int64_t>(0 - static_cast<uint64_t>({read[0]}))"
        if operation.startswith("integer_"):
            unsigned = [f"static_cast<uint64_t>({each})" for each in read]
            return f"static_cast<int64_t>({f' {_INTEGER_INFIX[plain]} '.join(unsigned)})"
        name = _CPP_NAMES.get(operation) or "".join(
            part.capitalize() for part in operation.split("_")
        )
        return f"compute<k{name}>({', '.join([*read, 'Real(0)', 'Real(0)'][:3])})"

    def _defined(self, instruction: Instruction, text: str = "") -> str:
        text = text or self._expression(instruction)
        return f"const {_TYPES[self._dtype(instruction.to)]} {self._name(instruction.to)} = {text};"

    # ---- Row sections ----

    def _register(self, number: int) -> int:
        """The row register of a node's value."""
        return (self.integer_rows if self._is_integer(number) else self.rows)[number]

    def _constants(self) -> list[str]:
        """What fills the row registers of constants."""
        return [
            f"m.set_{'integer_' * self._is_integer(number)}row({register}, "
            f"{self._name(('row', number))});"
            for numbers in (self.rows, self.integer_rows)
            for number, register in numbers.items()
            if self.nodes[number].operation == "constant"
        ]

    def _row_array(self, number: int) -> str:
        kind, pointer = ("integer_row", "int64_t") if self._is_integer(number) else ("row", "Real")
        return f"{pointer}* const a{number} = m.{kind}({self._register(number)});"

    def _is_integer(self, number: int) -> bool:
        return self.nodes[number].dtype == "int"

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
                    f"m.{operation}({instruction.arguments[0]}, {self._register(number)});"
                )
                continue
            if operation == "store_row":
                register = self._register(instruction.reads[0][1])
                behind.append(f"m.store_row({instruction.arguments[0]}, {register});")
                continue
            for value in instruction.reads:
                number = value[1]
                if number in own or is_constant(self.writer, value):
                    continue
                own.add(number)
                arrays.append(number)
                is_truth = " != 0" if self._dtype(value) == "bool" else ""
                kind = _TYPES[self._dtype(value)]
                loop.append(f"const {kind} v{number} = a{number}[i]{is_truth};")
            number = instruction.to[1]
            own.add(number)
            loop.append(self._defined(instruction))
            if number in used:
                arrays.append(number)
                loop.append(f"a{number}[i] = {self._as_stored(instruction.to)};")
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

    def _as_stored(self, value: Any) -> str:
        name = self._name(value)
        return f"truth<Real>({name})" if self._dtype(value) == "bool" else name

    # ---- Tile sections ----

    def _element(self, number: int) -> tuple[str, int, bool]:
        """The C++ type of an array's elements, its size, and whether they come converted."""
        found = _ELEMENTS.get(self.dtypes[number])
        return (self.real, self.real_bytes, True) if found is None else (*found, False)

    def _tile_section(self, phase: int) -> list[str]:
        tile = self.tiles[phase]
        used: dict[str, list[int]] = {
            name: [] for name in ("Loads", "Stores", "Words", "ColumnSums", "Rows", "IntegerRows")
        }
        reductions: list[str] = []
        before: list[str] = []
        loop: list[str] = []
        for value in tile.rows:
            number = value[1]
            register = self._register(number)
            integer = self._is_integer(number)
            used["IntegerRows" if integer else "Rows"].append(register)
            kind = "int64_t" if integer else "Real"
            pointer = "integer_row" if integer else "row"
            before.append(f"const {kind}* const a{number} = at.{pointer}[{register}];")
            before.append(f"const {kind} c{number} = a{number}[0];")
            is_truth = " != 0" if self._dtype(value) == "bool" else ""
            loop.append(
                f"const {_TYPES[self._dtype(value)]} v{number} = "
                f"(kFlat ? a{number}[i] : c{number}){is_truth};"
            )
        for value in tile.read:
            number = value[1]
            before.append(f"const Real* const k{number} = at.kept[{self.kept[value]}];")
            is_truth = " != 0" if self._dtype(value) == "bool" else ""
            kind = _TYPES[self._dtype(value)]
            loop.append(f"const {kind} v{number} = k{number}[i]{is_truth};")
        for instruction in tile.instructions:
            operation = instruction.operation
            if operation in ("load", "load_mask"):
                operand, half = instruction.arguments
                stream = self.loads[operand, half]
                element, _, _ = self._element(operand)
                used["Loads"].append(stream)
                before.append(
                    f"const {element}* const x{stream} = "
                    f"reinterpret_cast<const {element}*>(at.load[{stream}]);"
                )
                is_mask = operation == "load_mask"
                text = f"x{stream}[i] != 0" if is_mask else f"to_real<Real>(x{stream}[i])"
                loop.append(self._defined(instruction, text))
            elif operation == "column":
                loop.append(self._defined(instruction, "kFlat ? at.columns[i] : at.col + i"))
            elif operation == "keep":
                registers = [self._register(number) for _, number in instruction.reads]
                draw = self.draws[tuple([*registers, -1][:3])]
                if draw not in used["Words"]:
                    used["Words"].append(draw)
                    before.append(f"const uint32_t* const w{draw} = at.words[{draw}];")
                text = f"w{draw}[i] >= uint32_t({instruction.extra})"
                loop.append(self._defined(instruction, text))
            elif operation in REDUCTIONS:
                term = len(reductions)
                register = self._register(instruction.to[1])
                reductions.append(f"{{k{operation.capitalize()}, {term}, {register}}}")
                before.append(f"Real* const t{term} = at.term[{term}];")
                loop.append(f"t{term}[i] = {self._as_stored(instruction.reads[0])};")
            elif operation == "store":
                result, half = instruction.arguments
                stream = self.stores[result, half]
                element, _, is_converted = self._element(self.operands + result)
                used["Stores"].append(stream)
                pointer = f"reinterpret_cast<{element}*>(at.store[{stream}])"
                before.append(f"{element}* const y{stream} = {pointer};")
                name = self._name(instruction.reads[0])
                rounded = name if is_converted else f"math::round_to<{element}>({name})"
                loop.append(f"y{stream}[i] = {rounded};")
            elif operation == "add_columns":
                number = self.sums[instruction.arguments[0]]
                used["ColumnSums"].append(number)
                before.append(f"Real* const s{number} = at.lane[{number}];")
                name = self._name(instruction.reads[0])
                loop.append(f"s{number}[i] = kFlat ? {name} : s{number}[i] + {name};")
            else:
                loop.append(self._defined(instruction))
            if instruction.to in tile.written:
                number = instruction.to[1]
                before.append(f"Real* const k{number} = at.kept[{self.kept[instruction.to]}];")
                loop.append(f"k{number}[i] = {self._as_stored(instruction.to)};")
        lists = [f"using {name} = List<{', '.join(map(str, of))}>;" for name, of in used.items()]
        return [
            f"struct Tile_{phase} {{",
            *(f"  {line}" for line in lists),
            f"  static constexpr int kReduces = {len(reductions)};",
            f"  static constexpr Reduces kReductions[] = {{{', '.join(reductions) or '{}'}}};",
            "  template <bool kFlat>",
            "  static __attribute__((noinline)) void body(const Places<P>& at, int64_t count) {",
            *(f"    {line}" for line in before),
            "    if (count % kStep != 0) __builtin_unreachable();",
            "    BRIDGE_INDEPENDENT",
            "    for (int64_t i = 0; i < count; ++i) {",
            *(f"      {line}" for line in loop),
            "    }",
            "  }",
            "};",
        ]

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
                _, size, is_converted = self._element(first + array)
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
