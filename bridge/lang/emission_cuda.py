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

from bridge.lang import roles
from bridge.lang.bytecode import REDUCTIONS, Instruction, Writer
from bridge.lang.expressions import TYPES, Numbers
from bridge.lang.program import COLUMNS, Program
from bridge.lang.residents import Residents, streams_of
from bridge.lang.sections import Tile

# With more operations in its sections a program is no longer written out for each element of a
# thread: it would be slow to compile, and too long for the instruction cache.
_MOST_UNROLLED = 110
_LONG = frozenset(("div", "sqrt", "rsqrt", "keep"))  # as some ten of the short ones are
_SHORT = frozenset(
    (
        *("load", "load_mask", "column", "neg", "abs", "not", "float", "add", "sub", "mul", "fma"),
        *("minimum", "maximum", "where", "lt", "le", "eq", "ne", "and", "or"),
        *("store", "add_columns", "sum", "max", "argmax"),
        *("exp_coarse", "round_float16", "round_bfloat16", "round_float32"),
    )
)


@dataclass(frozen=True)
class Emitted:
    """The text, and what who launches its kernels must know.

    Attributes:
      source: C++.
      vector: columns side by side that a thread has.
      cells: 8 bytes of shared memory that are needed for each chunk of a row.
      kinds: 1 << kind for each kind of cpp/interpreter/generated_call.h that there is.
    """

    source: str
    vector: int
    cells: int
    kinds: int


# As cpp/interpreter/generated_call.h numbers them.
KINDS = (
    "ShortAligned",
    "ShortAny",
    "ResidentAligned",
    "LongAligned",
    "LongAny",
    "ColumnsAligned",
)


def cuda_source_of(
    program: Program,
    arithmetic: str,
    dtypes: Sequence[str],
    has_start: bool = False,
    free: Sequence[int] = (),
) -> Emitted:
    """The CUDA C++ of a program. The arguments are those of `emission.source_of`."""
    return _Emitter(Writer(program, has_start), arithmetic, dtypes, free).emitted()


def _weight(instruction: Instruction) -> int:
    """About how many short operations an instruction is."""
    name = instruction.operation.removeprefix("integer_")
    return 1 if name in _SHORT else 10 if name in _LONG else 25


