"""The reductions of a tile section as CUDA C++: sums, largest numbers, their places, and counts."""

from __future__ import annotations

from typing import Any

from bridge.lang.emission.residents import Residents
from bridge.lang.emission.row_order import Place, RowOrder
from bridge.lang.emission.sections import LargestCount, largest_count_of, makers
from bridge.lang.program import constant_of
from bridge.lang.registers import Instruction


class Reductions:
    """The lines of a tile section, with those of its reductions.

    Attributes:
      cells: shared memory for each chunk of a row, in units of 8 bytes.
      at_end: code of a row's first warp after all sections, for reductions used there only.
    """

    def __init__(self, emitter: Residents, order: RowOrder, section: int) -> None:
        tile = emitter.tiles[section]
        self.emitter, self.made_by = emitter, makers(tile)
        self.order, self.section = order, section
        self.cells = 0
        self.declared: list[str] = []
        self.chunk: list[str] = []  # before the vectors
        self.vector: list[str] = []
        self.body: list[str] = []
        self.stored: list[str] = []
        self.added: list[str] = []  # after each vector
        self.ended: list[str] = []  # after each chunk
        self.sums: list[tuple[Instruction, int]] = []  # with their cells
        self.left: list[str] = []  # partial results for other warps, after each chunk
        self.shared: list[str] = []  # before the warps of a row synchronize
        self.behind: list[str] = []
        self.at_end: list[str] = []
        self.counts: dict[Any, LargestCount] = {}  # by the value of the count
        for instruction in tile.instructions:
            if instruction.operation == "sum" and (count := self._largest_count(instruction)):
                self.counts[instruction.to] = count

    def _sum(self, instruction: Instruction) -> None:
        number, value = instruction.to[1], self.emitter.as_stored(instruction.reads[0])
        counted = self._counted(instruction.reads[0])
        if instruction.to in self.counts:
            self._count_largest(number, self.counts[instruction.to])
        elif counted is not None:
            self.declared.append(f"RowCount<W> s{number};")
            self.body.append(f"s{number}.put(part.is_in(q, e) && {counted});")
        else:
            self.declared.append(f"RowSum<W> s{number};")
            self.vector.append(f"Terms<W> t{number};")
            self.body.append(f"t{number}.put(part.is_in(q, e), e, {value});")
            self.added.append(f"s{number}.add(w, q, t{number});")
        self.ended.append(f"s{number}.end_chunk(w);")
        self.left.append(f"s{number}.leave(w, {self.cells});")
        self.sums.append((instruction, self.cells))
        self.cells += 1

    def _counted(self, term: Any) -> str | None:
        """Returns the condition of a term that is 1 where it holds and 0 elsewhere, or None."""
        maker = self.made_by.get(term)
        if maker is None or maker.operation != "where":
            return None
        condition, *numbers = maker.reads
        nodes = [self.emitter.nodes[number] for _, number in numbers]
        if any(node.operation != "constant" for node in nodes):
            return None
        is_free = any(number in self.emitter.free for _, number in numbers)
        chosen = [constant_of(node) for node in nodes]
        if is_free or sorted(chosen) != [0.0, 1.0]:
            return None
        return f"{'' if chosen[0] else '!'}{self.emitter.name(condition)}"

    def _largest_count(self, instruction: Instruction) -> LargestCount | None:
        emitter = self.emitter
        count = largest_count_of(emitter.writer, self.made_by, instruction, emitter.free)
        return count if count is not None and self._is_vector(count.load) else None

    def _count_largest(self, number: int, count: LargestCount) -> None:
        x = f"x{self.emitter.loads[tuple(count.load.arguments)]}"
        arguments = f"{x}, s{count.largest[1]}"
        kind = f"template put_{{}}<{str(self._sets_apart(count)).lower()}>"
        self.declared.append(f"RowCount<W> s{number};")
        self.chunk.append(f"s{number}.{kind.format('chunk')}(part, {arguments});")
        self.vector.append(f"s{number}.{kind.format('vector')}(part, q, {arguments});")

    def _sets_apart(self, count: LargestCount) -> bool:
        """True if only log Σ eˣ terms read the elements after the count: the largest may go."""

        def readers(value: Any) -> list[Instruction]:
            instructions = self.emitter.tiles[self.section].instructions
            return [each for each in instructions if value in each.reads]

        others = [each for each in readers(count.load.to) if not count.is_taken_by(each)]
        while len(others) == 1 and others[0].operation in ("lt", "where"):
            others = readers(others[0].to)
        later = self.emitter.tiles[self.section + 1 :]
        stream = self.emitter.stream(*count.load.arguments)
        is_last = all(stream not in self.emitter.streams_of(tile) for tile in later)
        return is_last and [each.operation for each in others] == ["sum"]

    def _largest(self, instruction: Instruction) -> None:
        number, value = instruction.to[1], self.emitter.as_stored(instruction.reads[0])
        is_place = instruction.operation == "argmax"
        source = self.made_by.get(instruction.reads[0])  # None for constants and per-row values
        if is_place:
            self.declared.append(f"RowPlaceOfLargest<W> s{number};")
            self.body.append(f"s{number}.put(part.is_in(q, e), w.col(q) + e, {value});")
        elif source is not None and self._is_vector(source):
            element = self.emitter.element(source.arguments[0])[0]
            stream = self.emitter.loads[tuple(source.arguments)]
            self.declared.append(f"RowLargest<W, {element}> s{number};")
            self.stored.append(f"s{number}.put_vector(part, q, x{stream});")
        else:
            self.declared.append(f"RowLargest<W, Real> s{number};")
            self.body.append(f"s{number}.put(part.is_in(q, e), {value});")
        self.shared.append(f"s{number}.share(w, {self.cells});")
        self.behind.append(f"s{number}.end(w, {self.cells});")
        found = f"s{number}.{'place' if is_place else 'number'}()"
        self._found(instruction, found)
        self.cells += 2 if is_place else 1

    def _found(self, instruction: Instruction, text: str) -> None:
        where = self.at_end if self._is_late(instruction) else self.behind
        where.append(self.emitter.defined(instruction.to, text))

    def _is_late(self, instruction: Instruction) -> bool:
        is_last = self.section == len(self.emitter.tiles) - 1
        return is_last and self.order.place(instruction.to) is Place.END

    def _end_all_sums(self) -> None:
        late = [each for each in self.sums if self._is_late(each[0])]
        self._end_sums(self.at_end, late)
        self._end_sums(self.behind, [each for each in self.sums if each not in late])

    def _end_sums(self, where: list[str], sums: list[tuple[Instruction, int]]) -> None:
        """Ends sums together, so that the warps of a row communicate once."""
        if not sums:
            return
        cells = ", ".join(str(cell) for _, cell in sums)
        roots = ", ".join(f"s{instruction.to[1]}.root()" for instruction, _ in sums)
        found = f"sums{sums[0][0].to[1]}"
        where += [f"Real {found}[] = {{{roots}}};", f"RowSums<{cells}>::end(w, {found});"]
        for place, (instruction, _) in enumerate(sums):
            where.append(self.emitter.defined(instruction.to, f"{found}[{place}]"))

    def _is_vector(self, instruction: Instruction) -> bool:
        """True for elements loaded from an array whose columns are adjacent."""
        if instruction.operation != "load" or self.emitter.block_of(instruction.arguments[0]):
            return False
        return self.emitter.each(instruction.arguments[0]) == 1
