"""Ops with kernels for whole rows, whose calls on parts of the columns are those of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.ops.definition import Call, Operands, OpWithNamedResults, P
from bridge.ops.program import PROGRAM
from bridge.ops.program_params import ProgramParams


class OpInParts(OpWithNamedResults[P]):
    """An op that says which program has the bits of its kernel."""

    def program(self, present: Sequence[bool], params: P, is_causal: bool) -> ProgramParams:
        """The call on those operands that are present, and on what the causal rule hides if any."""
        raise NotImplementedError

    def reductions(self, params: P, columns: int) -> tuple[tuple[str, ...], ...] | None:
        # No operand that is absent makes them more.
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
