"""Declared ops: one op that runs any program of `bridge.lang`, and whose derivatives it runs too.

A call is told its program as text (bridge/lang/codes.py). Its operands are those of the program.
Behind them comes an integer where random words are drawn and the array is a part of another: the
number from which elements are counted.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.generated import asked_for
from bridge.lang import codes, roles
from bridge.lang.bytecode import words_of
from bridge.lang.errors import ProgramTooLarge
from bridge.lang.limits import MOST_OPERANDS, MOST_RESULTS, check_arrays
from bridge.lang.program import Program
from bridge.lang.reference import evaluate
from bridge.ops.column_sums import column_sums_workspace_bytes
from bridge.ops.definition import (
    Call,
    Op,
    Operands,
    Role,
    Spec,
    ZerosLike,
    passed_on,
    shape_in,
    space_of,
)
from bridge.ops.splitting import wanted_roles

ROLES = {
    roles.Full: Role.FULL,
    roles.Row: Role.ROW,
    roles.PerRow: Role.PER_ROW,
    roles.PerRowOfIntegers: Role.LABEL,
    roles.Table: Role.TABLE,
    roles.Mask: Role.MASK,
    roles.Halves: Role.HALVES,
    roles.Pairs: Role.PAIRS,
    roles.Integer: Role.INTEGER,
}


@dataclass(frozen=True, repr=False)
class ProgramParams:
    """Parameters of a call.

    Attributes:
      code: the program's text.
      arithmetic: "float32" or "float64": of all that is computed.
      dtypes: those of the results, with commas between them; nothing for one that is not wanted.
      batch_ndim: leading dimensions that have row vectors, column sums and integers of their own.
      index_cols: the length of rows of the array in which elements are counted; 0: its own.
    """

    code: str
    arithmetic: str
    dtypes: str
    batch_ndim: int = 0
    index_cols: int = 0

    def __repr__(self) -> str:
        """Short, and another one for other parameters: programs are told apart by a hash."""
        digest = hashlib.sha256(self.code.encode()).hexdigest()[:16]
        name = codes.parse(self.code).program.name
        rest = f"{self.arithmetic}, {self.dtypes}, {self.batch_ndim}, {self.index_cols}"
        return f"ProgramParams({name} {digest}, {rest})"

    def with_batch(self) -> ProgramParams:
        return replace(self, batch_ndim=self.batch_ndim + 1)

    def attributes(self) -> dict[str, int]:
        return {"batch_ndim": self.batch_ndim, "index_cols": self.index_cols}


def _joined(dtypes: Sequence[str | None]) -> str:
    return ",".join(dtype or "" for dtype in dtypes)


def _split(dtypes: str) -> tuple[str | None, ...]:
    return tuple(dtype or None for dtype in dtypes.split(","))


def _is_wanted(dtypes: str) -> tuple[bool, ...]:
    return tuple(dtype is not None for dtype in _split(dtypes))


@functools.lru_cache(maxsize=4096)
def _roles_of(code: str) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
    """Of the operands, and of the results with what may be saved behind them."""
    coded = codes.parse(code)
    return (
        tuple(ROLES[operand.role] for operand in coded.program.operands),
        tuple(ROLES[result.role] for result in codes.saving(coded).results),
    )


@functools.lru_cache(maxsize=4096)
def _wanted(code: str, dtypes: str) -> Program:
    """The program with its wanted results alone."""
    return codes.wanted(codes.parse(code), _is_wanted(dtypes))


class RunProgram(Op[ProgramParams]):
    """The op. See the module's docstring for what it computes."""

    name = "program"
    # One more than a program has, for the number from which elements are counted.
    operand_names = tuple(f"operand{i}" for i in range(MOST_OPERANDS + 1))
    params_type = ProgramParams
    result_names = None

    def words(self, params: ProgramParams) -> tuple[str, tuple[str, ...]]:
        program = codes.parse(params.code).program
        return program.name, tuple(operand.name for operand in program.operands)

    def code(self, params: ProgramParams, dtypes: Sequence[str | None]) -> bytes:
        return words_of(_wanted(params.code, params.dtypes), self._has_start(params, dtypes))

    def ask_for_machine_code(
        self, params: ProgramParams, dtypes: Sequence[str | None], platform: str
    ) -> None:
        program = _wanted(params.code, params.dtypes)
        present = [dtype for dtype in (*dtypes, *_split(params.dtypes)) if dtype is not None]
        has_start = self._has_start(params, dtypes)
        asked_for(program, params.arithmetic, present, has_start, platform)

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
        return _roles_of(params.code)[1][: len(_split(params.dtypes))]

    def result_dtypes(self, params: ProgramParams) -> tuple[str | None, ...]:
        return _split(params.dtypes)

    def with_dtypes(self, params: ProgramParams, dtypes: Sequence[str | None]) -> ProgramParams:
        return replace(params, dtypes=_joined(dtypes))

    def summands(self, params: ProgramParams, dtype: str) -> ProgramParams:
        code = codes.summands(params.code, _is_wanted(params.dtypes))
        count = len(codes.parse(code).program.results)
        return replace(params, code=code, dtypes=_joined([dtype] * count))

    def saving(self, params: ProgramParams) -> ProgramParams:
        kept = codes.parse(params.code).keeps
        plain = len(codes.parse(params.code).program.results)
        if not kept:
            return params
        # Of a call that saved, what was saved may have been dropped since.
        own = _split(params.dtypes)[:plain]
        return replace(params, dtypes=_joined([*own, *[params.arithmetic] * len(kept)]))

    def needs_separate_batches(self, params: ProgramParams) -> bool:
        program = _wanted(params.code, params.dtypes)
        return codes.draws(program) or any(r.role is roles.Row for r in program.results)

    def fixed_ndim(self, params: ProgramParams) -> int:
        program = codes.parse(params.code).program
        halves = any(role.is_double for each in _roles_of(params.code) for role in each)
        return int(halves or codes.tells_columns_apart(program))

    def counts_from(self, params: ProgramParams) -> int | None:
        program = _wanted(params.code, params.dtypes)
        return len(program.operands) if codes.draws(program) else None

    def reductions(self, params: ProgramParams, columns: int) -> tuple[tuple[str, ...], ...] | None:
        coded = codes.parse(params.code)
        if coded.columns or not codes.tells_columns_apart(coded.program):
            return None
        stages = codes.reductions(params.code, _is_wanted(params.dtypes))
        kinds = [kind for stage in stages for kind in stage]
        # Places travel as floating numbers.
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
        hidden: Any | None = None,
    ) -> Call[ProgramParams]:
        wanted, dtypes = _is_wanted(params.dtypes), [d for d in _split(params.dtypes) if d]
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
            replace(params, code=code, dtypes=_joined(dtypes)),
        )

    def is_linear_in(self, position: int, params: ProgramParams) -> bool:
        return codes.is_linear_in(params.code, position)

    def workspace_bytes(self, operands: Sequence[Spec | None], params: ProgramParams) -> int:
        first = operands[0]
        if first is None:
            return 0
        sums = wanted_roles(self, params).count(Role.ROW)
        if not sums:
            return 0
        # What is summed stands in it, and then the sums over parts of the rows.
        space = space_of(first.shape, _roles_of(params.code)[0][0])
        is_float64 = params.arithmetic == "float64"
        summed = sums * math.prod(space) * (8 if is_float64 else 4)
        partial = column_sums_workspace_bytes(space, params.batch_ndim, is_float64)
        return (summed + 15) // 16 * 16 + partial

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
            for role, dtype in zip(self.result_roles(params), _split(params.dtypes), strict=True)
        )

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: ProgramParams,
    ) -> list[Call[ProgramParams]]:
        rule = _Rule(self, operands, results, params)
        moved = [
            i
            for i, tangent in enumerate(tangents[: rule.count])
            if tangent is not None and rule.is_smooth(i)
        ]
        plain = _split(params.dtypes)[: len(codes.parse(rule.code).program.results)]
        if not moved or not any(plain):
            return []
        return [
            self._tangents(rule, part, plain, tangents, specs) for part in rule.forward_parts(moved)
        ]

    def _tangents(
        self,
        rule: _Rule,
        moved: Sequence[int],
        plain: Sequence[str | None],
        tangents: Operands,
        specs: Sequence[Spec | None],
    ) -> Call[ProgramParams]:
        """The tangents of all results from those of the operands at the positions `moved`."""
        code = rule.jvp(moved)
        passed: list[Any] = []
        found = codes.parse(code)
        result_roles = [result.role for result in found.program.results]
        same = codes.passed_on(code, found.tags, result_roles)
        for dtype, tag in zip(plain, same, strict=True):
            position = -1 if tag is None else rule.position(tag[1])
            if dtype is None:
                passed.append(None)
            elif position >= 0 and specs[position].dtype == dtype:  # type: ignore[union-attr]
                passed.append(tangents[position])
        if len(passed) == len(plain):
            return passed_on(*passed)
        return rule.call(code, tangents, (), _joined(plain))

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: ProgramParams,
    ) -> list[tuple[Call[Any], tuple[int | None, ...]]]:
        own = codes.parse(params.code)
        # Towards tangents alone kept values are what they are: constants.
        linear = all(
            tag[0] == "tangent"
            for tag, is_wanted in zip(own.tags, wanted, strict=False)
            if is_wanted
        )
        rule = _Rule(self, operands, results, params, linear)
        given = [c is not None for c in cotangents[: len(codes.parse(rule.code).program.results)]]
        positions = [
            i for i, is_wanted in enumerate(wanted[: rule.count]) if is_wanted and rule.is_smooth(i)
        ]
        if not any(given) or not positions:
            return []
        # The parts are those of forward mode: so a framework whose reverse mode transposes forward
        # mode, in which what is here has been taken apart already, has the same bits.
        parts = [positions] if linear else rule.forward_parts(positions)
        return [
            call
            for part in parts
            for call in self._cotangents(rule, part, given, cotangents, specs)
        ]

    def _cotangents(
        self,
        rule: _Rule,
        positions: Sequence[int],
        given: Sequence[bool],
        cotangents: Operands,
        specs: Sequence[Spec | None],
    ) -> list[tuple[Call[Any], tuple[int | None, ...]]]:
        """The cotangents of the operands at these positions, in one call where that can be."""
        try:
            return self._cotangents_at_once(rule, [*positions], given, cotangents, specs)
        except ProgramTooLarge:
            # Towards fewer operands, or else from fewer results, whose parts are added up.
            results = [i for i, is_given in enumerate(given) if is_given]
            if len(positions) > 1:
                asked = [(part, given) for part in _in_two(positions)]
            elif len(results) > 1:
                halves = _in_two(results)
                asked = [(positions, [i in half for i in range(len(given))]) for half in halves]
            else:
                raise
        return [
            call
            for part, some in asked
            for call in self._cotangents(rule, part, some, cotangents, specs)
        ]

    def _cotangents_at_once(
        self,
        rule: _Rule,
        positions: list[int],
        given: Sequence[bool],
        cotangents: Operands,
        specs: Sequence[Spec | None],
    ) -> list[tuple[Call[Any], tuple[int | None, ...]]]:
        own, params = rule.own, rule.params

        def reverse() -> tuple[str, tuple[codes.Tag, ...]]:
            asked = rule.in_base(rule.mask(positions))
            return codes.reverse(rule.code, given, asked, rule.has_kept)

        code, sources = reverse()
        calls: list[tuple[Call[Any], tuple[int | None, ...]]] = []
        asked_roles = [own.program.operands[position].role for position in positions]
        passed = codes.passed_on(code, sources, asked_roles)
        for position, tag in zip([*positions], passed, strict=True):
            own_dtype = specs[position].dtype  # type: ignore[union-attr]
            if tag is not None and _split(params.dtypes)[tag[1]] == own_dtype:
                calls.append((passed_on(cotangents[tag[1]]), (position,)))
                positions.remove(position)
        if not positions:
            return calls
        if calls:
            code, sources = reverse()
        tables = [i for i in positions if ROLES[own.program.operands[i].role] is Role.TABLE]
        dtypes = _joined(
            [params.arithmetic if i in tables else specs[i].dtype for i in positions]  # type: ignore[union-attr]
        )
        calls.append((rule.call(code, (), cotangents, dtypes, sources), tuple(positions)))
        return calls

    def reference(self, operands: Sequence[Any], params: ProgramParams) -> tuple[Any, ...]:
        """The program in float64 NumPy; None for what is not wanted."""
        program = _wanted(params.code, params.dtypes)
        found = iter(evaluate(program, operands[: len(program.operands)]))
        return tuple(None if d is None else next(found) for d in _split(params.dtypes))


