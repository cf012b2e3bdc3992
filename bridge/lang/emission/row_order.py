"""The order of per-row values in a CUDA kernel: as late as possible, in as few warps as needed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from bridge.lang import roles
from bridge.lang.emission.residents import Residents
from bridge.lang.emission.sections import part_of
from bridge.lang.instructions import REDUCTIONS

_OF_ROWS = (roles.PerRow, roles.PerRowOfIntegers)


class Place(Enum):
    """The place in the kernel at which a per-row value is computed."""

    BEFORE = "before the elements of its section"
    BESIDE = "while the first elements are on their way from memory"
    BESIDE_FIRST = "the same, by the warp of the row's first chunk alone"
    END = "behind all elements, by that warp alone"


class RowOrder:
    """The places of a program's per-row values: instructions of row sections, reductions and picks.

    All warps of a row need the values from which elements are computed. Their memory reads are
    issued after the loads of the first elements, to overlap with them. Values that are only used
    for per-row results are computed by one warp; their memory reads are issued at the same point.
    """

    def __init__(self, emitter: Residents) -> None:
        self.emitter = emitter
        self._reads: dict[int, set[int]] = {}
        self._section: dict[int, int] = {}
        self._known_early: set[int] = set()  # values that no reduction contributes to
        self._loaded: set[int] = set()  # values that depend on a memory read
        asked: list[int] = []  # values read from memory
        picked: list[int] = []
        for section in range(emitter.writer.count + 1):
            for instruction in emitter.writer.rows[section].instructions:
                if instruction.to is None or instruction.operation.endswith("spread"):
                    continue
                is_asked = self._is_of_row(instruction)
                self._add(instruction.to, section, instruction.reads, is_asked)
                asked += [instruction.to[1]] * is_asked
            if section == emitter.writer.count:
                continue
            for value, pick in emitter.picks[section].items():
                part = part_of(emitter.all[section], (), (pick.value,)).instructions
                own = {each.to for each in part}
                reads = [v for each in part for v in each.reads] + [pick.value, pick.column]
                self._add(value, section, [v for v in reads if v not in own], True)
                asked.append(value[1])
                picked.append(value[1])
            for instruction in emitter.tiles[section].instructions:
                if instruction.operation in REDUCTIONS:
                    self._reads[instruction.to[1]] = set()
                    self._section[instruction.to[1]] = section + 1
        tiles = [each for tile in emitter.tiles for each in tile.instructions]
        self._wanted = self._closure(value[1] for each in tiles for value in each.reads)
        self._early: set[int] = set()
        for number in asked if emitter.tiles else ():  # without tiles no load is under way
            needed = self._closure([number])
            # A value that the elements of a later section need is not known yet.
            late = {n for n in needed & self._wanted if self._section[n] > 0}
            if number in self._known_early and number not in self._wanted and not late:
                self._early |= needed
        if any(each.operation == "store" for each in tiles):
            # A pick reads operands: it comes before the stores, which may overwrite them.
            self._wanted |= self._closure(n for n in picked if n not in self._early)

    def _add(self, value: Any, section: int, reads: Iterable[Any], is_asked: bool) -> None:
        """Registers a value; its inputs are registered before."""
        number = value[1]
        found = {read[1] for read in reads}
        self._reads[number] = found
        self._section[number] = section
        if all(n in self._known_early for n in found if n in self._reads):
            self._known_early.add(number)
        if is_asked or found & self._loaded:
            self._loaded.add(number)

    def _is_of_row(self, instruction: Any) -> bool:
        if instruction.operation not in ("load_row", "load_label"):
            return False
        operands = self.emitter.writer.program.operands
        array = instruction.arguments[0]
        return array < len(operands) and operands[array].role in _OF_ROWS

    def _closure(self, numbers: Iterable[int]) -> set[int]:
        found: set[int] = set()
        left = [n for n in numbers if n in self._reads]
        while left:
            number = left.pop()
            if number not in found:
                found.add(number)
                left += [n for n in self._reads[number] if n in self._reads]
        return found

    def place(self, value: Any) -> Place:
        """Returns the place of a value of a row section, of a reduction or of a pick."""
        number = value[1]
        is_known = number in self._known_early
        if number in self._wanted:
            is_beside = is_known and number in self._loaded and self._section[number] == 0
            return Place.BESIDE if is_beside else Place.BEFORE
        if number in self._early:
            return Place.BESIDE_FIRST
        return Place.END
