"""Per-row values of a program as CUDA C++ (cuda.py)."""

from __future__ import annotations

from typing import Any

from bridge.lang.emission.expressions import TYPES
from bridge.lang.emission.residents import Residents
from bridge.lang.emission.row_order import Place, RowOrder
from bridge.lang.emission.sections import Pick, part_of
from bridge.lang.registers import Instruction


class RowTexts:
    """The lines for a program's per-row values, grouped by their place in the kernel.

    Attributes:
      order: the places.
      declared: variables that later lines assign.
      of_section: lines before each section of elements.
      beside: assignments in all warps of a row while its first elements are being loaded.
      beside_first: the same, in the warp of its first chunk only.
      end: lines in that warp after all sections.
    """

    def __init__(self, emitter: Residents) -> None:
        self.emitter, self.order = emitter, RowOrder(emitter)
        self.declared: list[str] = []
        self.of_section: list[list[str]] = []
        self.beside: list[str] = []
        self.beside_first: list[str] = []
        self.end: list[str] = []
        for section in range(emitter.writer.count + 1):
            self.of_section.append([])
            for instruction in emitter.writer.rows[section].instructions:
                if not instruction.operation.endswith("spread"):
                    self._write(instruction)
            if section < emitter.writer.count:
                for value, pick in emitter.picks[section].items():
                    self._pick(section, value, pick)
        self.beside.sort(key=_is_computed)
        self.beside_first.sort(key=_is_computed)

    def _lines(self, place: Place) -> list[str]:
        lines = {Place.BEFORE: self.of_section[-1], Place.BESIDE: self.beside, Place.END: self.end}
        return lines.get(place, self.beside_first)

    def _write(self, instruction: Instruction) -> None:
        emitter = self.emitter
        array = instruction.arguments[0] if instruction.arguments else 0
        if instruction.operation == "store_row":
            element, value = emitter.element(emitter.operands + array)[0], instruction.reads[0]
            to = f"w.template store_row<{element}>({emitter.operands + array}, "
            self.end.append(f"{to}{emitter.as_stored(value)});")
            return
        if instruction.operation == "load_row":
            text = f"w.template load_row<{emitter.element(array)[0]}>({array})"
        elif instruction.operation == "load_label":
            text = f"w.load_label({array})"
        else:
            text = emitter.expression(instruction)
        value, place = instruction.to, self.order.place(instruction.to)
        if place in (Place.BEFORE, Place.END):
            self._lines(place).append(emitter.defined(value, text))
        else:
            name = emitter.name(value)
            self.declared.append(f"{TYPES[emitter.dtype(value)]} {name}{{}};")
            self._lines(place).append(f"{name} = {text};")

    def _pick(self, section: int, value: Any, pick: Pick) -> None:
        """Emits a sum of one term: the element is read by itself."""
        emitter, place, lines = self.emitter, self.order.place(value), []
        for instruction in part_of(emitter.all[section], (), (pick.value,)).instructions:
            if instruction.operation in ("load", "load_mask"):
                array, half = instruction.arguments
                text = f"w.template element_at<{emitter.element(array)[0]}>({array}, {half}, col)"
                is_mask = instruction.operation == "load_mask"
                text = f"{text} != 0" if is_mask else f"simt::widen<Real>({text})"
            elif instruction.operation == "column":
                text = "col"
            else:
                text = emitter.expression(instruction)
            lines.append(emitter.defined(instruction.to, text))
        is_declared = place in (Place.BESIDE, Place.BESIDE_FIRST)
        declared = self.declared if is_declared else self._lines(place)
        declared.append(f"Real {emitter.name(value)} = Real(-0.0);")
        self._lines(place).extend(
            [
                f"if (const int64_t col = w.place_of({emitter.name(pick.column)}); col >= 0) {{",
                *(f"  {line}" for line in lines),
                f"  {emitter.name(value)} = {emitter.as_stored(pick.value)};",
                "}",
            ]
        )


def _is_computed(line: str) -> int:
    """Sort key: loads come first, so that all are under way before one is waited for.

    Labels are the last loads, because they branch on their type.
    """
    return 0 if "w.template load_row<" in line else 1 if "w.load_label(" in line else 2