def _in_two(positions: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    half = (len(positions) + 1) // 2
    return positions[:half], positions[half:]


PROGRAM = RunProgram()


class _Rule:
    """What derivative rules look at: the operands and kept values of a call by what they are.

    A derivative that reads kept values is differentiated as what computes them again: they are
    functions of its other operands.
    """

    def __init__(
        self,
        op: RunProgram,
        operands: Operands,
        results: Operands,
        params: ProgramParams,
        linear: bool = False,
    ) -> None:
        self.op, self.params = op, params
        coded = codes.parse(params.code)
        self.count = len(coded.program.operands)
        self.own = coded
        reads_kept = coded.kept and not linear
        self.code = codes.without_kept(params.code) if reads_kept else params.code
        self.base = codes.parse(self.code)
        self.operands = operands
        plain = len(coded.program.results)
        self.saved = results[plain:]
        self.has_kept = bool(self.saved) and not coded.kept

    def is_smooth(self, position: int) -> bool:
        """Whether there is a derivative towards an operand; stages run below all derivatives."""
        if self.own.columns:
            return False
        role = ROLES[self.own.program.operands[position].role]
        return not role.is_discrete and self.own.tags[position][0] != "kept"

    def mask(self, positions: Sequence[int]) -> list[bool]:
        return [i in positions for i in range(self.count)]

    def jvp(self, moved: Sequence[int]) -> str:
        """The text of the tangents from those of the operands at these positions."""
        return codes.jvp(self.code, self.in_base(self.mask(moved)), self.has_kept)

    def forward_parts(self, moved: Sequence[int]) -> list[Sequence[int]]:
        """Operands in parts, towards each of which forward mode has no more operands than a call,
        or towards one alone."""
        most = len(self.base.program.operands) + len(self.saved) + len(moved)
        if most <= MOST_OPERANDS or len(moved) == 1:
            return [moved]
        if len(codes.parse(self.jvp(moved)).program.operands) <= MOST_OPERANDS:
            return [moved]
        return [part for half in _in_two(moved) for part in self.forward_parts(half)]

    def position(self, base: int) -> int:
        """That of an operand of what is differentiated."""
        return self.own.place(self.base.tags[base])

    def in_base(self, mask: Sequence[bool]) -> list[bool]:
        """A choice of operands among those of what is differentiated."""
        if self.base is self.own:
            return list(mask)
        chosen = {tag for tag, is_set in zip(self.own.tags, mask, strict=True) if is_set}
        return [tag in chosen for tag in self.base.tags]

    def call(
        self,
        code: str,
        tangents: Operands,
        cotangents: Operands,
        dtypes: str,
        sources: Sequence[codes.Tag] | None = None,
    ) -> Call[ProgramParams]:
        coded = codes.parse(code)
        check_arrays(coded.program.name, coded.program)
        placed: list[Any] = []
        for name, i in coded.tags if sources is None else sources:
            if name == "cotangent":
                placed.append(cotangents[i])
            elif name == "kept":
                placed.append(self.saved[i])
            else:
                position = self.position(i)
                own = (tangents if name == "tangent" else self.operands)[position]
                # For its shape alone nothing is kept in forward mode, which rarely needs that.
                is_shape = not placed and coded.has_shape_alone and len(tangents) > 0
                placed.append(ZerosLike(position) if own is None or is_shape else own)
        start = self.op.counts_from(self.params)
        if start is not None and len(self.operands) > start and codes.draws(coded.program):
            placed.append(self.operands[start])
        params = replace(self.params, code=code, dtypes=dtypes)
        return Call(self.op, tuple(placed), params)
