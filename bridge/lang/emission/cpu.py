"""Generated C++ for the CPU: cpp/generated/cpu/row_driver.h runs it instead of the bytecode.

The sections are those of the bytecode. Within a section all operations stand in one loop, in
registers. A value of an earlier section is computed again if that is cheap, else it is saved and
read back. Each operation is the C++ function that the interpreter calls, so both give the same
bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from bridge.lang.bytecode import Writer
from bridge.lang.emission.cpu_sections import Section
from bridge.lang.emission.cpu_tiles import Registers
from bridge.lang.emission.sections import is_constant, streams_of, weight_of
from bridge.lang.instructions import REDUCTIONS
from bridge.lang.program import Program, constant_of, is_parameter


def source_of(
    program: Program,
    arithmetic: str,
    dtypes: Sequence[str],
    has_start: bool = False,
    free: Sequence[int] = (),
) -> str:
    """Returns the C++ of a program.

    Args:
      program: any.
      arithmetic: "float32" or "float64".
      dtypes: of the operands, then of the results.
      has_start: as in `bytecode.words_of`.
      free: a result of `free_constants`, or a part of it: these constants are read from the
        bytecode of each call, so one C++ text serves programs that differ in them.
    """
    return _Emitter(Writer(program, has_start), arithmetic, dtypes, free).text()


def free_constants(program: Program, has_start: bool = False) -> list[int]:
    """Returns the numbers, in bytecode order, of constants without a special case in the C++."""
    writer = Writer(program, has_start)
    return [
        number
        for node, number in writer.constants.items()
        if writer.nodes[node].dtype == "float"
        and math.isfinite(value := constant_of(writer.nodes[node]))
        and (is_parameter(writer.nodes[node]) or abs(value) not in (0.0, 0.5, 1.0, 2.0))
    ]


class _Emitter(Registers):
    # ---- Row sections ----

    def _constants(self) -> list[str]:
        """Emits the assignments of constants to row registers."""
        lines = [
            f"m.set_{'integer_' * self.is_integer(number)}row({register}, "
            f"{self.name(('row', number))});"
            for numbers in (self.rows, self.integer_rows)
            for number, register in numbers.items()
            if self.nodes[number].operation == "constant"
        ]
        return self.free_in(lines, "m.constant({})") + lines

    def _row_array(self, number: int) -> str:
        kind, pointer = ("integer_row", "int64_t") if self.is_integer(number) else ("row", "Real")
        return f"{pointer}* const a{number} = m.{kind}({self.register(number)});"

    def _used_later(self, section: int) -> set[int]:
        """Returns the nodes with per-row values read after a row section or outside its loop."""
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
            before += ["const int64_t count = m.row_count();", "BRIDGE_INDEPENDENT"]
            before.append("for (int64_t i = 0; i < count; ++i) {")
            loop = [f"  {line}" for line in loop] + ["}"]
        lines = before + loop + behind
        if not lines:
            return []
        lines = self.free_in(lines, "m.constant({})") + lines
        head = f"static void rows_{section}(M& m) {{"
        return ["template <class M>", head, *(f"  {line}" for line in lines), "}"]

    # ---- Tile sections ----

    def _tile_section(self, phase: int) -> list[str]:
        before = {stream for tile in self.tiles[:phase] for stream in streams_of(tile)}
        # The section that fetches the next row ahead spares the first section the wait.
        is_in_cache = self._fetching >= 0 or before.issuperset(streams_of(self.tiles[phase]))
        return Section(self, self.tiles[phase], is_in_cache, phase == self._fetching).text(phase)

    @functools.cached_property
    def _fetching(self) -> int:
        """The section that fetches the next row ahead; -1: none.

        It is the longest of the sections that read the row again and so do not wait for memory.
        """
        streams = [streams_of(tile) for tile in self.tiles]
        again = [i for i, own in enumerate(streams) if own and any(streams[:i])]
        return max(again, key=lambda i: (weight_of(self.tiles[i]), i), default=-1)

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
                flags = (is_converted, self.is_vector(first + array))
                words = ", ".join(str(flag).lower() for flag in flags)
                block = self.block_of(first + array)
                lines.append(f"{{{array}, {half}, {size}, {words}, {block}}}")
            return ", ".join(lines) or "{}"

        sums = ", ".join(map(str, self.sums)) or "0"
        are_vectors = [self.is_vector(array) for array, _ in self.loads]
        vectors = ", ".join(str(sum(are_vectors[:i])) for i in range(len(are_vectors))) or "0"
        draws = ", ".join(f"{{{', '.join(map(str, each))}}}" for each in self.draws) or "{}"
        thresholds = ", ".join(map(str, self.thresholds)) or "0"
        counts = {
            "Constants": self.constant_count,
            "LoadCount": len(self.loads),
            "Vectors": sum(are_vectors),
            "StoreCount": len(self.stores),
            "Terms": most + len(self.sums),
            "Kept": len(self.kept),
            "ColumnSums": len(self.sums),
            "DrawCount": len(self.draws),
            "Thresholds": len(self.thresholds),
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
            f"static constexpr int kThresholdOf[] = {{{thresholds}}};",
            f"static constexpr int kSums[] = {{{sums}}};",
            "static constexpr const Stream& load(int i) { return kLoads[i]; }",
            f"static constexpr int kVectorOf[] = {{{vectors}}};",
            "static constexpr int vector(int load) { return kVectorOf[load]; }",
            "static constexpr const Stream& store(int i) { return kStores[i]; }",
            "static constexpr const Draws& draws(int i) { return kDraws[i]; }",
            "static constexpr int threshold(int i) { return kThresholdOf[i]; }",
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
                '#include "generated/cpu/row_driver.h"',
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
