"""The programs that a declared op usually comes to, before any call of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from bridge.generated.requests import Request
from bridge.lang import codes, roles
from bridge.lang.errors import ProgramTooLarge
from bridge.ops.declared import Traced
from bridge.ops.definition import Call, Spec, ZerosLike
from bridge.ops.form import dtypes_of_role
from bridge.ops.program import PROGRAM
from bridge.ops.program_params import ProgramParams


def usual_requests(found: Traced, dtype: str, arch: str = "") -> Iterator[Request]:
    """The op on floating operands of one dtype: forward, as it runs where a gradient follows, and
    reverse and forward mode in all floating operands; for an architecture as in `Request`.

    A derivative that is too large is left out, as nobody can call it.
    """
    arithmetic = "float64" if dtype == "float64" else "float32"
    code = found.texts.get(dtype, found.code)
    operands = found.program.operands
    own = tuple(_dtype_of(operand.role, dtype) for operand in operands)
    results = tuple(
        dtype if fills_space or like >= 0 else arithmetic
        for fills_space, like in zip(found.form.fills_space, found.form.like, strict=True)
    )
    params = ProgramParams(code, arithmetic, ",".join(results))
    yield _request(params, own, arch)
    saving = PROGRAM.saving(params)
    if saving != params:
        yield _request(saving, own, arch)
    # What the rules place are dtypes here.
    saved = PROGRAM.result_dtypes(saving)
    specs = [Spec((), each) for each in own]
    smooth = [operand.dtype == "float" for operand in operands]
    tangents = [each if is_smooth else None for each, is_smooth in zip(own, smooth, strict=True)]
    calls: list[Call[Any]] = []
    with contextlib.suppress(ProgramTooLarge):
        calls += [call for call, _ in PROGRAM.vjp(own, saved, results, smooth, specs, params)]
    with contextlib.suppress(ProgramTooLarge):
        calls += PROGRAM.jvp(own, saved, tuple(tangents), specs, params)
    for call in calls:
        if call.params is not None:  # otherwise what is there is passed on
            takes = [own[o.position] if isinstance(o, ZerosLike) else o for o in call.operands]
            yield _request(call.params, takes, arch)


def _request(params: ProgramParams, takes: Sequence[str], arch: str) -> Request:
    dtypes = PROGRAM.result_dtypes(params)
    program = codes.wanted(codes.parse(params.code), [dtype is not None for dtype in dtypes])
    return Request(program, params.arithmetic, (*takes, *filter(None, dtypes)), arch=arch)


def _dtype_of(role: type[roles.Annotation], dtype: str) -> str:
    if role is roles.Integer or role.integer:
        return "int64"
    return dtype if dtype in dtypes_of_role(role) else "bool"
