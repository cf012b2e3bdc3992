"""Register allocation for a CUDA thread: the parts of a row that stay, and the load widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.lang import roles
from bridge.lang.bytecode import Writer
from bridge.lang.dtypes import DTYPES
from bridge.lang.emission.block_stages import has_blocks
from bridge.lang.emission.expressions import Expressions, Numbers
from bridge.lang.emission.sections import (
    Pick,
    Tile,
    streams_of,
    tile_sections,
    value_instead,
    without_picks,
)
from bridge.lang.trees import CHUNK_COLUMNS

# A thread has 32 elements of a chunk. Two blocks on a multiprocessor leave it 128 registers:
# _KEPT_REGISTERS for values that stay from section to section, _LOADED_REGISTERS for these and the
# numbers that a section loads before it computes. The latter budget is smaller for 16-bit numbers:
# two share a register as loaded, and each takes a register when converted.
_ELEMENTS_OF_THREAD = 32
_KEPT_REGISTERS = 72
_KEPT_MORE_REGISTERS = 80  # if operands are staged
_STAGED_AND_SUMS = 3  # staged operands and column sums: two blocks have 96 KiB each
_SUM_REGISTERS = 26  # for each sum beside the first
_DRAWN_REGISTERS = 18  # for random words
_SPARE_REGISTERS = 24  # out of _KEPT_REGISTERS, for a compiler that joins sections
_LOADED_REGISTERS, _LOADED_REGISTERS_OF_16_BITS = 80, 64


class Residents(Expressions):
    """The sections of a program, and the values that stay in registers from one to the next.

    Attributes:
      all: the sections with all of their instructions.
      tiles: the sections without sums that are picks.
      picks: these sums, for each section.
      loads, stores, sums: numbers of the streams that are read and written, and of column sums.
      load_counts: the number of sections that read each stream.
      kept_loads, kept: streams and values that stay, in kernels with resident rows.
      staged: 16-bit vectors shared by all rows. A column driver converts them once to the
        arithmetic type, in shared memory.
      kept_more: values of `kept` that stay only in such a driver, each instead of a stream that
        later sections need for nothing else.
      held: streams that several sections read, with their offsets, in bytes, in the shared memory
        that a warp of a long row has for a chunk; held_bytes: their total size.
      is_tight: True if a compiler that joins sections would run out of registers.
      whole: streams that a section loads for a whole chunk before it computes.
      loaded_registers: registers for these and for values that stay, in the fullest section.
      of_rows: names of further per-row variables that are already defined.
    """

    def __init__(
        self, writer: Writer, arithmetic: str, dtypes: Sequence[str], free: Sequence[int]
    ) -> None:
        super().__init__(writer, arithmetic, dtypes, "w", free)
        self.loads, self.stores, self.sums = (Numbers() for _ in range(3))
        self.of_rows: set[str] = set()
        self.all = tile_sections(writer, keeps=False)
        without = [without_picks(writer, tile) for tile in self.all]
        self.tiles: list[Tile] = [tile for tile, _ in without]
        self.picks: list[dict[Any, Pick]] = [picks for _, picks in without]
        self.load_counts: dict[Any, int] = {}
        for tile in self.tiles:
            for stream in self.streams_of(tile):
                self.load_counts[stream] = self.load_counts.get(stream, 0) + 1
        self._choose_kept()

    def each(self, array: int) -> int:
        """Returns the number of adjacent elements that an array has for each column."""
        program = self.writer.program
        number = array - self.operands
        of = program.operands[array] if number < 0 else program.results[number]
        return 2 if of.role is roles.Pairs else 1

    def stream(self, operand: int, half: int) -> tuple[int, int]:
        """Returns the stream of an operand's half; the two halves of Pairs are one stream."""
        return operand, half if self.each(operand) == 1 else 0

    def streams_of(self, tile: Tile) -> list[tuple[int, int]]:
        return list(dict.fromkeys(self.stream(*loaded) for loaded in streams_of(tile)))

    @property
    def vector(self) -> int:
        """The columns of a vector: as many as 16 bytes have of the shortest numbers read."""
        loads = [operand for operand, _ in self.load_counts if not self.block_of(operand)]
        sizes = [self.element(operand)[1] for operand in loads]
        shortest = min((size for size in sizes if size > 1), default=self.real_bytes)
        return min(16 // shortest, 4 if self.real_bytes == 8 else 8)

    @property
    def keeps(self) -> bool:
        return bool(self.kept or self.kept_loads)

    def is_shared(self, array: int) -> bool:
        """True for a vector shared by all rows."""
        operands = self.writer.program.operands
        return array < len(operands) and operands[array].role is roles.Row

    def element(self, array: int) -> tuple[str, int]:
        return DTYPES[self.dtypes[array]][:2]

    def _bytes(self, stream: tuple[int, int]) -> int:
        """Returns the bytes of a stream for each column."""
        return self.element(stream[0])[1] * self.each(stream[0])

    def _registers(self, size: int) -> int:
        return _ELEMENTS_OF_THREAD * size // 4

    def _choose_kept(self) -> None:
        """Chooses streams and values that stay in registers, within the budget.

        Streams read by several sections come first, vectors shared by all rows last among them,
        then values in the order of sections.
        """
        sums = max(
            (sum(i.operation == "sum" for i in tile.instructions) for tile in self.tiles), default=0
        )
        draws = any(i.operation == "keep" for tile in self.tiles for i in tile.instructions)
        beside = _SUM_REGISTERS * max(sums - 1, 0) + _DRAWN_REGISTERS * draws
        left = _KEPT_REGISTERS - beside
        self.kept_loads: set[Any] = set()
        self.kept: set[Any] = set()
        self.kept_more: set[Any] = set()
        self.staged = self._choose_staged()
        several = [
            stream
            for stream, count in self.load_counts.items()
            if count > 1 and not self.block_of(stream[0])
        ]
        several.sort(key=lambda stream: self.is_shared(stream[0]))
        self.held: dict[Any, int] = {}
        self.held_bytes = 0
        for stream in several:
            if not self.is_shared(stream[0]):  # shared vectors are in the caches
                self.held[stream] = self.held_bytes
                self.held_bytes += CHUNK_COLUMNS * self._bytes(stream)
        candidates = [(self.kept_loads, s, self._bytes(s)) for s in several if s not in self.staged]
        for tile in [] if any(map(has_blocks, self.tiles)) else tile_sections(self.writer):
            for value in tile.written:
                size = 1 if self.dtype(value) == "bool" else self.real_bytes
                candidates.append((self.kept, value, size))
        for chosen, what, size in candidates:
            registers = self._registers(size)
            if registers <= left:
                chosen.add(what)
                left -= registers
        kept = sum(self._registers(self._bytes(stream)) for stream in self.kept_loads)
        kept += sum(
            self._registers(1 if self.dtype(value) == "bool" else self.real_bytes)
            for value in self.kept
        )
        self._choose_kept_more(_KEPT_MORE_REGISTERS - kept - beside)
        self.loaded_registers = kept
        self.is_tight = kept + beside > _KEPT_REGISTERS - _SPARE_REGISTERS
        most = _LOADED_REGISTERS_OF_16_BITS if self.vector == 8 else _LOADED_REGISTERS
        self._choose_whole(most - kept - beside)

    def _choose_staged(self) -> list[Any]:
        """Chooses vectors to stage, as many as fit shared memory beside the column sums.

        Only programs with column sums use column drivers, and only those with row sums read
        elements again.
        """
        names = [i.operation for tile in self.tiles for i in tile.instructions]
        sums = names.count("add_columns")
        if self.vector < 8 or not sums or "sum" not in names or {"max", "argmax"} & {*names}:
            return []
        of_all = [s for s in self.load_counts if self.is_shared(s[0]) and self._bytes(s) == 2]
        return of_all[: max(_STAGED_AND_SUMS - sums, 0)]

    def _choose_kept_more(self, left: int) -> None:
        """Keeps more if operands are staged: a compiler then needs fewer registers for elements."""
        for stream in sorted(s for s in self.kept_loads if self.each(s[0]) == 1):
            value = value_instead(self.writer, self.tiles, stream)
            registers = self._registers(self.real_bytes - self._bytes(stream))
            if value is not None and self.staged and registers <= left:
                self.kept_more.add(value)
                left -= registers
        self.kept |= self.kept_more

    def _choose_whole(self, left: int) -> None:
        """Chooses streams to load for a whole chunk at once.

        Vectors shared by all rows come last, because they are in the caches.
        """
        self.whole = set(self.kept_loads)

        def rank(stream: tuple[int, int]) -> bool:
            return self.is_shared(stream[0])

        by_section = [left] * len(self.tiles)
        before = left
        others = self.load_counts.keys() - self.whole - {*self.staged}
        others = {stream for stream in others if not self.block_of(stream[0])}
        for stream in sorted(others, key=lambda s: (rank(s), s)):
            sections = [i for i, tile in enumerate(self.tiles) if stream in self.streams_of(tile)]
            registers = self._registers(self._bytes(stream))
            if all(by_section[i] >= registers for i in sections):
                self.whole.add(stream)
                for i in sections:
                    by_section[i] -= registers
        self.loaded_registers += before - min(by_section, default=before)
