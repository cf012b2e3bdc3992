"""The tile sections of a program as CUDA C++ (cuda.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge.lang.emission.block_stages import block_stages, has_blocks, last_stage
from bridge.lang.emission.cuda_reductions import Reductions
from bridge.lang.emission.expressions import TYPES, Numbers
from bridge.lang.emission.residents import Residents
from bridge.lang.emission.row_order import RowOrder
from bridge.lang.emission.sections import (
    Tile,
    constant_rows_of,
    makers,
    named_column,
    one_column_of,
)
from bridge.lang.instructions import BLOCK_REDUCTIONS, REDUCTIONS
from bridge.lang.program import COLUMNS
from bridge.lang.registers import Instruction


class SectionText(Reductions):
    """The text of a tile section: its declarations, its code for a chunk, a vector, an element."""

    def __init__(self, emitter: Residents, order: RowOrder, section: int) -> None:
        tile = emitter.tiles[section]
        super().__init__(emitter, order, section)
        self.of_rows: list[tuple[str, str]] = []
        self.loads: list[str] = []
        self.draws = Numbers()
        for stream in emitter.streams_of(tile):
            self._take(stream)
        self.is_aside = False
        keeps = any(i.to in emitter.kept and not i.again for i in tile.instructions)
        one = None if keeps else one_column_of(emitter.writer, tile)
        for group, part in block_stages(tile):
            self._reduce_blocks(group, part)
        if has_blocks(tile):
            tile = last_stage(tile)
        self._write_all(tile if one is None else one.others)
        self.constants, self.has_constants = self._constant_rows(tile)
        self.aside = [] if one is None else self._in_one_column(one.column, tile)
        self._end_all_sums()

    def _apart(self, tile: Tile) -> list[str]:
        """Returns the code of `tile` for an element; the section's own text stays as it was."""
        lists = ("declared", "vector", "body", "stored")
        before = {name: [*getattr(self, name)] for name in lists}
        self.body = []
        self._write_all(tile)
        lines = self.body
        for name, own in before.items():
            setattr(self, name, own)
        return lines

    def _constant_rows(self, tile: Tile) -> tuple[list[str], str]:
        """Emits the code for a chunk of a row that stores constants only, and its condition."""
        emitter = self.emitter
        found = constant_rows_of(emitter.writer, tile, emitter.free)
        if found is None:
            return [], ""
        lines = [
            "const auto store_constants = [&](const auto& part) {",
            *each_vector(
                [line for line in self.vector if line.startswith("Store<")],
                self._apart(found.stores),
                self.stored,
            ),
            "};",
        ]
        return lines, f"{'' if found.holds else '!'}{emitter.name(found.condition)}"

    def _in_one_column(self, column: Any, tile: Tile) -> list[str]:
        """Emits the code that computes an element again in the one column that differs."""
        self.is_aside = True
        lines = self._apart(tile)
        self.is_aside = False
        return [
            f"w.aside({self._place_of(column)}, q, [&](int e) {{",
            *(f"  {line}" for line in lines),
            "});",
        ]

    def _place_of(self, column: Any) -> str:
        """Returns the 32-bit variable with the column that a per-row label names."""
        place = f"at{column[1]}"
        self._of_row(place, f"w.place_of({self.emitter.name(column)})")
        return place

    def _take(self, stream: tuple[int, int]) -> None:
        emitter = self.emitter
        is_first = stream not in emitter.loads
        name = f"x{emitter.loads[stream]}"
        if block := emitter.block_of(stream[0]):
            if is_first:
                kind = f"BlockLoad<W, {emitter.element(stream[0])[0]}, {block}>"
                self.declared.append(f"{kind} {name}(w, {stream[0]});")
            self.loads.append(f"{name}.load(part);")
            return
        if is_first:
            element = emitter.element(stream[0])[0]
            how = [str(stream in of).lower() for of in (emitter.kept_loads, emitter.whole)]
            how.append(str(emitter.is_shared(stream[0])).lower())
            each = emitter.each(stream[0])
            if stream in emitter.held:
                how += [str(each), str(emitter.held[stream])]
            else:
                how += _each(each)
            kind = f"Load<W, {', '.join([element, *how])}>"
            if stream in emitter.staged:
                kind = f"StagedOr<W, {emitter.staged.index(stream)}, {kind}>"
            self.declared.append(f"{kind} {name}(w, {stream[0]}, {stream[1]});")
        again = "" if is_first else "_again"
        self.loads.append(f"{name}.load{again}(part);")
        self.vector.append(f"{name}.load_vector{again}(part, q);")

    def _block(self, instruction: Instruction) -> str:
        """Returns the variable of a reduction of blocks: another section may repeat it."""
        return f"b{instruction.to[1]}_{self.section}"

    def _reduce_blocks(self, group: list[Instruction], part: Tile) -> None:
        """Emits the loop that computes the inputs of reductions of blocks, and the reductions."""
        emitter = self.emitter
        before = self.vector, self.body, self.draws
        names = [f"x{emitter.loads[stream]}." for stream in emitter.streams_of(part)]
        self.vector = [line for line in self.vector if line.startswith(tuple(names))]
        self.body, self.draws = [], Numbers()
        self._write_all(part)
        for each in group:
            name = self._block(each)
            kind = "".join(word.capitalize() for word in each.operation.split("_"))
            self.declared.append(f"{kind}<W, {each.extra}, Real> {name};")
            value = emitter.as_stored(each.reads[0])
            self.body.append(f"{name}.put(q, e, {value}, w.col(q) + e);")
        self.chunk += [
            *(line.removeprefix("  ") for line in each_vector(self.vector, self.body, [])),
            *(f"{self._block(each)}.end();" for each in group),
        ]
        self.vector, self.body, self.draws = before

    def _write_all(self, tile: Tile) -> None:
        self.written = tile
        for instruction in tile.instructions:
            self._write(instruction)

    def _write(self, instruction: Instruction) -> None:
        operation = instruction.operation
        if operation == "store":
            self._store(instruction)
        elif operation == "add_columns":
            self._add_columns(instruction)
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
        if block := emitter.block_of(array):
            name = f"y{emitter.stores[array, half]}"
            kind = f"BlockStore<W, {emitter.element(array)[0]}, {block}>"
            self.declared.append(f"{kind} {name}(w, {array});")
            self.body.append(f"{name}.put(e, {emitter.as_stored(instruction.reads[0])});")
            self.stored.append(f"{name}.store(part, q);")
            return
        stream = emitter.stream(array, half)
        name, element = f"y{emitter.stores[stream]}", emitter.element(array)[0]
        kind = ", ".join([element, *_each(emitter.each(array))])
        if f"Store<W, {kind}> {name};" not in self.vector:  # the first of halves that alternate
            to = f"found<W>(w.template place<{kind}>({array}, {stream[1]}))"
            self.declared.append(f"{element}* const {name}_to = {to};")
            self.vector.append(f"Store<W, {kind}> {name};")
            strides = f"w.has_vectors({array}), w.col_stride({array}), w.row_stride({array})"
            self.stored.append(f"{name}.store(part, q, {name}_to, {strides});")
        value = emitter.as_stored(self._before_rounding(instruction.reads[0], array))
        put = "put_chosen" if self.is_aside else "put"
        self.body.append(f"{name}.{put}({_element(emitter.each(array), half)}, {value});")

    def _before_rounding(self, value: Any, array: int) -> Any:
        """Returns the value before a rounding that the store repeats, if it has no other use."""
        maker = makers(self.written).get(value)
        if maker is None or maker.operation != f"round_{self.emitter.dtypes[array]}":
            return value
        is_sole = sum(value in each.reads for each in self.written.instructions) == 1
        return maker.reads[0] if is_sole else value

    def _add_columns(self, instruction: Instruction) -> None:
        number = self.emitter.sums[instruction.arguments[0]]
        self.vector.append(f"Store<W, Real> z{number};")
        self.body.append(f"z{number}.put_term(e, {self.emitter.as_stored(instruction.reads[0])});")
        self.stored.append(f"w.add_columns({number}, z{number}, part, q);")

    def _define(self, instruction: Instruction) -> None:
        """Emits the computation of a value, or takes it from registers where it stayed."""
        emitter, value = self.emitter, instruction.to
        text, name = self._text(instruction), f"k{value[1]}"
        if value in emitter.kept and instruction.again:
            text = f"{name}.kIs ? {self._element_of(f'{name}.take(q, e)')} : ({text})"
        self.body.append(emitter.defined(value, text))
        if value in emitter.kept and not instruction.again:
            holds = "W::kKeepsMore" if value in emitter.kept_more else "true"
            self.declared.append(f"Kept<W, {TYPES[emitter.dtype(value)]}, {holds}> {name};")
            self.body.append(f"{name}.put(q, e, {emitter.name(value)});")

    def _text(self, instruction: Instruction) -> str:
        operation, emitter = instruction.operation, self.emitter
        if operation in ("load", "load_mask"):
            operand, half = instruction.arguments
            stream = emitter.loads[emitter.stream(operand, half)]
            if emitter.block_of(operand):
                return f"x{stream}.real(q)"
            element = _element(emitter.each(operand), half)
            kind = "truth" if operation == "load_mask" else "real"
            return self._element_of(f"x{stream}.{kind}(q, {element})")
        if operation in BLOCK_REDUCTIONS:
            return f"{self._block(instruction)}.take(q)"
        if operation == "column":
            return "w.col(q) + e"
        if operation == "keep":
            return self._drawn(instruction)
        column = named_column(self.emitter.writer, instruction.to)
        if column is not None:
            return f"{self._place_of(column)} - w.col(q) == e"
        if operation.startswith("log_sum_term"):
            x, largest = map(emitter.name, instruction.reads)
            if not emitter.nodes[instruction.reads[1][1]].axes & COLUMNS:
                row, of_16 = f"{operation}_of_{largest}", str(operation.endswith("16")).lower()
                self._of_row(row, f"hidden(math::log_sum_row<{of_16}>({largest}))")
                counts = self.counts.values()
                if any(each.is_taken_by(instruction) and self._sets_apart(each) for each in counts):
                    return f"math::log_sum_term_of_less<{of_16}>({x}, {row})"
                return f"math::log_sum_term<{of_16}>({x}, {largest}, {row})"
        return emitter.expression(instruction)

    def _element_of(self, text: str) -> str:
        """Returns the text for element e of an array in registers, also where e is not constant."""
        return f"w.chosen(e, [&](int e) {{ return {text}; }})" if self.is_aside else text

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

    def _of_row(self, name: str, text: str) -> None:
        """Defines a per-row variable once, for later sections too.

        Within the branches of vectors, a compiler would compute it in each.
        """
        if name not in self.emitter.of_rows:
            self.emitter.of_rows.add(name)
            self.of_rows.append((name, text))

    def lines(self, beside: list[str], beside_first: list[str]) -> list[str]:
        """Returns the text of the section.

        Args:
          beside: code to run while the first elements are being loaded: assignments to variables
            declared before.
          beside_first: the same, for the warp of the first chunk only.
        """
        declared = [f"const auto {name} = {text};" for name, text in self.of_rows]
        if beside:
            declared = [f"decltype({text}) {name}{{}};" for name, text in self.of_rows]
            beside = [*beside, *(f"{name} = {text};" for name, text in self.of_rows)]
        if self.section == 0 and self.cells:
            beside.append("w.join();")
        loads = list(self.loads)
        if beside:
            # A compiler would move it before the loop of chunks and run out of registers.
            beside = ["const auto beside = [&] {", *(f"  {line}" for line in beside), "};"]
            beside.append("if constexpr (!W::kStays) beside();")
            loads.append("if constexpr (W::kStays) beside();")
        loads += within("if (w.chunk() == 0)", beside_first)
        if self.constants and not beside_first:
            # If a row is known to store constants only before its elements are read, skip reading.
            store = f"if ({{}}W::kStays && {self.has_constants}) return store_constants(part);"
            loads = [store.format("!"), *loads, store.format("")]
            declared += self.constants
        meets = ["w.meet();"] if self.cells else []
        return [
            *self.declared,
            *declared,
            *(["w.turn_cells();"] if self.cells else []),
            *beside,
            # Chunks read last are read first again.
            f"w.{'template each_chunk<true>' if self.section % 2 else 'each_chunk'}"
            "([&](const auto& part) {",
            *(f"  {line}" for line in [*loads, *self.chunk]),
            *each_vector(self.vector, self.body, [*self.aside, *self.stored], self.added),
            "}, [&] {",
            *(f"  {line}" for line in [*self.ended, *within("if (w.leaves())", self.left)]),
            "});",
            *self.shared,
            *meets,
            *self.behind,
        ]


def each_vector(
    vector: list[str], element: list[str], behind: list[str], added: Iterable[str] = ()
) -> list[str]:
    """Emits the loop over the vectors of a chunk.

    Args:
      vector: lines at the start of each vector.
      element: lines for each element.
      behind: lines after the elements, in vectors that the row reaches.
      added: lines at the end of each vector.
    """
    return [
        "  w.each_vector([&](int q) {",
        *(f"    {line}" for line in vector),
        "    if (part.reaches(q)) {",
        "      w.each_element([&](int e) {",
        *(f"        {line}" for line in element),
        "      });",
        *(f"      {line}" for line in behind),
        "    }",
        *(f"    {line}" for line in added),
        "  });",
    ]


def within(condition: str, lines: list[str]) -> list[str]:
    """Emits a block of lines under a condition; nothing if there are no lines."""
    return [f"{condition} {{", *(f"  {line}" for line in lines), "}"] if lines else []


def _each(each: int) -> list[str]:
    """Returns the last template argument of a stream, if a column has more than one element."""
    return [str(each)] if each > 1 else []


def _element(each: int, half: int) -> str:
    """Returns the index, in a vector, of the element of column e in a half."""
    return f"2 * e + {half}" if each > 1 else "e"