class _Emitter(Residents):
    def __init__(
        self, writer: Writer, arithmetic: str, dtypes: Sequence[str], free: Sequence[int]
    ) -> None:
        super().__init__(writer, arithmetic, dtypes, free)
        self.loads, self.stores, self.sums = (Numbers() for _ in range(3))
        self.cells = 0

    # ---- What a row has one of ----

    def _row_section(self, section: int) -> list[str]:
        lines = []
        for instruction in self.writer.rows[section].instructions:
            operation = instruction.operation
            if operation.endswith("spread"):
                continue
            array = instruction.arguments[0] if instruction.arguments else 0
            if operation == "store_row":
                element, _ = self.element(self.operands + array)
                value = self.as_stored(instruction.reads[0])
                lines.append(f"w.template store_row<{element}>({self.operands + array}, {value});")
                continue
            if operation == "load_row":
                text = f"w.template load_row<{self.element(array)[0]}>({array})"
            elif operation == "load_label":
                text = f"w.load_label({array})"
            else:
                text = self.expression(instruction)
            lines.append(self.defined(instruction.to, text))
        return lines

    # ---- All of it ----

    def emitted(self) -> Emitted:
        lines: list[str] = []
        for section in range(self.writer.count + 1):
            lines += self._row_section(section)
            if section < self.writer.count:
                text = _Section(self, self.tiles[section])
                self.cells = max(self.cells, text.cells)
                lines += text.lines()
        lines = self.free_in(lines, "w.constant({})") + lines
        instructions = [i for tile in self.tiles for i in tile.instructions]
        is_large = sum(map(_weight, instructions)) > _MOST_UNROLLED
        absent = {
            "ResidentAligned": not self.is_resident,
            "ColumnsAligned": not self._keeps_columns,
        }
        kinds = [kind for kind in KINDS if not absent.get(kind)]
        constants = {
            "int kArrays": len(self.dtypes),
            "int kConstants": self.constant_count,
            "int kVector": self.vector,
            "int kMinBlocks": 1 if self.real_bytes == 8 else 2,
            "bool kIsLarge": str(is_large).lower(),
            "bool kIsResident": str(self.is_resident).lower(),
            "int kColumnSums": len(self.sums),
            "bool kDraws": str(any(i.operation == "keep" for i in instructions)).lower(),
        }
        source = [
            f"// {self.writer.program.name}",
            f'#include "interpreter/generated_{"columns" if self._keeps_columns else "walk"}.cuh"',
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
            *(self._end_columns() if self._keeps_columns else []),
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
        mask = sum(1 << KINDS.index(kind) for kind in kinds)
        return Emitted("\n".join(source), self.vector, self.cells, mask)

    @property
    def _keeps_columns(self) -> bool:
        """Whether there is a kernel whose threads go down the rows of their columns.

        Each adds up what it has of a column, and reads once what all rows share.
        """
        program = self.writer.program
        used = {each.role for each in program.operands} | {each.role for each in program.results}
        of_rows = {roles.PerRow, roles.PerRowOfIntegers}
        is_worth_it = bool(self.sums) or roles.Row in used
        return is_worth_it and self.cells == 0 and not used & of_rows

    def _end_columns(self) -> list[str]:
        lines = []
        for result, number in self.sums.items():
            array = self.operands + result
            element, _ = self.element(array)
            lines.append(f"    w.template end_sum<{element}>({number}, {array}, chunk, chunks);")
        return [
            "  template <class W>",
            "  static BRIDGE_DEVICE void end_columns(W& w, int64_t chunk, int64_t chunks) {",
            *lines,
            "  }",
        ]


class _Section:
    """A tile section: what it declares, and what it does for a chunk, a vector and an element."""

    def __init__(self, emitter: _Emitter, tile: Tile) -> None:
        self.emitter = emitter
        self.cells = 0
        self.declared: list[str] = []
        self.loads: list[str] = []
        self.vector: list[str] = []
        self.body: list[str] = []
        self.stored: list[str] = []
        self.added: list[str] = []  # behind each vector
        self.ended: list[str] = []  # and each chunk
        self.shared: list[str] = []  # before the warps of a row meet
        self.behind: list[str] = []
        self.draws = Numbers()
        for stream in streams_of(tile):
            self._take(stream)
        for instruction in tile.instructions:
            self._write(instruction)

    def _take(self, stream: tuple[int, int]) -> None:
        emitter = self.emitter
        is_first = stream not in emitter.loads
        name = f"x{emitter.loads[stream]}"
        if is_first:
            element = emitter.element(stream[0])[0]
            how = [str(stream in of).lower() for of in (emitter.kept_loads, emitter.whole)]
            how.append(str(emitter.is_shared(stream[0])).lower())
            kind = f"Load<W, {element}, {', '.join(how)}>"
            self.declared.append(f"{kind} {name}(w, {stream[0]}, {stream[1]});")
        self.loads.append(f"{name}.load{'' if is_first else '_again'}(part);")
        self.vector.append(f"{name}.load_vector(part, q);")

    def _write(self, instruction: Instruction) -> None:
        operation = instruction.operation
        if operation in ("store", "add_columns"):
            self._store(instruction)
        elif operation == "sum":
            self._sum(instruction)
        elif operation in REDUCTIONS:
            self._largest(instruction)
        else:
            self._define(instruction)

    def _store(self, instruction: Instruction) -> None:
        result, half = instruction.arguments
        emitter = self.emitter
        array = emitter.operands + result
        if instruction.operation == "add_columns":
            number = emitter.sums[result]
            name, element = f"z{number}", "Real"
            put, stored = "put_term", f"w.add_columns({number}, {name}, part, q);"
        else:
            name, element = f"y{emitter.stores[result, half]}", emitter.element(array)[0]
            to = f"w.template place<{element}>({array}, {half})"
            self.declared.append(f"{element}* const {name}_to = {to};")
            strides = f"w.has_vectors({array}), w.col_stride({array}), w.row_stride({array})"
            put, stored = "put", f"{name}.store(part, q, {name}_to, {strides});"
        self.vector.append(f"Store<W, {element}> {name};")
        self.body.append(f"{name}.{put}(e, {emitter.as_stored(instruction.reads[0])});")
        self.stored.append(stored)

    def _sum(self, instruction: Instruction) -> None:
        number, value = instruction.to[1], self.emitter.as_stored(instruction.reads[0])
        self.declared.append(f"RowSum<W> s{number};")
        self.vector.append(f"Terms<W> t{number};")
        self.body.append(f"t{number}.put(part.is_in(q, e), e, {value});")
        self.added.append(f"s{number}.add(q, t{number});")
        self.ended.append(f"s{number}.end_chunk(w, {self.cells});")
        self.behind.append(self.emitter.defined(instruction.to, f"s{number}.end(w, {self.cells})"))
        self.cells += 1

    def _largest(self, instruction: Instruction) -> None:
        number, value = instruction.to[1], self.emitter.as_stored(instruction.reads[0])
        is_place = instruction.operation == "argmax"
        self.declared.append(f"RowLargest<W, {str(is_place).lower()}> s{number};")
        self.body.append(f"s{number}.put(part.is_in(q, e), w.col(q) + e, {value});")
        self.shared.append(f"s{number}.share(w, {self.cells});")
        self.behind.append(f"s{number}.end(w, {self.cells});")
        found = f"s{number}.{'place' if is_place else 'number'}()"
        self.behind.append(self.emitter.defined(instruction.to, found))
        self.cells += 2 if is_place else 1

    def _define(self, instruction: Instruction) -> None:
        """Computes a value, or takes it from where it stayed."""
        emitter, value = self.emitter, instruction.to
        text, name = self._text(instruction), f"k{value[1]}"
        if value in emitter.kept and instruction.again:
            text = f"{name}.kIs ? {name}.take(q, e) : ({text})"
        self.body.append(emitter.defined(value, text))
        if value in emitter.kept and not instruction.again:
            self.declared.append(f"Kept<W, {TYPES[emitter.dtype(value)]}, true> {name};")
            self.body.append(f"{name}.put(q, e, {emitter.name(value)});")

    def _text(self, instruction: Instruction) -> str:
        operation, emitter = instruction.operation, self.emitter
        if operation in ("load", "load_mask"):
            operand, half = instruction.arguments
            stream = emitter.loads[operand, half]
            return f"x{stream}.{'truth' if operation == 'load_mask' else 'real'}(q, e)"
        if operation == "column":
            return "w.col(q) + e"
        if operation == "keep":
            return self._drawn(instruction)
        if operation == "exp_shifted":
            x, largest = instruction.reads
            if not emitter.nodes[largest[1]].axes & COLUMNS:
                return self._exp_shifted(emitter.name(x), emitter.name(largest))
        return emitter.expression(instruction)

    def _drawn(self, instruction: Instruction) -> str:
        drawn = ", ".join(self.emitter.name(value) for value in instruction.reads)
        drawn += ", int64_t(0)" * (3 - len(instruction.reads))
        if drawn not in self.draws:
            words = f"d{self.draws[drawn]}"
            self.vector.append(f"uint32_t {words}[W::kVector];")
            self.vector.append(f"if (part.reaches(q)) w.draw({drawn}, q, {words});")
        emitter, number = self.emitter, instruction.extra
        is_free = number in emitter.free.values()
        last = f"w.last_dropped({number})" if is_free else emitter.last_dropped(instruction)
        return f"d{self.draws[drawn]}[e] > {last}"

    def _exp_shifted(self, x: str, largest: str) -> str:
        """What the largest of a row says is found once: in the branches of vectors a compiler
        computes it in each."""
        shift = f"shift_{largest}"
        line = f"const auto {shift} = math::detail::shift_of({largest});"
        if line not in self.declared:
            self.declared.append(line)
        return f"math::exp_shifted({x}, {shift})"

    def lines(self) -> list[str]:
        meets = ["w.meet();"] if self.cells else []
        return [
            *self.declared,
            *meets,
            "w.each_chunk([&](const auto& part) {",
            *(f"  {line}" for line in self.loads),
            "  w.each_vector([&](int q) {",
            *(f"    {line}" for line in self.vector),
            "    if (part.reaches(q)) {",
            "      w.each_element([&](int e) {",
            *(f"        {line}" for line in self.body),
            "      });",
            *(f"      {line}" for line in self.stored),
            "    }",
            *(f"    {line}" for line in self.added),
            "  });",
            f"}}, [&] {{ {' '.join(self.ended)} }});",
            *self.shared,
            *meets,
            *self.behind,
        ]


def _entry(kind: str) -> str:
    """As cpp/interpreter/generated_call.h names the kernels."""
    return "bridge" + "".join(f"_{c.lower()}" if c.isupper() else c for c in kind)
