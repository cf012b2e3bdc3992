"""Generated CUDA C++: cpp/generated/cuda/rows.cuh runs it instead of the bytecode.

A program is one function of a row. Per-row values are variables. A section over the elements is a
loop over chunks, vectors and elements; all loads of a chunk come before its computations. In
kernels whose rows stay in registers, later sections find there the elements they read again and the
values that are expensive to compute again, as far as registers suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.lang import roles
from bridge.lang.bytecode import Writer
from bridge.lang.emission.cuda_rows import RowTexts
from bridge.lang.emission.cuda_sections import SectionText, within
from bridge.lang.emission.residents import Residents
from bridge.lang.instructions import cost_of
from bridge.lang.program import Program, largest_block
from bridge.lang.registers import Instruction
from bridge.lang.scalar import ROOT

# A longer program is not unrolled for the elements of a thread: it would be slow to compile, and
# too long for the instruction cache.
_MOST_UNROLLED = 110
# Vectors of the longest short row: kShortGroup * kShortVectors of cpp/generated/cuda/call.h.
_SHORT_VECTORS = 32
# Programs whose warps may have several chunks of a row. Shorter programs only wait for memory and
# are better off with more warps. The code of longer ones is too long for the instruction cache.
_WIDE = range(12, 48)


@dataclass(frozen=True)
class Emitted:
    """The text of a program, with the facts needed to launch its kernels.

    Attributes:
      source: C++.
      vector: adjacent columns of a thread.
      cells: shared memory for each chunk of a row, in units of 8 bytes.
      held: bytes of each chunk that several sections read.
      kinds: a bit 1 << kind for each available kind of cpp/generated/cuda/call.h.
      staged: the number of shared vectors that a column driver stages in shared memory.
    """

    source: str
    vector: int
    cells: int
    held: int
    kinds: int
    staged: int


# In the order of cpp/generated/cuda/call.h.
KINDS = (
    "ShortAligned",
    "ShortAny",
    "ResidentAligned",
    "LongAligned",
    "LongAny",
    "ColumnsAligned",
    "WideAligned",
    "ShortWhole",
)


def cuda_source_of(
    program: Program,
    arithmetic: str,
    dtypes: Sequence[str],
    has_start: bool = False,
    free: Sequence[int] = (),
) -> Emitted:
    """Returns the CUDA C++ of a program. The arguments are those of `emission.source_of`."""
    return _Emitter(Writer(program, has_start), arithmetic, dtypes, free).emitted()


class _Emitter(Residents):
    def __init__(
        self, writer: Writer, arithmetic: str, dtypes: Sequence[str], free: Sequence[int]
    ) -> None:
        super().__init__(writer, arithmetic, dtypes, free)
        self.cells = self.areas = 0
        self.waits = False  # True if the elements of a row need per-row numbers from memory

    def _rows(self) -> list[str]:
        """Emits the function of a row."""
        rows = RowTexts(self)
        texts = [SectionText(self, rows.order, i) for i in range(self.writer.count)]
        lines = [*rows.declared]
        for section, text in enumerate(texts):
            lines += rows.of_section[section]
            lines += text.lines(*((rows.beside, rows.beside_first) if section == 0 else ([], [])))
        self.waits = bool(rows.beside)
        self.cells = max((text.cells for text in texts), default=0)
        self.areas = 1 if sum(text.cells > 0 for text in texts) == 1 and not self.sums else 2
        end = [line for text in texts for line in text.at_end] + rows.end
        return lines + within("if (w.is_first())", end)

    def emitted(self) -> Emitted:
        lines = self._rows()
        lines = self.free_in(lines, "w.constant({})") + lines
        instructions = [i for tile in self.tiles for i in tile.instructions]
        is_large = sum(cost_of(i.operation).cuda for i in instructions) > _MOST_UNROLLED
        # Random words are most of the cost of a row.
        draws = any(i.operation == "keep" for i in instructions)
        # Resident kernels also add column sums, if no column driver does.
        stays = self._is_resident or (bool(self.sums) and not self._keeps_columns)
        absent = {
            "ResidentAligned": not stays,
            "ColumnsAligned": not self._keeps_columns,
            "WideAligned": not self._may_be_wide(instructions),
            # Blocks divide a row, so its shortest length is that of the largest one.
            "ShortWhole": is_large
            or draws
            or largest_block(self.writer.program) > _SHORT_VECTORS * self.vector,
        }
        kinds = [kind for kind in KINDS if not absent.get(kind)]
        row_blocks, long_blocks = self._blocks(instructions)
        constants = {
            "int kArrays": len(self.dtypes),
            "int kConstants": self.constant_count,
            "int kVector": self.vector,
            "int kMinBlocks": 1 if self.real_bytes == 8 else 2,
            "int kRowBlocks": row_blocks,
            "int kLongBlocks": long_blocks,
            "bool kIsLarge": str(is_large).lower(),
            "bool kIsResident": str(self._is_resident).lower(),
            "bool kKeeps": str(self.keeps).lower(),
            "bool kIsTight": str(self.is_tight).lower(),
            "int kCells": self.cells,
            "int kHeld": self.held_bytes,
            "int kColumnSums": len(self.sums),
            "int kStaged": len(self.staged),
            "bool kDraws": str(draws).lower(),
        }
        source = [
            f"// {self.writer.program.name}",
            f'#include "generated/cuda/{"column_driver" if self._keeps_columns else "rows"}.cuh"',
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
            *(self._stage() if self.staged else []),
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
        cells = self.cells * self.areas
        facts = self.vector, cells, self.held_bytes, mask, len(self.staged)
        return Emitted("\n".join(source), *facts)

    def _blocks(self, instructions: Sequence[Instruction]) -> tuple[int, int]:
        """Returns the fewest blocks on a multiprocessor, a bound on the registers of a thread.

        The first number is for kernels with a warp for each chunk, the second for those whose warps
        go from chunk to chunk. Kernels of short rows have a bound of their own. A compiler takes
        all the registers it may have without being faster for it, and fewer warps are left to work
        while others wait. More than two blocks are for 16-bit programs that spilled no or few
        registers in the code of whole chunks and were faster (measured on an H100), and for 32-bit
        programs that keep at most one row and write none.
        """
        if self.real_bytes == 8:
            return 1, 1
        operations = {i.operation for i in instructions}
        loaded = self.loaded_registers
        if self.sums or "keep" in operations:
            return 2, 2
        if self.vector < 8:
            return (2, 2) if self.stores or loaded > 32 else (3, 3)
        if not operations & {"sum", "max", "argmax"}:
            blocks = 3 if self.waits else 4 if loaded <= 16 else 2
            return blocks, blocks
        is_light = all(cost_of(i.operation).cuda <= ROOT.cuda for i in instructions)
        most = 48 if is_light else 16
        if loaded > most or len(self.stores) > 1:
            return 2, 2
        return 4, 3

    @property
    def _is_resident(self) -> bool:
        """True for a kernel with a warp for each chunk of a row.

        The warp keeps its elements, or loads them while it waits for per-row numbers.
        """
        return self.keeps or self.waits

    def _may_be_wide(self, instructions: Sequence[Instruction]) -> bool:
        """True for a kernel whose warps have several chunks of a row each.

        It keeps one 16-bit stream and computes derived values again. The per-row work of a thread
        is done once for more elements.
        """
        kept = [self._bytes(stream) for stream in self.kept_loads]
        beside = self.sums or any(i.operation == "keep" for i in instructions)
        is_busy = sum(cost_of(i.operation).cuda for i in instructions) in _WIDE
        if largest_block(self.writer.program):
            return False
        return is_busy and kept == [2] and self.vector == 8 and not beside

    @property
    def _keeps_columns(self) -> bool:
        """True for a column driver: a kernel whose threads go down the rows of their columns.

        A thread adds the column sums of its columns and reads vectors shared by all rows once.
        """
        program = self.writer.program
        used = {each.role for each in program.operands} | {each.role for each in program.results}
        of_rows = {roles.PerRow, roles.PerRowOfIntegers}
        is_worth_it = bool(self.sums) or roles.Row in used
        if largest_block(program):  # the threads of a block of columns have one row
            return False
        return is_worth_it and self.cells == 0 and not used & of_rows

    def _stage(self) -> list[str]:
        lines = [
            f"    w.template stage<{self.element(operand)[0]}>({number}, {operand});"
            for number, (operand, _) in enumerate(self.staged)
        ]
        return ["  template <class W>", "  static BRIDGE_DEVICE void stage(W& w) {", *lines, "  }"]

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


def _entry(kind: str) -> str:
    """Returns the C name of a kernel, as in cpp/generated/cuda/call.h."""
    return "bridge" + "".join(f"_{c.lower()}" if c.isupper() else c for c in kind)
