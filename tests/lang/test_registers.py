"""Registers of long programs: the work of their allocation."""

from __future__ import annotations

import sys
from typing import Any

import bridge
from bridge import lang as bl
from bridge.lang import registers
from bridge.lang.bytecode import words_of
from bridge.lang.derivatives.modes import vjp
from tests.lang.test_derivatives import program_of


def lines_of_registers(operations: int) -> int:
    """Counts the lines of registers.py that run for the bytecode of a second derivative."""

    def long(x: bridge.Full, y: bridge.Full) -> Any:
        for _ in range(operations):
            x = bl.sigmoid(x) * y
        return x

    first = vjp(program_of(long), [True], [True, True])
    second = vjp(first, [True, True], [True] * 3)
    count = 0

    def count_lines(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return count_lines

    def enter(frame: Any, event: str, _: Any) -> Any:
        return count_lines if frame.f_code.co_filename == registers.__file__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        assert words_of(second)
    finally:
        sys.settrace(before)
    return count


def test_registers_of_long_programs_take_no_square_of_their_length() -> None:
    few, many = lines_of_registers(40), lines_of_registers(120)
    assert 0 < many < 4 * few
