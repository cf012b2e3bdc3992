"""Bytecode: a program as 32-bit words for the interpreter. cpp/program/program.h describes it.

A program is cut into phases at its row reductions. The tile section of a phase computes the values
needed at every place of a row, one piece of the row after another; the row section before it
computes per-row values. In a row longer than a piece, a later phase computes again values of an
earlier phase. The instructions for that are marked `again`, and are skipped where a row is a single
piece. Results are stored in the last phase, so they may share memory with operands.
"""

from __future__ import annotations

import array
import functools
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bridge.lang import roles
from bridge.lang.instructions import BLOCK_REDUCTIONS, INTEGER, NUMBERS, REDUCTIONS
from bridge.lang.limits import (
    MOST_INSTRUCTIONS,
    MOST_PHASES,
    MOST_REGISTERS,
    check_arrays,
    check_limit,
)
from bridge.lang.operations import VERSION, scalar_of
from bridge.lang.program import COLUMNS, Node, Program, constant_of, is_parameter
from bridge.lang.registers import Instruction, allocated
from bridge.lang.stages import written_out

HEADER_WORDS = 11  # of a program, before its floating constants of two words each

_AGAIN = 1 << 16
_LOADS = {"per_row": "load_row", "label": "load_label", "integer": "load_label"}
# Operations whose arguments are arrays; the others read registers.
_ON_ARRAYS = frozenset({"load_row", "load_label", "load", "load_mask"})


@functools.lru_cache(maxsize=4096)
def words_of(program: Program, has_start: bool = False) -> bytes:
    """Returns the bytecode of a program.

    Args:
      program: any.
      has_start: True if one more operand, an Integer, is the number of the first element, for
        random words.
    """
    return Writer(program, has_start).words()


class _Lowered:
    """The operations of a program translated to operations of the interpreter, each once."""

    def __init__(self, program: Program, has_start: bool) -> None:
        program = written_out(program)
        self.nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        start: tuple[int, ...] = ()
        if has_start:
            start = (self._add("load_label", (), (len(program.operands), 0), 0, "int"),)
        values: list[int] = []
        for node in program.nodes:
            inputs = tuple(values[i] for i in node.inputs)
            values.append(self._lower(program, node, inputs, start))
        self.results = [tuple(values[i] for i in result.nodes) for result in program.results]

    def _add(
        self, operation: str, inputs: tuple[int, ...], static: Any, axes: int, dtype: str = "float"
    ) -> int:
        node = Node(operation, inputs, static, axes, dtype)
        number = self._numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def _lower(
        self, program: Program, node: Node, inputs: tuple[int, ...], start: tuple[int, ...]
    ) -> int:
        operation = node.operation
        if operation == "operand":
            role = roles.NAMES[program.operands[node.static[0]].role]
            load = _LOADS.get(role, "load_mask" if role == "mask" else "load")
            return self._add(load, (), node.static, node.axes, node.dtype)
        if operation == "keep":
            threshold = self._add("constant", (), float(node.static).hex(), 0)
            inputs = (threshold, *inputs, *start)
        elif operation == "columns" and node.dtype == "int":
            operation = "integer_columns"
        elif operation in INTEGER and self.nodes[inputs[-1]].dtype == "int":
            operation = f"integer_{operation}"
        elif scalar := scalar_of(operation, node.static):
            operation = scalar.name
        if operation.startswith("round_") and self.nodes[inputs[0]].operation == operation:
            return inputs[0]
        is_kept = operation == "constant" or operation in BLOCK_REDUCTIONS
        static = node.static if is_kept else None
        return self._add(operation, inputs, static, node.axes, node.dtype)


@dataclass
class _Section:
    instructions: list[Instruction] = field(default_factory=list)


