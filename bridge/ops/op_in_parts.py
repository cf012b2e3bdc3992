"""Ops with kernels for whole rows that run as a program on parts of the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.ops.definition import Call, Operands, OpWithNamedResults, P
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM


class OpInParts(OpWithNamedResults[P]):
    """An op that names the program with the same bits as its kernel."""

    def program(self, present: Sequence[bool], params: P, is_causal: bool) -> ProgramParams:
        """Returns the program for the present operands, plus a causal mask if `is_causal`."""
        raise NotImplementedError

    def reductions(self, params: P, columns: int) -> tuple[tuple[str, ...], ...] | None:
        # Absent operands add no reduction.
        everything = [True] * len(self.operand_names)
        return PROGRAM.reductions(self.program(everything, params, False), columns)

    def stage(
        self,
        operands: Operands,
        params: P,
        number: int,
        known: Sequence[Any],
        first: Callable[[], Any],
        columns: int,
        is_summed: bool,
        hidden: Any | None,
    ) -> Call[ProgramParams]:
        absent = [None] * (len(self.operand_names) - len(operands))
        present = [operand is not None for operand in (*operands, *absent)]
        program = self.program(present, params, hidden is not None)
        given = tuple(operand for operand in (*operands, hidden) if operand is not None)
        return PROGRAM.stage(given, program, number, known, first, columns, is_summed)
