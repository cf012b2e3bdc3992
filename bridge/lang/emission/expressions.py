"""The operations of a program as C++ expressions, the same for every processor.

Each calls the C++ function of the interpreter, so that a generated kernel gives the same bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from bridge.lang.bytecode import Writer
from bridge.lang.dtypes import DTYPES
from bridge.lang.instructions import BY_NAME, symbol_of
from bridge.lang.program import constant_of
from bridge.lang.registers import Instruction

TYPES = {"float": "Real", "bool": "bool", "int": "int64_t"}


class Numbers(dict[Any, int]):
    """Numbers of things, in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


class Expressions:
    """C++ expressions for the values of a program; node 3 is the variable `v3`.

    Args:
      writer: of the program.
      arithmetic: "float32" or "float64".
      dtypes: of the operands, then of the results.
      driver: the C++ name of the row driver in the code around.
      free: numbers of constants, in the order of the bytecode, that the kernel reads from the
        bytecode of a call instead of containing them.
    """

    def __init__(
        self,
        writer: Writer,
        arithmetic: str,
        dtypes: Sequence[str],
        driver: str,
        free: Sequence[int] = (),
    ) -> None:
        self.writer, self.nodes, self.driver = writer, writer.nodes, driver
        self.free = {node: number for node, number in writer.constants.items() if number in free}
        self.dtypes = dtypes
        self.operands = len(dtypes) - len(writer.program.results)
        self.real, self.real_bytes = DTYPES[arithmetic][:2]

    @property
    def constant_count(self) -> int:
        """The number of constants to read: up to the last free one."""
        return max(self.free.values(), default=-1) + 1

    def block_of(self, array: int) -> int:
        """Returns the columns of a block of an array with a number for each; 0 for others."""
        program, number = self.writer.program, array - self.operands
        of = program.operands[array] if number < 0 else program.results[number]
        return getattr(of.role, "block", 0)

    def dtype(self, value: Any) -> str:
        return self.nodes[value[1]].dtype

    def is_integer(self, number: int) -> bool:
        return self.nodes[number].dtype == "int"

    def name(self, value: Any) -> str:
        """Returns the text for a value: a variable, or the number of a constant."""
        node = self.nodes[value[1]]
        if value[1] in self.free:
            return f"p{self.free[value[1]]}"
        if node.operation != "constant":
            return f"v{value[1]}"
        number = constant_of(node)
        if node.dtype == "int":
            return f"int64_t({number})" if number > -(2**63) else "INT64_MIN"
        if node.dtype == "bool":
            return "true" if number else "false"
        if math.isfinite(number):
            return f"Real({float(number).hex()})"
        text = '__builtin_nan("")' if math.isnan(number) else "__builtin_inf()"
        return f"{'-' if math.copysign(1, number) < 0 else ''}Real({text})"

    def expression(self, instruction: Instruction) -> str:
        operation = instruction.operation
        read = [self.name(value) for value in instruction.reads]
        if self._is_rounded_there(instruction):
            return read[0]
        if operation == "integer_columns":
            return f"{self.driver}.cols()"
        if operation == "columns":
            return f"static_cast<Real>({self.driver}.cols())"
        if inline := BY_NAME[operation].inline:
            named = dict(zip("abc", read, strict=False))
            return re.sub(r"\b[abc]\b", lambda letter: named[letter[0]], inline)
        return f"compute<{symbol_of(operation)}>({', '.join([*read, 'Real(0)', 'Real(0)'][:3])})"

    def _is_rounded_there(self, instruction: Instruction) -> bool:
        """True if an operand's element is rounded to the operand's own dtype: a no-op."""
        if not instruction.operation.startswith("round_"):
            return False
        source = self.nodes[instruction.reads[0][1]]
        dtype = instruction.operation.removeprefix("round_")
        return source.operation == "load" and self.dtypes[source.static[0]] == dtype

    def defined(self, value: Any, text: str) -> str:
        return f"const {TYPES[self.dtype(value)]} {self.name(value)} = {text};"

    def read(self, value: Any, text: str) -> str:
        """Defines a value read from memory; a boolean is a number there."""
        return self.defined(value, f"{text} != 0" if self.dtype(value) == "bool" else text)

    def free_in(self, lines: Sequence[str], source: str) -> list[str]:
        """Defines the free constants that lines use, each read by the expression `source`."""
        text = "\n".join(lines)
        return [
            f"const Real p{number} = {source.format(number)};"
            for number in self.free.values()
            if re.search(rf"\bp{number}\b", text)
        ]

    def last_dropped(self, instruction: Instruction) -> str:
        """Returns the largest random word for which a `keep` drops an element."""
        (node,) = (n for n, number in self.writer.constants.items() if number == instruction.extra)
        return f"uint32_t({int(constant_of(self.nodes[node])) - 1})"

    def as_stored(self, value: Any) -> str:
        """Returns the text of a value in its form in memory."""
        name = self.name(value)
        return f"truth<Real>({name})" if self.dtype(value) == "bool" else name