class Writer:
    """Cuts the operations into sections, assigns registers to values, and writes the bytecode.

    A value is named by ("tile", node) or ("row", node). A per-row value may have both names: an
    instruction spreads it to all places of the row.
    """

    def __init__(self, program: Program, has_start: bool) -> None:
        """Raises ProgramTooLarge for a program beyond the limits of the interpreter."""
        check_arrays(program.name, program)
        self.program = program
        self.has_start = has_start
        self.lowered = _Lowered(program, has_start)
        self.nodes = self.lowered.nodes
        self.phases = self._phases()
        self.results = [
            (number, roles.NAMES[result.role], nodes)
            for number, (result, nodes) in enumerate(
                zip(program.results, self.lowered.results, strict=True)
            )
        ]
        reductions = [n for n, node in enumerate(self.nodes) if node.operation in REDUCTIONS]
        self.reductions = {node: number for number, node in enumerate(self._needed(reductions))}
        # A stored value may be a reduction itself, known only after its phase.
        stored = [
            self.phases[node] + (self.nodes[node].operation in REDUCTIONS)
            for _, role, nodes in self.results
            if role != "per_row"
            for node in nodes
        ]
        last = max([self.phases[node] for node in self.reductions] + stored, default=-1)
        self.count = last + 1
        check_limit(program.name, "row reductions", len(self.reductions), MOST_REGISTERS)
        check_limit(program.name, "phases between row reductions", self.count, MOST_PHASES)
        self.rows = [_Section() for _ in range(self.count + 1)]
        self.tiles = [_Section() for _ in range(self.count)]
        self.constants = self._constants("float", "bool")
        self.integers = self._constants("int")
        self._emit()
        first = {
            "tile": len(self.constants),
            "row": len(self.constants),
            "tile integer": len(self.integers),
            "row integer": len(self.integers),
        }
        self.registers, self.sizes = allocated(self.sections(), self._pool, first)
        check_limit(program.name, "registers", max(self.sizes.values()), MOST_REGISTERS)

    def _phases(self) -> list[int]:
        phases: list[int] = []
        for node in self.nodes:
            after = (phases[i] + (self.nodes[i].operation in REDUCTIONS) for i in node.inputs)
            phases.append(max(after, default=0))
        return phases

    def _needed(self, candidates: Iterable[int]) -> list[int]:
        used = {node for _, _, nodes in self.results for node in nodes}
        for number in range(len(self.nodes) - 1, -1, -1):
            if number in used:
                used.update(self.nodes[number].inputs)
        return [number for number in candidates if number in used]

    def _constants(self, *dtypes: str) -> dict[int, int]:
        found = [
            number
            for number, node in enumerate(self.nodes)
            if node.operation == "constant" and node.dtype in dtypes
        ]
        # Parameters come first, for kernels written by hand.
        needed = sorted(self._needed(found), key=lambda n: not is_parameter(self.nodes[n]))
        return {number: register for register, number in enumerate(needed)}

    # ---- Instructions ----

    def _is_wide(self, number: int) -> bool:
        return bool(self.nodes[number].axes & COLUMNS)

    def _emit(self) -> None:
        self._emitted: set[Any] = set()  # values computed in any section
        for phase in range(self.count):
            present: set[Any] = set()
            for number in self.reductions:
                if self.phases[number] == phase:
                    self._emit_reduction(number, phase, present)
            if phase == self.count - 1:
                self._emit_stores(phase, present)
            # Each phase of a chain of reductions computes the earlier part again: check early,
            # because emitting all of a program that is too large takes long.
            self._check_length()
        for number, role, nodes in self.results:
            if role == "per_row":
                self._emit_row(nodes[0], self.count)
                store = Instruction("store_row", reads=[("row", nodes[0])], arguments=[number])
                self.rows[self.count].instructions.append(store)
        self._check_length()

    def _check_length(self) -> None:
        count = sum(len(instructions) for _, instructions in self.sections())
        check_limit(self.program.name, "instructions", count, MOST_INSTRUCTIONS)

    def _emit_reduction(self, number: int, phase: int, present: set[Any]) -> None:
        node = self.nodes[number]
        self._emit_tile(node.inputs[0], phase, present)
        instruction = Instruction(
            node.operation,
            ("row", number),
            [("tile", node.inputs[0])],
            extra=self.reductions[number],
        )
        self.tiles[phase].instructions.append(instruction)
        self._emitted.add(("row", number))

    def _emit_stores(self, phase: int, present: set[Any]) -> None:
        stores = []
        for number, role, nodes in self.results:
            if role == "per_row":
                continue
            for half, node in enumerate(nodes):
                self._emit_tile(node, phase, present)
                name = "add_columns" if role == "row" else "store"
                stores.append(Instruction(name, reads=[("tile", node)], arguments=[number, half]))
        self.tiles[phase].instructions += stores

    def _emit_row(self, number: int, phase: int) -> None:
        """Emits instructions that load per-row value `number` into a register for phase `phase`."""
        for each in self._in_order(number, lambda i: ("row", i) in self._emitted):
            node = self.nodes[each]
            if node.operation == "constant":
                continue
            # Emitted as early as possible: an earlier phase may have it already.
            instruction = Instruction(
                node.operation, ("row", each), [("row", i) for i in node.inputs]
            )
            if node.operation in _ON_ARRAYS:
                instruction.arguments = [node.static[0]]
            self.rows[phase].instructions.append(instruction)
            self._emitted.add(("row", each))

    def _emit_tile(self, number: int, phase: int, present: set[Any]) -> None:
        """Emits instructions that compute value `number` at every place in this tile section."""

        def is_there(i: int) -> bool:
            return ("tile", i) in present

        for each in self._in_order(number, is_there, wide=True):
            node = self.nodes[each]
            value = ("tile", each)
            present.add(value)
            if node.operation == "constant":
                continue
            if not self._is_wide(each):
                if value not in self._emitted:
                    self._emit_row(each, phase)
                    spread = "integer_spread" if node.dtype == "int" else "spread"
                    self.rows[phase].instructions.append(
                        Instruction(spread, value, [("row", each)])
                    )
                    self._emitted.add(value)
                continue
            instruction = Instruction(node.operation, value, again=value in self._emitted)
            if node.operation in _ON_ARRAYS:
                instruction.arguments = node.static
            elif node.operation == "keep":
                threshold, *drawn_by = node.inputs
                for i in drawn_by:
                    self._emit_row(i, phase)
                instruction.reads = [("row", i) for i in drawn_by]
                instruction.extra = self.constants[threshold]
            else:
                instruction.reads = [("tile", i) for i in node.inputs]
            if node.operation in BLOCK_REDUCTIONS:
                instruction.extra = node.static
            self.tiles[phase].instructions.append(instruction)
            self._emitted.add(value)

    def _in_order(self, number: int, is_there: Any, wide: bool = False) -> list[int]:
        """Lists a node and the nodes it depends on, inputs first, without nodes already present.

        `wide`: stop at per-row values, which are spread.
        """
        order: list[int] = []
        seen: set[int] = set()
        stack = [(number, False)]
        while stack:
            each, is_done = stack.pop()
            if is_done:
                order.append(each)
                continue
            if each in seen or is_there(each):
                continue
            seen.add(each)
            stack.append((each, True))
            node = self.nodes[each]
            if wide and (not self._is_wide(each) or node.operation == "keep"):
                continue
            stack += [(i, False) for i in reversed(node.inputs)]
        return order

    # ---- Registers ----

    def sections(self) -> list[tuple[bool, list[Instruction]]]:
        """Returns the instructions by section, in order; True for sections run for each piece."""
        sections = []
        for phase in range(self.count):
            sections.append((False, self.rows[phase].instructions))
            sections.append((True, self.tiles[phase].instructions))
        sections.append((False, self.rows[self.count].instructions))
        return sections

    def _pool(self, value: Any) -> str | None:
        where, number = value
        if self._is_constant(value):
            return None
        return f"{where} integer" if self.nodes[number].dtype == "int" else where

    def _is_constant(self, value: Any) -> bool:
        return self.nodes[value[1]].operation == "constant"

    def _register(self, value: Any) -> int:
        if self._is_constant(value):
            number = value[1]
            return self.constants[number] if number in self.constants else self.integers[number]
        return self.registers[value]

    # ---- Words ----

    def words(self) -> bytes:
        program = self.program
        operand_roles = [roles.NAMES[operand.role] for operand in program.operands]
        operand_roles += ["integer"] * self.has_start
        header = [
            VERSION,
            len(operand_roles),
            len(program.results),
            self.sizes["tile"],
            self.sizes["tile integer"],
            self.sizes["row"],
            self.sizes["row integer"],
            len(self.constants),
            len(self.integers),
            len(self.reductions),
            self.count,
        ]
        assert len(header) == HEADER_WORDS
        words = array.array("i", header)
        for number in self.constants:
            words.frombytes(struct.pack("=d", float(constant_of(self.nodes[number]))))
        for number in self.integers:
            words.frombytes(struct.pack("=q", constant_of(self.nodes[number])))
        words.extend(roles.NUMBERS[role] for role in operand_roles)
        words.extend(roles.NUMBERS[role] for _, role, _ in self.results)
        sections = self.sections()
        words.extend(len(instructions) for _, instructions in sections)
        for _, instructions in sections:
            for instruction in instructions:
                words.extend(self._encoded(instruction))
        return words.tobytes()

    def _encoded(self, instruction: Instruction) -> list[int]:
        operation = instruction.operation
        code = NUMBERS[operation] | (_AGAIN if instruction.again else 0)
        to = 0 if instruction.to is None else self._register(instruction.to)
        reads = [self._register(value) for value in instruction.reads]
        arguments = list(instruction.arguments)
        if operation in ("store", "add_columns"):
            arguments = [arguments[0], *reads, arguments[1]]
        elif operation == "keep":
            arguments = [*reads, -1][:3]
        else:
            arguments += reads
        arguments += [0] * (3 - len(arguments))
        return [code, to, *arguments, instruction.extra]
