"""The tile sections of a program as loops in C++ for the CPU (emission.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.lang.emission.block_stages import block_stages, has_blocks, last_stage
from bridge.lang.emission.cpu_tiles import Registers, TileText
from bridge.lang.emission.sections import (
    LargestCount,
    OneColumn,
    Pick,
    Tile,
    constant_rows_of,
    largest_count_of,
    one_column_of,
    part_of,
    pick_of,
)
from bridge.lang.emission.starts import starts_of
from bridge.lang.instructions import REDUCTIONS, symbol_of
from bridge.lang.registers import Instruction

_OF_BLOCKS = {
    "block_sum": "add_blocks",
    "block_max": "take_largest_of_blocks",
    "block_argmax": "find_largest_of_blocks",
}
# In a section with more operations, the cost to store the terms and read them back is small.
_MOST_FOLDED = 24
_FETCHES = 4  # parts in which the next row is fetched while a chunk is folded


class Section:
    """A tile section as a C++ struct: its loop, and shortcuts for rows of several pieces."""

    def __init__(
        self, emitter: Registers, tile: Tile, is_in_cache: bool, fetches_ahead: bool
    ) -> None:
        self.emitter, self.tile, self.is_in_cache = emitter, tile, is_in_cache
        self.fetches_ahead = fetches_ahead
        self.whole = TileText(emitter, tile)
        self.picks: dict[int, Pick] = {}  # by the number of the reduction
        self.counts: dict[int, LargestCount] = {}  # likewise
        for number, reduction in enumerate(self.whole.reductions):
            made_by = self.whole.made_by
            if has_blocks(tile):
                continue
            if pick := pick_of(emitter.writer, tile, reduction):
                self.picks[number] = pick
            elif count := largest_count_of(emitter.writer, made_by, reduction, emitter.free):
                self.counts[number] = count
        self.folded = [n for n in range(len(self.whole.reductions)) if n not in self.picks]

    def text(self, phase: int) -> list[str]:
        lists = [
            f"using {name} = List<{', '.join(map(str, of))}>;"
            for name, of in self.whole.used.items()
        ]
        reductions = [
            f"{{k{each.operation.capitalize()}, {number}, {self.emitter.register(each.to[1])}, "
            f"{str(number in self.picks).lower()}}}"
            for number, each in enumerate(self.whole.reductions)
        ]
        lines = [
            *lists,
            f"static constexpr int kReduces = {len(reductions)};",
            f"static constexpr Reduces kReductions[] = {{{', '.join(reductions) or '{}'}}};",
            f"static constexpr bool kFolds = {str(self._folds).lower()};",
            f"static constexpr bool kFetchesAhead = {str(self.fetches_ahead).lower()};",
            f"static constexpr bool kPicks = {str(bool(self.picks)).lower()};",
            *self._body(),
            *(self._chunk() if self._folds else []),
            *(self._picks() if self.picks else []),
        ]
        return [f"struct Tile_{phase} {{", *(f"  {line}" for line in lines), "};"]

    def _body(self) -> list[str]:
        text = self.whole
        terms = range(len(text.reductions))
        pointers = [f"Real* const t{number} = at.term[{number}];" for number in terms]
        written = [
            f"{'if (kFlat) ' * (number in self.picks)}t{number}[i] = {term};"
            for number, term in enumerate(text.terms)
        ]
        one = one_column_of(self.emitter.writer, self.tile)
        loop = _loop("count", [*text.loop, *written])
        if has_blocks(self.tile):
            last = TileText(self.emitter, last_stage(self.tile))
            loop = [*self._blocks(), *_loop("count", [*last.loop, *written])]
        elif one is None and (starts := starts_of(self.tile, text.made_by)):
            loop = self._in_two_loops(starts, written)
        return _function(
            "template <bool kFlat>",
            "void body(const Places<P>& at, int64_t count)",
            [
                *text.head(),
                *pointers,
                "if (count % kStep != 0) __builtin_unreachable();",
                *self._constant_rows(),
                *(loop if one is None else self._beside_one_column(one, loop)),
            ],
        )

    def _in_two_loops(
        self, starts: Mapping[tuple[str, Any], Sequence[Any]], written: Sequence[str]
    ) -> list[str]:
        """Emits two loops with short chains: one starts functions, the other finishes them."""
        first = TileText(self.emitter, part_of(self.tile, (), [of for _, of in starts]))
        arrays, lines, started = [], first.loop, {}
        for n, ((operation, of), values) in enumerate(starts.items()):
            arrays.append(f"alignas(64) Real first{n}[kSumChunk], second{n}[kSumChunk];")
            lines += [
                f"const auto start{n} = start<{symbol_of(operation)}>({self.emitter.name(of)});",
                f"first{n}[i] = start{n}.first;",
                f"second{n}[i] = start{n}.second;",
            ]
            started.update(dict.fromkeys(values, n))
        rest = TileText(self.emitter, self.tile, started=started)
        return [*arrays, *_loop("count", lines), *_loop("count", [*rest.loop, *written])]

    def _blocks(self) -> list[str]:
        """Emits loops that compute the inputs of reductions of blocks, and the reductions."""
        lines: list[str] = []
        for group, part in block_stages(self.tile):
            text = TileText(self.emitter, replace(part, written=[]))
            names = [f"block{each.to[1]}" for each in group]
            kinds = ["int64_t" if each.operation == "block_argmax" else "Real" for each in group]
            own, calls = list(text.loop), []
            for each, name, kind in zip(group, names, kinds, strict=True):
                lines.append(f"alignas(64) {kind} {name}[kSumChunk];")
                source, function = name, _OF_BLOCKS[each.operation]
                if kind != "Real":
                    source = f"of_{name}"
                    lines.append(f"alignas(64) Real {source}[kSumChunk];")
                own.append(f"{source}[i] = {self.emitter.as_stored(each.reads[0])};")
                others = ", 0, count" if kind != "Real" else ""
                calls.append(f"{function}<{each.extra}>({source}, {name}, count{others});")
                if kind != "Real":
                    at = "kFlat ? at.columns[i] : at.col + i"
                    places = f"{name}[i] += ({at}) - i;"
                    calls += _loop("count", [places])
            lines += [*_loop("count", own), *calls]
        return lines

    def _constant_rows(self) -> list[str]:
        """Emits stores of constants, without a read of operands, for rows with nothing else."""
        found = constant_rows_of(self.emitter.writer, self.tile, self.emitter.free)
        if found is None:
            return []
        stores = TileText(self.emitter, found.stores)
        condition = f"{self.whole.of_row(found.condition)} {'!=' if found.holds else '=='} 0"
        return [
            f"if (!kFlat && {condition}) {{",
            *(f"  {line}" for line in _loop("count", stores.loop)),
            "  return;",
            "}",
        ]

    def _beside_one_column(self, one: OneColumn, loop: Sequence[str]) -> list[str]:
        """Emits one loop for all columns but one, and the other results for this column.

        The latter are computed first, because the loop may overwrite the operand.
        """
        own = TileText(self.emitter, self.tile, holds=True)
        others = TileText(self.emitter, one.others)
        return [
            "if constexpr (kFlat) {",
            *(f"  {line}" for line in loop),
            "} else {",
            f"  const int64_t own = place_in_piece({own.of_row(one.column)}, at.col, count);",
            *(f"  {element} own{stream}{{}};" for stream, element in own.held.items()),
            "  if (own >= 0) {",
            "    const int64_t i = own;",
            *(f"    {line}" for line in own.loop),
            "  }",
            *(f"  {line}" for line in _loop("count", others.loop)),
            *(f"  if (own >= 0) y{stream}[own] = own{stream};" for stream in own.held),
            "}",
        ]

    # ---- A whole chunk of a row. ----

    @property
    def _folds(self) -> bool:
        """True if reductions take their terms from registers, without arrays of terms in memory."""
        operations = {self.whole.reductions[number].operation for number in self.folded}
        # A sum reads four quarters of a chunk at once, which memory serves at a third of its speed.
        some = ({"max"}, {"sum"}) if self.is_in_cache else ({"max"},)
        is_short = len(self.tile.instructions) <= _MOST_FOLDED
        return operations in some and is_short and not has_blocks(self.tile)

    def _chunk(self) -> list[str]:
        begun, ends = [], []
        for number, count in self.counts.items():
            begun += self._set_apart(number, count)
            ends.append(f"to[{number}].add_count(count{number});")
        in_memory = {n: load for n in self.folded if (load := self._largest_in_memory(n))}
        for number, load in in_memory.items():
            stream = self.emitter.loads[tuple(load.arguments)]
            ends.append(f"to[{number}].take_largest(x{stream}, at.col, kSumChunk);")
        in_loop = [n for n in self.folded if n not in self.counts and n not in in_memory]
        others = [self.whole.reductions[n] for n in (*self.picks, *self.counts, *in_memory)]
        roots = [
            number
            for number, each in enumerate(self.tile.instructions)
            if each.to is None or each.to in self.tile.written or each.operation in REDUCTIONS
            if not any(each is other for other in others)
        ]
        values = [self.whole.reductions[n].reads[0] for n in in_memory]
        values += [value for c in self.counts.values() for value in (c.load.to, c.largest)]
        part = TileText(self.emitter, part_of(self.tile, roots, values), [*self.counts.values()])
        are_sums = self.whole.reductions[self.folded[0]].operation == "sum"
        fetched = ["at.fetch(0, kSumChunk);"] if self.fetches_ahead else []
        return _function(
            "",
            "void chunk(const Places<P>& at, Reduction<Real>* to)",
            [
                "constexpr bool kFlat = false;",
                "constexpr int32_t q = kSumQuarter;",
                *part.head(),
                *begun,
                *(self._folding(part, in_loop, are_sums) if roots else fetched),
                *ends,
            ],
        )

    def _folding(self, part: TileText, numbers: Sequence[int], are_sums: bool) -> list[str]:
        """Emits the loop over a whole chunk, with its reductions."""
        begun, folds, ends = [], [], []
        for place, number in enumerate(numbers):
            if are_sums:
                a, b, c, d = (f"{quarter}.t[{place}]" for quarter in "abcd")
                begun.append(f"Lanes<Real, kSumQuarter> sum{number};")
                folds.append(f"sum{number}.lane[i] = ({a} + {b}) + ({c} + {d});")
                ends.append(f"to[{number}].add_quarters(sum{number});")
            else:
                begun.append(f"auto m{number} = lowest_order<Real>();")
                folds.append(f"m{number} = larger_order(m{number}, a.t[{place}]);")
                ends.append(f"to[{number}].take_order(m{number}, {{at.col, at.col}});")
        places = ["a = terms(i)"]
        if are_sums:
            places += [
                f"{each} = terms(i + {n} * q)" for n, each in zip((1, 2, 3), "bcd", strict=True)
            ]
        return [
            *begun,
            f"struct Terms {{ Real t[{max(len(numbers), 1)}]; }};",
            "const auto terms = [&](int32_t i) __attribute__((always_inline)) {",
            *(f"  {line}" for line in part.loop),
            f"  return Terms{{{{{', '.join(part.terms)}}}}};",
            "};",
            *self._whole_loop(
                "q" if are_sums else "kSumChunk", [f"const Terms {', '.join(places)};", *folds]
            ),
            *ends,
        ]

    def _whole_loop(self, count: str, lines: Sequence[str]) -> list[str]:
        """Emits the loop over a whole chunk, in parts with fetches of the next row between them.

        More requests than a core can have under way would wait for each other.
        """
        if not self.fetches_ahead:
            return _loop(count, lines)
        part, columns = f"{count} / {_FETCHES}", f"kSumChunk / {_FETCHES}"
        return [
            f"for (int32_t j = 0; j < {_FETCHES}; ++j) {{",
            f"  at.fetch(j * ({columns}), (j + 1) * ({columns}));",
            *(f"  {line}" for line in _loop(f"(j + 1) * ({part})", lines, f"j * ({part})")),
            "}",
        ]

    def _largest_in_memory(self, number: int) -> Instruction | None:
        """Returns the load of the elements whose maximum a reduction takes, or None."""
        reduction = self.whole.reductions[number]
        load = self.whole.made_by.get(reduction.reads[0])
        is_one = reduction.operation == "max" and load is not None and load.operation == "load"
        return load if is_one else None

    def _set_apart(self, number: int, count: LargestCount) -> list[str]:
        """Emits a copy of a chunk without the row's largest elements, for chunks with some."""
        element, _, _ = self.emitter.element(count.load.arguments[0])
        x = f"x{self.emitter.loads[tuple(count.load.arguments)]}"
        name, register = f"less{count.load.to[1]}", self.emitter.register(count.largest[1])
        largest = self.whole.of_row(count.largest)
        return [
            f"alignas(64) {element} copy{number}[kSumChunk];",
            f"const {element}* {name} = {x};",
            f"int64_t count{number} = 0;",
            f"if (at.range[{register}].has(at.col)) {{",
            f"  count{number} = set_apart({x}, kSumChunk, {largest}, copy{number});",
            f"  {name} = copy{number};",
            "}",
        ]

    # ---- Sums of one term. ----

    def _picks(self) -> list[str]:
        lines = ["constexpr bool kFlat = false;"]
        for number, pick in self.picks.items():
            part = TileText(self.emitter, part_of(self.tile, (), (pick.value, pick.column)))
            value = self.emitter.as_stored(pick.value)
            lines += [
                "{",
                *(f"  {line}" for line in part.head(value)),
                f"  const int64_t i = place_in_piece({part.of_row(pick.column)}, at.col, width);",
                "  if (i >= 0) {",
                *(f"    {line}" for line in part.loop),
                f"    to[{number}].add_alone(i, {value});",
                "  }",
                "}",
            ]
        arguments = "const Places<P>& at, int64_t width, Reduction<Real>* to"
        return _function("", f"void picks({arguments})", lines)


def _function(template: str, declaration: str, lines: Sequence[str]) -> list[str]:
    head = f"static __attribute__((noinline)) {declaration} {{"
    return [*([template] if template else []), head, *(f"  {line}" for line in lines), "}"]


def _loop(count: str, lines: Sequence[str], begin: str = "0") -> list[str]:
    head = f"for (int32_t i = {begin}; i < static_cast<int32_t>({count}); ++i) {{"
    return ["BRIDGE_INDEPENDENT", head, *(f"  {line}" for line in lines), "}"]
