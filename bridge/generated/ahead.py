"""The programs that a declared op usually comes to, before any call of it."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.generated.requests import Request
from bridge.lang import codes, roles
from bridge.ops.declared import Traced
from bridge.ops.form import dtypes_of_role


def usual_requests(found: Traced, dtype: str, arch: str = "") -> Iterator[Request]:
    """The op on floating operands of one dtype: forward, as it runs where a gradient follows, and
    reverse and forward mode in all floating operands; for an architecture as in `Request`."""
    arithmetic = "float64" if dtype == "float64" else "float32"
    code = found.texts.get(dtype, found.code)
    coded = codes.parse(code)
    program, keeps = coded.program, coded.keeps
    own = [_dtype_of(operand.role, dtype) for operand in program.operands]
    results = [
        dtype if fills_space or like >= 0 else arithmetic
        for fills_space, like in zip(found.form.fills_space, found.form.like, strict=True)
    ]
    kept = [arithmetic] * len(keeps)
    given = [True] * len(results)
    yield Request(codes.wanted(coded, given), arithmetic, (*own, *results), arch=arch)
    if keeps:
        saving = codes.computed(coded)
        yield Request(saving, arithmetic, (*own, *results, *kept), arch=arch)
    smooth = [operand.dtype == "float" for operand in program.operands]
    if not any(smooth):
        return
    by_tag = {"operand": own, "kept": kept, "tangent": own, "cotangent": results}
    moved = [i for i, is_smooth in enumerate(smooth) if is_smooth]
    reverse = codes.vjp(code, given, smooth, bool(keeps))
    asked_roles = [found.program.operands[i].role for i in moved]
    passed = codes.passed_on(reverse, codes.parse(reverse).tags, asked_roles)
    computed = [i for i, tag in zip(moved, passed, strict=True) if tag is None]
    derived_texts = [(codes.jvp(code, smooth, bool(keeps)), results)]
    if computed:
        wanted = [i in computed for i in range(len(smooth))]
        gives = [_sum_dtype(found, i, dtype) for i in computed]
        derived_texts.insert(0, (codes.vjp(code, given, wanted, bool(keeps)), gives))
    for text, gives in derived_texts:
        derived = codes.parse(text)
        takes = [by_tag[kind][number] for kind, number in derived.tags]
        yield Request(codes.computed(derived), arithmetic, (*takes, *gives), arch=arch)


def _dtype_of(role: type[roles.Annotation], dtype: str) -> str:
    if role is roles.Integer or role.integer:
        return "int64"
    return dtype if dtype in dtypes_of_role(role) else "bool"


def _sum_dtype(found: Traced, operand: int, dtype: str) -> str:
    """Of an operand's cotangent; that of a table is summed by who knows its shape."""
    is_table = found.program.operands[operand].role is roles.Table
    return "float64" if dtype == "float64" else "float32" if is_table else dtype
