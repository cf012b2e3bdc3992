"""What of a row a thread of a CUDA kernel has in its registers, and how wide it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.lang import roles
from bridge.lang.bytecode import Writer
from bridge.lang.expressions import ELEMENTS, Expressions, Numbers
from bridge.lang.sections import (
    Pick,
    Tile,
    streams_of,
    tile_sections,
    value_instead,
    without_picks,
)

# A thread has so many elements of a chunk. Of the 128 registers that two blocks of a multiprocessor
# leave it, so many are for what it keeps from section to section, and with what a section loads
# before it computes so many; fewer where numbers of 16 bits, two in one, will take one each.
_ELEMENTS_OF_THREAD = 32
_COLUMNS_OF_CHUNK = 1024
_KEPT_REGISTERS = 72
_KEPT_MORE_REGISTERS = 80  # where operands are staged
_STAGED_AND_SUMS = 3  # of columns: two blocks have 96 KiB each
_SUM_REGISTERS = 26  # for a sum beside another
_DRAWN_REGISTERS = 18  # for random words
_SPARE_REGISTERS = 24  # of them, with which a compiler may join sections
_LOADED_REGISTERS, _LOADED_REGISTERS_OF_16_BITS = 80, 64


class Residents(Expressions):
    """The sections of a program, and what stays in registers from one to the next.

    Attributes:
      all: with all that each computes.
      tiles: without sums of which all terms but one are absent.
      picks: those sums, of each section.
      loads, stores, sums: numbers of streams that are read and written, and of column sums.
      load_counts: how many sections read a stream.
      kept_loads, kept: streams and values that stay, where rows do.
      staged: streams of 16 bits of all rows which, where a thread goes down rows, it finds once, as
        numbers of the arithmetic type in shared memory.
      kept_more: values of `kept` that stay there alone, each instead of a stream of which later
        sections compute nothing else.
      held: where in what a long row's warps keep of a chunk in shared memory a stream is that
        several sections read, in bytes; held_bytes: of all of them.
      is_tight: whether a compiler that joins sections would run out of registers.
      whole: streams of which a section loads a whole chunk before it computes.
      loaded_registers: that these take with what stays, in the section where they are most.
      of_rows: names of what has been found of a row, beside its values.
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
        """How many elements side by side a column of an array has."""
        program = self.writer.program
        number = array - self.operands
        of = program.operands[array] if number < 0 else program.results[number]
        return 2 if of.role is roles.Pairs else 1

    def stream(self, operand: int, half: int) -> tuple[int, int]:
        """What an element is loaded with: halves that alternate are one stream."""
        return operand, half if self.each(operand) == 1 else 0

    def streams_of(self, tile: Tile) -> list[tuple[int, int]]:
        return list(dict.fromkeys(self.stream(*loaded) for loaded in streams_of(tile)))

    @property
    def vector(self) -> int:
        """As many columns as the shortest numbers that are read have in 16 bytes."""
        sizes = [self.element(operand)[1] for operand, _ in self.load_counts]
        shortest = min((size for size in sizes if size > 1), default=self.real_bytes)
        return min(16 // shortest, 4 if self.real_bytes == 8 else 8)

    @property
    def keeps(self) -> bool:
        return bool(self.kept or self.kept_loads)

    def is_shared(self, array: int) -> bool:
        """Whether an array is an operand that all rows share."""
        operands = self.writer.program.operands
        return array < len(operands) and operands[array].role is roles.Row

    def element(self, array: int) -> tuple[str, int]:
        return ELEMENTS[self.dtypes[array]]

    def _bytes(self, stream: tuple[int, int]) -> int:
        """What a stream has of a column."""
        return self.element(stream[0])[1] * self.each(stream[0])

    def _registers(self, size: int) -> int:
        return _ELEMENTS_OF_THREAD * size // 4

    def _choose_kept(self) -> None:
        """Streams that several sections read first, those of all rows last, then values in the
        order of sections."""
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
        several = [stream for stream, count in self.load_counts.items() if count > 1]
        several.sort(key=lambda stream: self.is_shared(stream[0]))
        self.held: dict[Any, int] = {}
        self.held_bytes = 0
        for stream in several:
            if not self.is_shared(stream[0]):  # else caches have it
                self.held[stream] = self.held_bytes
                self.held_bytes += _COLUMNS_OF_CHUNK * self._bytes(stream)
        candidates = [(self.kept_loads, s, self._bytes(s)) for s in several if s not in self.staged]
        for tile in tile_sections(self.writer):
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
        """As many as shared memory has room for beside the sums of columns, without which threads
        go down no rows. A row's sums are what its elements are read again for."""
        names = [i.operation for tile in self.tiles for i in tile.instructions]
        sums = names.count("add_columns")
        if self.vector < 8 or not sums or "sum" not in names or {"max", "argmax"} & {*names}:
            return []
        of_all = [s for s in self.load_counts if self.is_shared(s[0]) and self._bytes(s) == 2]
        return of_all[: max(_STAGED_AND_SUMS - sums, 0)]

    def _choose_kept_more(self, left: int) -> None:
        """Where operands are staged, a compiler needs fewer registers for elements of them."""
        for stream in sorted(s for s in self.kept_loads if self.each(s[0]) == 1):
            value = value_instead(self.writer, self.tiles, stream)
            registers = self._registers(self.real_bytes - self._bytes(stream))
            if value is not None and self.staged and registers <= left:
                self.kept_more.add(value)
                left -= registers
        self.kept |= self.kept_more

    def _choose_whole(self, left: int) -> None:
        """Streams of which a whole chunk is loaded at once: those of all rows last, which caches
        have."""
        self.whole = set(self.kept_loads)

        def rank(stream: tuple[int, int]) -> bool:
            return self.is_shared(stream[0])

        by_section = [left] * len(self.tiles)
        before = left
        others = self.load_counts.keys() - self.whole - {*self.staged}
        for stream in sorted(others, key=lambda s: (rank(s), s)):
            sections = [i for i, tile in enumerate(self.tiles) if stream in self.streams_of(tile)]
            registers = self._registers(self._bytes(stream))
            if all(by_section[i] >= registers for i in sections):
                self.whole.add(stream)
                for i in sections:
                    by_section[i] -= registers
        self.loaded_registers += before - min(by_section, default=before)
