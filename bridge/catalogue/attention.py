"""Attention: products, a softmax and products, for some rows of queries at a time.

    s = scale·q kᵀ                    dp = g vᵀ
    s = softcap·tanh(s / softcap)     ds = scale·p·(dp − Σ dp·p)
    p = softmax(s)                    dq = ds k,  dk = dsᵀ q
    y = p v                           dv = pᵀ g

The scores, p before its rounding, and ds before its rounding are in float32, or float64 for
float64. The operands of products have the dtype of q.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from bridge.catalogue.attention_chunks import Chunks, Part
from bridge.catalogue.attention_scores import Case, Options, ScoreOps, Scores
from bridge.ops.compositions import Functions, SumOfChunks
from bridge.ops.product import ProductParams, Shape
from bridge.ops.sums import rounded, sum_of

NAME = "attention"


def skipping(dtype: str, transposed_a: bool = False) -> ProductParams:
    """Returns the parameters of a product without the terms of zeros in its left operand.

    So a key that a query does not see is absent from the query's sums, whatever it holds.
    """
    return ProductParams(dtype, transposed_a, skips_zeros=True)


class Attention:
    """The composition, `bridge.ops.compositions.Rules`, in one framework.

    Operands: q `[*batch, heads, queries, d]`; k and v `[*batch, key heads, keys, d]`; the sinks of
    all queries `[*batch, heads, queries]` or None; the mask with as many dimensions as the scores
    `[*batch, heads, queries, keys]`, each equal or 1, or None.
    """

    name, options, floating, hints = NAME, Options, 4, 0
    unread: tuple[int, ...] = ()
    operands: ClassVar = {"q": False, "k": False, "v": False, "sinks": True, "mask": True}

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._ops = ScoreOps(functions)

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        q, _, v, *_ = operands
        return (*q.shape[:-1], v.shape[-1])

    def result_dtype(self, dtype: str) -> str:
        return dtype

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        case = Case.of(operands, options, self._functions.is_unrolled)
        folded = self._folded(operands, case)

        def of_heads(*part: Any) -> tuple[Any]:
            rows: list[Any] = []
            for chunks in case.chunks:
                step = functools.partial(self._values, part, case, chunks)
                rows += self._functions.over_chunks(step, len(case.lead), chunks)[0]
            return (self._joined(rows, -2),)

        (y,) = self._functions.in_parts(of_heads, folded, case.lead, case.steps)
        return self._functions.reshaped(y, self.result_shape(operands, options))

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Options, wanted: Sequence[bool]
    ) -> list[Any]:
        case = Case.of(operands, options, self._functions.is_unrolled)
        rows = (*case.lead, case.group * case.queries, g.shape[-1])
        folded = (*self._folded(operands, case), self._functions.reshaped(g, rows))

        def of_heads(*part: Any) -> tuple[Any, ...]:
            found = self._gradients(part, case, wanted)
            return tuple([d for d in found if d is not None])

        made = iter(self._functions.in_parts(of_heads, folded, case.lead, case.steps))
        return [
            self._functions.reshaped(next(made), tuple(x.shape)) if i else None
            for x, i in zip(operands[:4], wanted, strict=True)
        ]

    def _values(
        self, part: Any, case: Case, chunks: Chunks, start: Any
    ) -> tuple[list[Any], list[Any]]:
        """Returns the results of a chunk's rows."""
        scores = Scores(self._ops, part, chunks, start, case)
        p, v = self._rounded(scores.probabilities, case), part[2]
        v = v[..., chunks.first : chunks.end, :]
        return [self._functions.product(p, v, None, skipping(case.dtype))], []

    def _gradients(self, part: Any, case: Case, wanted: Sequence[bool]) -> list[Any]:
        """Returns the gradients of q, k, v and the sinks of some heads, None for unwanted ones."""
        of_q, of_k, of_v, of_sinks = wanted
        sums = tuple([SumOfChunks(self._added) for _ in range(of_k + of_v)])
        rows = []
        for chunks in case.chunks:
            step = functools.partial(self._step, part, case, wanted, chunks)
            of_rows, of_keys = self._functions.over_chunks(step, len(case.lead), chunks)
            rows.append(of_rows)
            for total, each in zip(sums, of_keys, strict=True):
                total.push((chunks.first, chunks.end, each), chunks.count)
        queries = iter([self._joined(each, len(case.lead)) for each in zip(*rows, strict=True)])
        keys = iter([self._whole(each, case) for each in sums])
        return [
            next(queries) if of_q else None,
            next(keys) if of_k else None,
            next(keys) if of_v else None,
            next(queries) if of_sinks else None,
        ]

    def _step(
        self, part: Any, case: Case, wanted: Sequence[bool], chunks: Chunks, start: Any
    ) -> tuple[list[Any], list[Any]]:
        """Returns the gradients of a chunk's rows, and its terms of those of k and v."""
        q, k, v, *_, g = part
        of_q, of_k, of_v, of_sinks = wanted
        product = self._functions.product
        q, d = (self._functions.rows(x, len(case.lead), start, chunks.rows) for x in (q, g))
        k, v = (x[..., chunks.first : chunks.end, :] for x in (k, v))
        scores = Scores(self._ops, part, chunks, start, case)
        rows, sums = [], []
        if of_q or of_k or of_sinks:
            dp = product(d, v, None, ProductParams(case.wide, False, True))
            ds, dsinks = scores.gradients(dp)
            ds = self._rounded(ds, case)
            if of_q:
                rows.append(product(ds, k, None, skipping(case.dtype)))
            if of_sinks:
                rows.append(dsinks)
            if of_k:
                sums.append(product(ds, q, None, skipping(case.of_sums, True)))
        if of_v:
            p = self._rounded(scores.probabilities, case)
            sums.append(product(p, d, None, skipping(case.of_sums, True)))
        return rows, sums

    def _folded(self, operands: Sequence[Any], case: Case) -> tuple[Any, ...]:
        """Returns the operands with the queries of a key head in one dimension.

        The mask becomes `[*batch, key heads, group, queries, keys]`, each equal or 1.
        """
        q, k, v, sinks, mask = operands
        reshaped, rows = self._functions.reshaped, case.group * case.queries
        q = reshaped(q, (*case.lead, rows, q.shape[-1]))
        if sinks is not None:
            sinks = reshaped(sinks, (*case.lead, rows))
        if mask is not None:
            *batch, heads, queries, keys = mask.shape
            split = (1, 1) if heads == 1 else (case.lead[-1], case.group)
            mask = reshaped(mask, (*batch, *split, queries, keys))
        return q, k, v, sinks, mask

    def _rounded(self, x: Any, case: Case) -> Any:
        """Rounds from the arithmetic dtype to that of q."""
        if case.dtype == case.wide:
            return x
        return self._functions.run(rounded(x, case.wide, case.dtype))

    def _joined(self, arrays: Sequence[Any], dim: int) -> Any:
        return arrays[0] if len(arrays) == 1 else self._functions.concatenated(arrays, dim)

    def _added(self, one: Part, other: Part) -> Part:
        first, end = min(one[0], other[0]), max(one[1], other[1])
        # -0.0 + x is x: keys that a chunk does not read are absent from the sum.
        x, y = (self._padded(each, first, end, -0.0) for each in (one, other))
        wide = "float64" if "float64" in str(x.dtype) else "float32"
        return first, end, self._functions.run(sum_of(x, y, wide, wide))

    def _padded(self, part: Part, first: int, end: int, value: float) -> Any:
        own_first, own_end, x = part
        parts = [
            self._functions.filled(x, (*x.shape[:-2], n, x.shape[-1]), value)
            for n in (own_first - first, end - own_end)
        ]
        wanted = [each for each in (parts[0], x, parts[1]) if each is x or each.shape[-2]]
        return self._joined(wanted, -2)

    def _whole(self, sums: SumOfChunks, case: Case) -> Any:
        """Returns the sum over all chunks, rounded once, with 0 for keys that nothing reads."""
        first, end, total = sums.total()
        if case.of_sums != case.dtype:
            total = self._rounded(total, case)
        return self._padded((first, end, total), 0, case.keys, 0.0)


def default_scale(d: int) -> float:
    """Returns 1/√d, or 1 for queries without features, whose scores are 0."""
    return 1.0 / math.sqrt(d) if d else 1.0
