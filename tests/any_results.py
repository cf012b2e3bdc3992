"""An op of which everything depends on its parameters, with all roles, computed by the framework.

The op has a formula for each `code`. It has no kernel: a test puts `computed` in its place.

- "squares": x, and w a row, give w·Σx² a row; where derivatives follow, Σx² is saved;
- "weigh", "dot", "scale": its derivatives, g·Σx² (where that is known), 2·w·Σx·t, and 2·x·a·b;
- "parts": the halves a and b of the first operand, a label a row and a table give a·b + table, its
  sum over rows, Σa where the label is 1, and (b, a) again as halves; "summands" gives what the sum
  over rows is one of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bridge.ops.definition import Call, Op, Operands, Role, Spec, shape_in, space_of

_FULL, _PER_ROW = Role.FULL, Role.PER_ROW
_PARTS = (Role.HALVES, Role.LABEL, Role.TABLE)
_ROLES: dict[str, tuple[tuple[Role, ...], tuple[Role, ...]]] = {
    "squares": ((_FULL, _PER_ROW), (_PER_ROW, _PER_ROW)),
    "weigh": ((_FULL, _PER_ROW, _PER_ROW), (_PER_ROW,)),
    "dot": ((_FULL, _FULL, _PER_ROW), (_PER_ROW,)),
    "scale": ((_FULL, _PER_ROW, _PER_ROW), (_FULL,)),
    "parts": (_PARTS, (_FULL, Role.ROW, _PER_ROW, Role.HALVES)),
    "summands": (_PARTS, (_FULL,)),
}


@dataclass(frozen=True)
class AnyParams:
    """Attributes: code: the formula; dtypes: of the results, with commas, empty if not wanted."""

    code: str
    dtypes: str
    batch_ndim: int = 0
    index_cols: int = 0

    def with_batch(self) -> AnyParams:
        return replace(self, batch_ndim=self.batch_ndim + 1)

    def attributes(self) -> dict[str, int]:
        return {"batch_ndim": self.batch_ndim}


class AnyResults(Op[AnyParams]):
    """The op. See the module's docstring for what it computes."""

    name = "any_results"
    kernel_name = "softmax"  # a native kernel has to exist; it never runs
    operand_names = tuple(f"operand{i}" for i in range(64))
    params_type = AnyParams
    result_names = None

    def operand_roles(self, count: int, params: AnyParams) -> tuple[Role, ...]:
        return _ROLES[params.code][0][:count]

    def operand_count(self, used: int) -> int:
        return used

    def result_roles(self, params: AnyParams) -> tuple[Role, ...]:
        return _ROLES[params.code][1][: len(self.result_dtypes(params))]

    def result_dtypes(self, params: AnyParams) -> tuple[str | None, ...]:
        return tuple([dtype or None for dtype in params.dtypes.split(",")])

    def with_dtypes(self, params: AnyParams, dtypes: Sequence[str | None]) -> AnyParams:
        return replace(params, dtypes=",".join(dtype or "" for dtype in dtypes))

    def summands(self, params: AnyParams, dtype: str) -> AnyParams:
        return replace(params, code="summands", dtypes=dtype)

    def saving(self, params: AnyParams) -> AnyParams:
        if params.code != "squares" or "," in params.dtypes:
            return params
        return replace(params, dtypes=f"{params.dtypes},{params.dtypes}")

    def results(
        self, operands: Sequence[Spec | None], params: AnyParams
    ) -> tuple[Spec | None, ...]:
        first = operands[0]
        assert first is not None
        space = space_of(first.shape, self.operand_roles(1, params)[0])
        dtypes, roles = self.result_dtypes(params), self.result_roles(params)
        return tuple(
            None if dtype is None else Spec(shape_in(role, space, params.batch_ndim), dtype)
            for dtype, role in zip(dtypes, roles, strict=True)
        )

    def needs_separate_batches(self, params: AnyParams) -> bool:
        return params.code == "parts"

    def fixed_ndim(self, params: AnyParams) -> int:
        return 1

    def is_linear_in(self, position: int, params: AnyParams) -> bool:
        return params.code in ("scale", "dot") or position == 1

    def workspace_bytes(self, operands: Sequence[Spec | None], params: AnyParams) -> int:
        return 0

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: AnyParams,
    ) -> list[Call[Any]]:
        plain = replace(params, dtypes=params.dtypes.split(",")[0])
        calls = []
        for position, t in enumerate(tangents):
            if t is None or (params.code == "weigh" and position == 2):
                continue
            if params.code in ("scale", "dot"):
                code, placed = params.code, (*operands[:position], t, *operands[position + 1 :])
            elif position == 0:
                code, placed = "dot", (operands[0], t, operands[1])
            else:
                code = "weigh"
                placed = (operands[0], t, (*operands, *results)[3 if code != params.code else 2])
            calls.append(Call(self, placed, replace(plain, code=code)))
        return calls

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: AnyParams,
    ) -> list[tuple[Call[Any], tuple[int | None, ...]]]:
        g = cotangents[0]
        if g is None:
            return []
        x, *others = operands
        if params.code == "squares":
            answers = [("scale", (x, g, others[0])), ("weigh", (x, g, results[1]))]
        elif params.code == "weigh":
            answers = [("scale", (x, g, others[0])), ("weigh", (x, g, others[1]))]
        elif params.code == "dot":
            t, w = others
            answers = [("scale", (t, w, g)), ("scale", (x, w, g)), ("dot", (x, t, g))]
        else:
            a, b = others
            answers = [("scale", (g, a, b)), ("dot", (x, g, b)), ("dot", (x, g, a))]
        dtype = params.dtypes.split(",")[0]
        return [
            (Call(self, placed, replace(params, code=code, dtypes=dtype)), (position,))
            for position, (code, placed) in enumerate(answers)
            if wanted[position]
        ]


ANY_RESULTS = AnyResults()


def computed(operands: Sequence[Any], params: AnyParams) -> tuple[Any, ...]:
    """All results of a call on arrays of any framework."""
    x, *others = operands
    if params.code == "squares":
        squares = (x * x).sum(-1)
        results: tuple[Any, ...] = (others[0] * squares, squares)
    elif params.code == "weigh":
        results = (others[0] * others[1],)
    elif params.code == "dot":
        results = (2 * others[1] * (x * others[0]).sum(-1),)
    elif params.code == "scale":
        results = (2 * x * (others[0] * others[1])[..., None],)
    else:
        label, table = others
        d = x.shape[-1] // 2
        a, b = x[..., :d], x[..., d:]
        full = a * b + table
        rows = full.reshape(*full.shape[: params.batch_ndim], -1, d).sum(-2)
        swapped = x[..., np.r_[d : 2 * d, :d]]
        results = (full, rows, a.sum(-1) * (label == 1), swapped)
    dtypes = params.dtypes.split(",")
    return tuple(r if dtype else None for r, dtype in zip(results, dtypes, strict=False))
