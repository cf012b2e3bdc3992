"""Limits of the interpreter on the size of a program, as in cpp/program/program.h."""

from __future__ import annotations

from bridge.lang.errors import ProgramTooLarge
from bridge.lang.program import Program

# The limits of cpp/include/bridge/bridge.h, less the arguments that torch's dispatcher (64) needs.
MOST_OPERANDS, MOST_RESULTS = 56, 31
MOST_INSTRUCTIONS = 1 << 16
MOST_REGISTERS = 1 << 12  # of each kind, constants included
MOST_PHASES = 1 << 10


def check_limit(name: str, what: str, count: int, most: int) -> None:
    """Raises ProgramTooLarge if `count` exceeds `most`."""
    if count > most:
        raise ProgramTooLarge(
            f"{name}: the program has {count:,} {what}, expected at most {most:,}"
        )


def check_arrays(name: str, program: Program, operands: str = "operands") -> None:
    """Raises ProgramTooLarge for a program with more operands or results than a call can have."""
    check_limit(name, operands, len(program.operands), MOST_OPERANDS)
    check_limit(name, "results", len(program.results), MOST_RESULTS)
