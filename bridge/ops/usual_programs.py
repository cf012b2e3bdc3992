"""The usual programs of a declared op, known before any call of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from bridge.generated.requests import Request
from bridge.lang import codes, roles
from bridge.lang.errors import ProgramTooLarge
from bridge.ops.definition import Call, Spec, ZerosLike
from bridge.ops.form import dtypes_of_role
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.traced import Traced

# Up to this many floating operands, each may be trained alone, or be the only frozen one.
_FEW = 4
_SHARED = (roles.Row, roles.Table)

Sets = Sequence[Sequence[int]]


def _smooth(found: Traced) -> tuple[int, ...]:
    operands = found.program.operands
    return tuple(i for i, operand in enumerate(operands) if operand.dtype == "float")


def trained_sets(found: Traced) -> list[tuple[int, ...]]:
    """Returns the sets of operands, by position, that training differentiates towards.

    A parameter may be frozen, and an input may be data. All sets of many operands would be too many
    programs.
    """
    smooth = _smooth(found)
    shared = {i for i in smooth if found.program.operands[i].role in _SHARED}
    sets = [
        smooth,
        *(tuple(i for i in smooth if (i in shared) == is_in) for is_in in (False, True)),
    ]
    if len(smooth) <= _FEW:
        sets += [(i,) for i in smooth]
        sets += [tuple(i for i in smooth if i != left) for left in smooth]
    return [each for each in dict.fromkeys(sets) if each]


def usual_requests(found: Traced, dtype: str, arch: str = "") -> Iterator[Request]:
    """Yields `requests_towards` all floating operands at once."""
    return requests_towards([_smooth(found)], found, dtype, arch)


def requests_towards(sets: Sets, found: Traced, dtype: str, arch: str = "") -> Iterator[Request]:
    """Yields the programs of an op on floating operands of one dtype, for an architecture.

    They are: the forward pass; the forward pass that saves residuals; reverse mode towards each of
    these sets of operands; forward mode in the first set. `arch` is as in `Request`. A derivative
    that is too large is left out, because no call can run it.
    """
    arithmetic = "float64" if dtype == "float64" else "float32"
    code = found.texts.get(dtype, found.code)
    operands = found.program.operands
    own = tuple(_dtype_of(operand.role, dtype) for operand in operands)
    results = tuple(
        fixed or (dtype if fills_space or like >= 0 else arithmetic)
        for fills_space, like, fixed in zip(
            found.form.fills_space, found.form.like, found.form.fixed, strict=True
        )
    )
    params = ProgramParams(code, arithmetic, ",".join(results))
    yield request_of(params, own, arch)
    saving = PROGRAM.saving(params)
    if saving != params:
        yield request_of(saving, own, arch)
    # The derivative rules arrange dtypes here, in place of arrays.
    saved = PROGRAM.result_dtypes(saving)
    specs = [Spec((), each) for each in own]
    calls: list[Call[Any]] = []
    for towards in sets:
        wanted = [i in towards for i in range(len(own))]
        with contextlib.suppress(ProgramTooLarge):
            calls += [call for call, _ in PROGRAM.vjp(own, saved, results, wanted, specs, params)]
    for towards in sets[:1]:
        tangents = tuple([each if i in towards else None for i, each in enumerate(own)])
        with contextlib.suppress(ProgramTooLarge):
            calls += PROGRAM.jvp(own, saved, tangents, specs, params)
    for call in calls:
        if call.params is not None:  # otherwise an operand is passed on
            takes = [own[o.position] if isinstance(o, ZerosLike) else o for o in call.operands]
            yield request_of(call.params, takes, arch)


def request_of(params: ProgramParams, takes: Sequence[str], arch: str = "") -> Request:
    """Returns the program of a call on operands of these dtypes."""
    dtypes = PROGRAM.result_dtypes(params)
    program = codes.wanted(codes.parse(params.code), [dtype is not None for dtype in dtypes])
    return Request(program, params.arithmetic, (*takes, *filter(None, dtypes)), arch=arch)


def _dtype_of(role: type[roles.Annotation], dtype: str) -> str:
    if role is roles.Integer or role.integer:
        return "int64"
    return dtype if dtype in (dtypes := dtypes_of_role(role)) else dtypes[0]
