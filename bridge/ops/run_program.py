"""Declared ops: one op that runs any program of `bridge.lang`, including its derivatives.

A call has its program as text (bridge/lang/codes). Its operands are those of the program. If the
program draws random words and the array is a part of another one, an integer follows: the number of
the first element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bridge.generated import asked_for
from bridge.lang import codes, roles
from bridge.lang.bytecode import words_of
from bridge.lang.limits import MOST_OPERANDS, MOST_RESULTS
from bridge.lang.program import Program, largest_block
from bridge.lang.reference import evaluate
from bridge.ops import program_derivatives
from bridge.ops.column_sums import column_sums_workspace_bytes
from bridge.ops.definition import (
    Call,
    Op,
    Operands,
    Places,
    Role,
    Spec,
    shape_in,
    space_of,
)
from bridge.ops.families import family_of
from bridge.ops.program_params import ROLES, ProgramParams, are_wanted, joined, split
from bridge.ops.splitting import wanted_roles


@functools.lru_cache(maxsize=4096)
def _roles_of(code: str) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
    """Returns the roles of the operands, and of the results including possible residuals."""
    coded = codes.parse(code)
    return (
        tuple(ROLES[operand.role] for operand in coded.program.operands),
        tuple(ROLES[result.role] for result in codes.saving(coded).results),
    )


@functools.lru_cache(maxsize=4096)
def _wanted(code: str, dtypes: str) -> Program:
    """Returns the program with only its wanted results."""
    return codes.wanted(codes.parse(code), are_wanted(dtypes))


class RunProgram(Op[ProgramParams]):
    """The op; the module docstring describes it."""

    name = "program"
    # One operand more than a program has, for the number of the first element.
    operand_names = tuple(f"operand{i}" for i in range(MOST_OPERANDS + 1))
    params_type = ProgramParams
    result_names = None

    def words(self, params: ProgramParams) -> tuple[str, tuple[str, ...]]:
        program = codes.parse(params.code).program
        return program.name, tuple(operand.name for operand in program.operands)

    def code(self, params: ProgramParams, dtypes: Sequence[str | None]) -> bytes:
        return words_of(_wanted(params.code, params.dtypes), self._has_start(params, dtypes))

    def ask_for_machine_code(
        self,
        params: ProgramParams,
        dtypes: Sequence[str | None],
        platform: str,
        function: str = "",
    ) -> None:
        program = _wanted(params.code, params.dtypes)
        # JAX passes a 64-bit integer as two 32-bit words; the call joins them.
        roles = self.operand_roles(len(dtypes), params)
        given = zip(roles, dtypes, strict=True)
        takes = ["int64" if role is Role.INTEGER else dtype for role, dtype in given if dtype]
        present = [*takes, *filter(None, split(params.dtypes))]
        has_start = self._has_start(params, dtypes)
        asked_for(program, params.arithmetic, present, has_start, platform, function)

    def _has_start(self, params: ProgramParams, dtypes: Sequence[str | None]) -> bool:
        return dtypes[-1] is not None and len(dtypes) > len(_roles_of(params.code)[0])

    def operand_roles(self, count: int, params: ProgramParams) -> tuple[Role, ...]:
        own = _roles_of(params.code)[0]
        if count < len(own):
            raise TypeError("program: an operand is missing")
        return (*own, *[Role.INTEGER] * (count - len(own)))

    def operand_count(self, used: int) -> int:
        return used

    def result_roles(self, params: ProgramParams) -> tuple[Role, ...]:
        return _roles_of(params.code)[1][: len(split(params.dtypes))]

    def result_dtypes(self, params: ProgramParams) -> tuple[str | None, ...]:
        return split(params.dtypes)

    def with_dtypes(self, params: ProgramParams, dtypes: Sequence[str | None]) -> ProgramParams:
        return replace(params, dtypes=joined(dtypes))

    def summands(self, params: ProgramParams, dtype: str) -> ProgramParams:
        code = codes.summands(params.code, are_wanted(params.dtypes))
        count = len(codes.parse(code).program.results)
        return replace(params, code=code, dtypes=joined([dtype] * count))

    def saving(self, params: ProgramParams) -> ProgramParams:
        coded = codes.parse(params.code)
        if not coded.keeps:
            return params
        # A call may have dropped some of its residuals since it saved them.
        own = split(params.dtypes)[: len(coded.program.results)]
        held = codes.kept_results(coded, own, params.arithmetic)
        kept = [params.arithmetic if result is None else None for result in held]
        return replace(params, dtypes=joined([*own, *kept]))

    def needs_separate_batches(self, params: ProgramParams) -> bool:
        program = _wanted(params.code, params.dtypes)
        return codes.draws(program) or any(r.role is roles.Row for r in program.results)

    def fixed_ndim(self, params: ProgramParams) -> int:
        halves = any(role.is_double for each in _roles_of(params.code) for role in each)
        return int(halves or self.tells_columns_apart(params))

    def tells_columns_apart(self, params: ProgramParams) -> bool:
        return codes.tells_columns_apart(codes.parse(params.code).program)

    def counts_from(self, params: ProgramParams) -> int | None:
        program = _wanted(params.code, params.dtypes)
        return len(program.operands) if codes.draws(program) else None

    def reductions(self, params: ProgramParams, columns: int) -> tuple[tuple[str, ...], ...] | None:
        coded = codes.parse(params.code)
        if coded.columns or not codes.tells_columns_apart(coded.program):
            return None
        if largest_block(coded.program):
            return None  # a part of the columns may cut a block
        stages = codes.reductions(params.code, are_wanted(params.dtypes))
        kinds = [kind for stage in stages for kind in stage]
        # Columns are exchanged as floating numbers.
        is_too_long = "argmax" in kinds and params.arithmetic == "float32" and columns > 2**24
        most = len(coded.program.operands) + len(kinds) + 2  # operands of the ending
        has_places = most <= MOST_OPERANDS and all(2 * len(s) <= MOST_RESULTS for s in stages)
        return stages if has_places and not is_too_long else None

    def stage(
        self,
        operands: Operands,
        params: ProgramParams,
        number: int,
        known: Sequence[Any],
        first: Callable[[], Any],
        columns: int,
        is_summed: bool,
    ) -> Call[ProgramParams]:
        wanted, dtypes = are_wanted(params.dtypes), [d for d in split(params.dtypes) if d]
        code = codes.stage(params.code, wanted, number, columns, is_summed)
        program = codes.parse(code).program
        own = len(codes.parse(params.code).program.operands)
        placed = [*operands[:own], *known]
        placed += [first() for _ in program.operands[len(placed) :]]
        if number < len(codes.reductions(params.code, wanted)):
            dtypes = [params.arithmetic] * len(program.results)
        return Call(
            self,
            (*placed, *operands[own:]),
            replace(params, code=code, dtypes=joined(dtypes)),
        )

    def is_linear_in(self, position: int, unknown: Sequence[int], params: ProgramParams) -> bool:
        if (found := family_of(params)) is not None:
            family, place = found
            return family.is_linear_in(place, position)
        return codes.is_linear_in(params.code, position, frozenset(unknown))

    def workspace_bytes(self, operands: Sequence[Spec | None], params: ProgramParams) -> int:
        first = operands[0]
        if first is None:
            return 0
        sums = wanted_roles(self, params).count(Role.ROW)
        if not sums:
            return 0
        space = space_of(first.shape, _roles_of(params.code)[0][0])
        is_float64 = params.arithmetic == "float64"
        return column_sums_workspace_bytes(sums, space, params.batch_ndim, is_float64)

    def results(
        self, operands: Sequence[Spec | None], params: ProgramParams
    ) -> tuple[Spec | None, ...]:
        first, own = operands[0], self.operand_roles(len(operands), params)
        if first is None:
            raise TypeError("program: an operand is missing")
        space = space_of(first.shape, own[0])
        for i, (operand, role) in enumerate(zip(operands, own, strict=True)):
            if operand is None or role is Role.INTEGER:
                continue
            if role.broadcasts:
                fits = operand.broadcasts_to(space)
            else:
                fits = operand.has_shape(shape_in(role, space, params.batch_ndim))
            if not fits:
                raise ValueError(
                    f"program: operand {i} has shape {list(operand.shape)}, which does not fit "
                    f"operand 0's {list(first.shape)}"
                )
        return tuple(
            None if dtype is None else Spec(shape_in(role, space, params.batch_ndim), dtype)
            for role, dtype in zip(self.result_roles(params), split(params.dtypes), strict=True)
        )

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: ProgramParams,
    ) -> list[Call[ProgramParams]]:
        if (found := family_of(params)) is not None:
            family, place = found
            return family.jvp(place, operands, results, tangents, params)
        return program_derivatives.jvp(self, operands, results, tangents, specs, params)

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: ProgramParams,
    ) -> list[tuple[Call[Any], Places]]:
        if (found := family_of(params)) is not None:
            family, place = found
            return family.vjp(place, operands, results, cotangents, wanted, specs)
        return program_derivatives.vjp(self, operands, results, cotangents, wanted, specs, params)

    def reference(self, operands: Sequence[Any], params: ProgramParams) -> tuple[Any, ...]:
        """Evaluates the program in float64 NumPy; None for a result that is not wanted."""
        program = _wanted(params.code, params.dtypes)
        found = iter(evaluate(program, operands[: len(program.operands)]))
        return tuple(None if d is None else next(found) for d in split(params.dtypes))


PROGRAM = RunProgram()
