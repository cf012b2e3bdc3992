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
from dataclasses import dataclass
from typing import Any, ClassVar

from bridge import lang as bl
from bridge.catalogue.attention_chunks import (
    Chunks,
    Part,
    SumOfChunks,
    chunk_rows,
    chunks_of,
    heads_at_once,
)
from bridge.catalogue.declaration import declared
from bridge.catalogue.sinks import DIGITS, LARGEST, sink_gradients, softmax_with_sink
from bridge.catalogue.softmax_programs import params_of
from bridge.ops.compositions import Functions
from bridge.ops.definition import Call
from bridge.ops.product import ProductParams, Shape
from bridge.ops.run_program import PROGRAM
from bridge.ops.sums import rounded, sum_of

NAME = "attention"


@declared()
def capped(x: bl.Full, *, scale: float = 1.0, softcap: float = 1.0):
    return softcap * bl.tanh(x * (scale / softcap))


@declared()
def capped_gradient(x: bl.Full, g: bl.Full, *, scale: float = 1.0, softcap: float = 1.0):
    t = bl.tanh(x * (scale / softcap))
    # Where a key is hidden, g is 0 and x may be NaN.
    return bl.where(g == 0.0, 0.0, g * ((1.0 - t * t) * scale))


@dataclass(frozen=True)
class Options:
    """The checked options of attention.

    Attributes:
      softcap, window: 0 for None.
      rows: the number of query rows in a chunk, 256·2ⁿ; 0 chooses it.
    """

    scale: float
    softcap: float
    causal: bool
    window: int
    rows: int = 0


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

    name, options, floating = NAME, Options, 4
    operands: ClassVar = {"q": False, "k": False, "v": False, "sinks": True, "mask": True}

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._with_sink = functions.entry(softmax_with_sink)
        self._sink_gradients = functions.entry(sink_gradients)
        self._capped = functions.entry(capped)
        self._capped_gradient = functions.entry(capped_gradient)

    def result_shape(self, operands: Sequence[Any]) -> Shape:
        q, _, v, *_ = operands
        return (*q.shape[:-1], v.shape[-1])

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        case = _Case.of(operands, options, self._functions.is_unrolled)
        folded = self._folded(operands, case)

        def of_heads(*part: Any) -> tuple[Any]:
            rows: list[Any] = []
            for chunks in case.chunks:
                step = functools.partial(self._values, part, case, chunks)
                rows += self._functions.over_chunks(step, len(case.lead), chunks)[0]
            return (self._joined(rows, -2),)

        (y,) = self._functions.in_parts(of_heads, folded, case.lead, case.steps)
        return self._functions.reshaped(y, self.result_shape(operands))

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Options, wanted: Sequence[bool]
    ) -> list[Any]:
        case = _Case.of(operands, options, self._functions.is_unrolled)
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
        self, part: Any, case: _Case, chunks: Chunks, start: Any
    ) -> tuple[list[Any], list[Any]]:
        """Returns the results of a chunk's rows."""
        scores = _Scores(self, part, chunks, start, case)
        p, v = self._rounded(scores.probabilities, case), part[2]
        v = v[..., chunks.first : chunks.end, :]
        return [self._functions.product(p, v, None, skipping(case.dtype))], []

    def _gradients(self, part: Any, case: _Case, wanted: Sequence[bool]) -> list[Any]:
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
        self, part: Any, case: _Case, wanted: Sequence[bool], chunks: Chunks, start: Any
    ) -> tuple[list[Any], list[Any]]:
        """Returns the gradients of a chunk's rows, and its terms of those of k and v."""
        q, k, v, *_, g = part
        of_q, of_k, of_v, of_sinks = wanted
        product = self._functions.product
        q, d = (self._functions.rows(x, len(case.lead), start, chunks.rows) for x in (q, g))
        k, v = (x[..., chunks.first : chunks.end, :] for x in (k, v))
        scores = _Scores(self, part, chunks, start, case)
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

    def _folded(self, operands: Sequence[Any], case: _Case) -> tuple[Any, ...]:
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

    def _rounded(self, x: Any, case: _Case) -> Any:
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

    def _whole(self, sums: SumOfChunks, case: _Case) -> Any:
        """Returns the sum over all chunks, rounded once, with 0 for keys that nothing reads."""
        first, end, total = sums.total()
        if case.of_sums != case.dtype:
            total = self._rounded(total, case)
        return self._padded((first, end, total), 0, case.keys, 0.0)


