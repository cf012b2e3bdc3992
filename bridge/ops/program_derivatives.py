"""The derivative rules of programs: calls of derivative programs, split to the size of a call.

If forward mode has more operands than a call can take, the operands are split into groups and the
tangents are sums over the groups. Reverse mode uses the same groups. So a framework that transposes
forward mode gets the same bits as one that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bridge.lang import codes
from bridge.lang.dtypes import OF_8_BITS
from bridge.lang.errors import ProgramTooLarge
from bridge.lang.limits import MOST_OPERANDS, check_arrays
from bridge.ops.definition import Call, Op, Operands, Places, Role, Spec, ZerosLike, passed_on
from bridge.ops.program_params import ROLES, ProgramParams, joined, split


def jvp(
    op: Op[ProgramParams],
    operands: Operands,
    results: Operands,
    tangents: Operands,
    specs: Sequence[Spec | None],
    params: ProgramParams,
) -> list[Call[ProgramParams]]:
    rule = _Rule(op, operands, results, params)
    moved = [
        i
        for i, tangent in enumerate(tangents[: rule.count])
        if tangent is not None and rule.is_smooth(i, specs)
    ]
    plain = _smooth(split(params.dtypes)[: len(codes.parse(rule.code).program.results)])
    if not moved or not any(plain):
        return []
    return [_tangents(rule, part, plain, tangents, specs) for part in rule.forward_parts(moved)]


def _smooth(dtypes: Sequence[str | None]) -> tuple[str | None, ...]:
    """Returns the dtypes of results, with None for those of 8 bits, which have no derivative."""
    return tuple(None if dtype in OF_8_BITS else dtype for dtype in dtypes)


def _tangents(
    rule: _Rule,
    moved: Sequence[int],
    plain: Sequence[str | None],
    tangents: Operands,
    specs: Sequence[Spec | None],
) -> Call[ProgramParams]:
    """Returns the call for the tangents of all results, with the operands `moved`."""
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
    return rule.call(code, tangents, (), joined(plain))


def vjp(
    op: Op[ProgramParams],
    operands: Operands,
    results: Operands,
    cotangents: Operands,
    wanted: Sequence[bool],
    specs: Sequence[Spec | None],
    params: ProgramParams,
) -> list[tuple[Call[Any], Places]]:
    own = codes.parse(params.code)
    # Towards tangents alone residuals are constants, as they are.
    linear = all(
        tag[0] == "tangent" for tag, is_wanted in zip(own.tags, wanted, strict=False) if is_wanted
    )
    rule = _Rule(op, operands, results, params, linear)
    plain = _smooth(split(params.dtypes)[: len(codes.parse(rule.code).program.results)])
    pairs = zip(cotangents, plain, strict=False)
    given = [cotangent is not None and dtype is not None for cotangent, dtype in pairs]
    positions = [
        i
        for i, is_wanted in enumerate(wanted[: rule.count])
        if is_wanted and rule.is_smooth(i, specs)
    ]
    if not any(given) or not positions:
        return []
    # A jvp that is transposed has been split already.
    parts = [positions] if linear else rule.forward_parts(positions)
    return [call for part in parts for call in _cotangents(rule, part, given, cotangents, specs)]


def _cotangents(
    rule: _Rule,
    positions: Sequence[int],
    given: Sequence[bool],
    cotangents: Operands,
    specs: Sequence[Spec | None],
) -> list[tuple[Call[Any], Places]]:
    """Returns calls for the cotangents of the operands at these positions, one call if possible."""
    try:
        return _cotangents_at_once(rule, [*positions], given, cotangents, specs)
    except ProgramTooLarge:
        # Split the operands, or else the results, whose cotangents are added.
        results = [i for i, is_given in enumerate(given) if is_given]
        if len(positions) > 1:
            asked = [(part, given) for part in _in_two(positions)]
        elif len(results) > 1:
            halves = _in_two(results)
            asked = [(positions, [i in half for i in range(len(given))]) for half in halves]
        else:
            raise
    return [
        call for part, some in asked for call in _cotangents(rule, part, some, cotangents, specs)
    ]


def _cotangents_at_once(
    rule: _Rule,
    positions: list[int],
    given: Sequence[bool],
    cotangents: Operands,
    specs: Sequence[Spec | None],
) -> list[tuple[Call[Any], Places]]:
    own, params = rule.own, rule.params

    def reverse() -> tuple[str, tuple[codes.Tag, ...], list[int]]:
        """Returns code, sources and the positions of the operands in the order of its results."""
        asked = rule.in_base(rule.mask(positions))
        code, sources, places = codes.reverse(rule.code, given, asked, rule.has_kept)
        return code, sources, [rule.position(place) for place in places]

    code, sources, positions = reverse()
    calls: list[tuple[Call[Any], Places]] = []
    asked_roles = [own.program.operands[position].role for position in positions]
    passed = codes.passed_on(code, sources, asked_roles)
    zeros = codes.zeros(code)
    asked_before = len(positions)
    for position, tag, is_zero in zip([*positions], passed, zeros, strict=True):
        own_dtype = specs[position].dtype  # type: ignore[union-attr]
        if tag is not None and split(params.dtypes)[tag[1]] == own_dtype:
            calls.append((passed_on(cotangents[tag[1]]), (position,)))
            positions.remove(position)
        elif is_zero and own.of is not None:
            # Drop operands that have no derivative instead of adding zeros: -0.0 + 0.0 is 0.0.
            positions.remove(position)
    if not positions:
        return calls
    if len(positions) < asked_before:
        code, sources, positions = reverse()
    # A cotangent shared by several operands, such as summands, is computed once.
    alike: dict[Any, list[int]] = {}
    for position, first in zip(positions, codes.twins(code), strict=True):
        own_dtype = specs[position].dtype  # type: ignore[union-attr]
        is_table = ROLES[own.program.operands[position].role] is Role.TABLE
        alike.setdefault((first, own_dtype, is_table and position), []).append(position)
    groups = {same[0]: tuple(same) for same in alike.values()}
    if len(groups) < len(positions):
        positions = [*groups]
        code, sources, positions = reverse()
    tables = [i for i in positions if ROLES[own.program.operands[i].role] is Role.TABLE]
    dtypes = joined(
        [params.arithmetic if i in tables else specs[i].dtype for i in positions]  # type: ignore[union-attr]
    )
    places = tuple([groups[position] for position in positions])
    calls.append((rule.call(code, (), cotangents, dtypes, sources), places))
    return calls


def _in_two(positions: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    half = (len(positions) + 1) // 2
    return positions[:half], positions[half:]


class _Rule:
    """The operands and residuals of a call, as derivative rules look them up.

    A derivative that reads residuals is differentiated in the form that computes them again: they
    are functions of its other operands.
    """

    def __init__(
        self,
        op: Op[ProgramParams],
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
        held = codes.kept_results(coded, split(params.dtypes)[:plain], params.arithmetic)
        self.saved = tuple(
            saved if result is None else results[result]
            for saved, result in zip(results[plain:], held, strict=False)
        )
        # A call that is transposed has no residuals: it has not been run.
        self.has_kept = bool(self.saved) and None not in self.saved and not coded.kept

    def is_smooth(self, position: int, specs: Sequence[Spec | None]) -> bool:
        """True if an operand has a derivative; stages run below all derivatives and have none."""
        spec = specs[position]
        if self.own.columns or (spec is not None and spec.dtype in OF_8_BITS):
            return False
        role = ROLES[self.own.program.operands[position].role]
        return not role.is_discrete and self.own.tags[position][0] != "kept"

    def mask(self, positions: Sequence[int]) -> list[bool]:
        return [i in positions for i in range(self.count)]

    def jvp(self, moved: Sequence[int]) -> str:
        """Serializes the tangents for the operands at these positions."""
        return codes.jvp(self.code, self.in_base(self.mask(moved)), self.has_kept)

    def forward_parts(self, moved: Sequence[int]) -> list[Sequence[int]]:
        """Splits operands into groups; forward mode for each fits a call, or has one operand."""
        most = len(self.base.program.operands) + len(self.saved) + len(moved)
        if most <= MOST_OPERANDS or len(moved) == 1:
            return [moved]
        if len(codes.parse(self.jvp(moved)).program.operands) <= MOST_OPERANDS:
            return [moved]
        return [part for half in _in_two(moved) for part in self.forward_parts(half)]

    def position(self, base: int) -> int:
        """Returns the position in the call of operand `base` of the differentiated program."""
        return self.own.place(self.base.tags[base])

    def in_base(self, mask: Sequence[bool]) -> list[bool]:
        """Converts a mask over the call's operands to one over the differentiated program's."""
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
        # The op itself may have the most operands possible, so the message names the others.
        operands = "operands, tangents and cotangents among them"
        check_arrays(coded.program.name, coded.program, operands)
        placed: list[Any] = []
        for name, i in coded.tags if sources is None else sources:
            if name == "cotangent":
                placed.append(cotangents[i])
            elif name == "kept":
                placed.append(self.saved[i])
            else:
                position = self.position(i)
                own = (tangents if name == "tangent" else self.operands)[position]
                # Forward mode saves no array for its shape alone, which is rarely needed.
                is_shape = not placed and coded.has_shape_alone and len(tangents) > 0
                placed.append(ZerosLike(position) if own is None or is_shape else own)
        start = self.op.counts_from(self.params)
        if start is not None and len(self.operands) > start and codes.draws(coded.program):
            placed.append(self.operands[start])
        params = replace(self.params, code=code, dtypes=dtypes)
        return Call(self.op, tuple(placed), params)