@dataclass(frozen=True)
class _Case:
    """Sizes of a call, and its division into parts.

    Attributes:
      lead: `[*batch, key heads]`.
      group: the query heads that share a key head.
      steps: the sizes of `lead` in one part.
    """

    lead: tuple[int, ...]
    group: int
    queries: int
    keys: int
    dtype: str
    chunks: list[Chunks]
    steps: list[int]
    options: Options

    @property
    def wide(self) -> str:
        """The dtype of scores."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def of_sums(self) -> str:
        """The dtype of a chunk's sums; a sum that is the whole is rounded at once."""
        is_whole = len(self.chunks) == self.chunks[0].count == 1
        return self.dtype if is_whole else self.wide

    @classmethod
    def of(cls, operands: Sequence[Any], options: Options, is_unrolled: bool) -> _Case:
        q, k, *_ = operands
        *lead, keys, _ = k.shape
        heads, queries, _ = q.shape[-3:]
        group = heads // max(lead[-1], 1)
        dtype = str(q.dtype).removeprefix("torch.")
        size, rows = 8 if dtype == "float64" else 4, group * queries
        per = options.rows or chunk_rows(rows, keys, size, options.causal)
        window = options.window or None
        chunks = chunks_of(rows, queries, keys, per, options.causal, window, is_unrolled)
        steps = heads_at_once(lead, min(per, rows), keys, size)
        return cls(tuple(lead), group, queries, keys, dtype, chunks, steps, options)


class _Scores:
    """The scores of a chunk, their softmax and its derivative.

    Attributes:
      raw: q kᵀ.
      x: the operand of the softmax.
      scale: the scale of the softmax.
      probabilities: the softmax.
    """

    def __init__(self, of: Attention, part: Any, chunks: Chunks, start: Any, case: _Case) -> None:
        q, k, _, sinks, mask, *_ = part
        self._of, self._case, options = of, case, case.options
        row_dim = len(case.lead)
        q = of._functions.rows(q, row_dim, start, chunks.rows)
        k = k[..., chunks.first : chunks.end, :]
        across = ProductParams(case.wide, False, True)
        self.raw = self.x = of._functions.product(q, k, None, across)
        self.scale = options.scale
        if options.softcap:
            self.x = of._capped.run((self.raw,), None, options.scale, options.softcap)
            self.scale = 1.0
        self._mask, self._last = self._hidden(mask, chunks, start)
        self._sinks, self._digits = None, 0
        if sinks is None:
            operands = [each for each in (self.x, self._mask, self._last) if each is not None]
            present = (self._mask is not None, self._last is not None)
            params = params_of("softmax", self.scale, case.wide, present)
            self.probabilities = of._functions.run(Call(PROGRAM, tuple(operands), params))
        else:
            self._sinks = of._functions.rows(sinks, row_dim, start, chunks.rows)
            wide = str(sinks.dtype).removeprefix("torch.")
            self._digits = DIGITS[wide]
            self.scale = max(-LARGEST[wide], min(self.scale, LARGEST[wide]))
            given = (self.x, self._sinks, self._mask, self._last)
            self.probabilities = of._with_sink.run(given, None, self.scale, self._digits)

    def gradients(self, dp: Any) -> tuple[Any, Any]:
        """Returns the gradients of q kᵀ and of the sinks, from that of the probabilities."""
        of, options, dsinks = self._of, self._case.options, None
        if self._sinks is None:
            operands = [self.probabilities, dp, *([] if self._last is None else [self._last])]
            params = params_of("jacobian", self.scale, self._case.wide, self._last is not None)
            ds = of._functions.run(Call(PROGRAM, tuple(operands), params))
        else:
            given = (self.x, self._sinks, self.probabilities, dp, self._mask, self._last)
            ds, dsinks = of._sink_gradients.run(given, None, self.scale, self._digits)
        if options.softcap:
            numbers = options.scale, options.softcap
            ds = of._capped_gradient.run((self.raw, ds), None, *numbers)
        return ds, dsinks

    def _hidden(self, mask: Any, chunks: Chunks, start: Any) -> tuple[Any, Any]:
        """Returns the mask of the chunk's scores, and the last key that each row sees, or None."""
        case, functions = self._case, self._of._functions
        rows = functions.numbers(self.raw, start, chunks.rows)
        if mask is not None:
            mask = self._rows_of(mask, rows, start)
            if mask.shape[-1] != 1:
                mask = mask[..., chunks.first : chunks.end]
        if not (chunks.has_last or chunks.has_first):
            return mask, None
        last = rows % max(case.queries, 1) + (case.keys - case.queries - chunks.first)
        if chunks.has_first:
            keys = functions.numbers(self.raw, 0, chunks.end - chunks.first)
            before = keys <= (last - case.options.window)[:, None]
            mask = before if mask is None else mask | before
        if not chunks.has_last:
            return mask, None
        return mask, functions.expanded(last, tuple(self.raw.shape[:-1]))

    def _rows_of(self, mask: Any, rows: Any, start: Any) -> Any:
        """Returns the mask of some rows of a key head; a view if they are queries of one head."""
        *_, group, queries, _ = mask.shape
        if self._case.group == 1 or group == queries == 1:
            mask, count = mask[..., 0, :, :], rows.shape[0]
            return mask if queries == 1 else self._of._functions.rows(mask, -2, start, count)
        head = rows // self._case.queries if group > 1 else rows * 0
        return mask[..., head, rows % self._case.queries if queries > 1 else rows * 0, :]


def default_scale(d: int) -> float:
    """Returns 1/√d, or 1 for queries without features, whose scores are 0."""
    return 1.0 / math.sqrt(d) if d else 1.0
