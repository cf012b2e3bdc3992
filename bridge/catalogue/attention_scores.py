"""The scores of a chunk of attention, their softmax, and the sizes that they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge import lang as bl
from bridge.catalogue.attention_chunks import Chunks, chunk_rows, chunks_of, heads_at_once
from bridge.catalogue.declaration import declared
from bridge.catalogue.sinks import DIGITS, LARGEST, sink_gradients, softmax_with_sink
from bridge.catalogue.softmax_programs import params_of
from bridge.ops.compositions import Functions
from bridge.ops.definition import Call
from bridge.ops.product import ProductParams
from bridge.ops.run_program import PROGRAM


@declared()
def capped(x: bl.Full, *, scale: float = 1.0, softcap: float = 1.0):
    return softcap * bl.tanh(x * (scale / softcap))


@declared()
def capped_gradient(x: bl.Full, g: bl.Full, *, scale: float = 1.0, softcap: float = 1.0):
    t = bl.tanh(x * (scale / softcap))
    # A hidden key has g = 0, and x may be NaN.
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


@dataclass(frozen=True)
class Case:
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
    def of(cls, operands: Sequence[Any], options: Options, is_unrolled: bool) -> Case:
        q, k, *_ = operands
        *lead, keys, _ = k.shape
        heads, queries, _ = q.shape[-3:]
        group = heads // max(lead[-1], 1)
        dtype = str(q.dtype).removeprefix("torch.")
        size, rows = 8 if dtype == "float64" else 4, group * queries
        window = options.window or None
        if all(isinstance(each, int) for each in (*lead, heads, queries, keys)):
            per = options.rows or chunk_rows(rows, keys, size, options.causal)
            chunks = chunks_of(rows, queries, keys, per, options.causal, window, is_unrolled)
            steps = heads_at_once(lead, min(per, rows), keys, size)
        else:  # symbolic: a graph must hold for any number of rows and keys
            causal = options.causal
            chunks = [Chunks(0, rows, 1, 0, keys, causal, window is not None)]
            steps = list(lead)
        return cls(tuple(lead), group, queries, keys, dtype, chunks, steps, options)


class ScoreOps:
    """The functions and declared ops of scores in one framework."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.with_sink = functions.entry(softmax_with_sink)
        self.sink_gradients = functions.entry(sink_gradients)
        self.capped = functions.entry(capped)
        self.capped_gradient = functions.entry(capped_gradient)


class Scores:
    """The scores of a chunk, their softmax and its derivative.

    Attributes:
      raw: q kᵀ.
      x: the operand of the softmax.
      scale: the scale of the softmax.
      probabilities: the softmax.
    """

    def __init__(self, of: ScoreOps, part: Any, chunks: Chunks, start: Any, case: Case) -> None:
        q, k, _, sinks, mask, *_ = part
        self._of, self._case, options = of, case, case.options
        row_dim = len(case.lead)
        q = of.functions.rows(q, row_dim, start, chunks.rows)
        k = k[..., chunks.first : chunks.end, :]
        across = ProductParams(case.wide, False, True)
        self.raw = self.x = of.functions.product(q, k, None, across)
        self.scale = options.scale
        if options.softcap:
            self.x = of.capped.run((self.raw,), None, options.scale, options.softcap)
            self.scale = 1.0
        self._mask, self._last = self._hidden(mask, chunks, start)
        self._sinks, self._digits = None, 0
        if sinks is None:
            operands = [each for each in (self.x, self._mask, self._last) if each is not None]
            present = (self._mask is not None, self._last is not None)
            params = params_of("softmax", self.scale, case.wide, present)
            self.probabilities = of.functions.run(Call(PROGRAM, tuple(operands), params))
        else:
            self._sinks = of.functions.rows(sinks, row_dim, start, chunks.rows)
            wide = str(sinks.dtype).removeprefix("torch.")
            self._digits = DIGITS[wide]
            self.scale = max(-LARGEST[wide], min(self.scale, LARGEST[wide]))
            given = (self.x, self._sinks, self._mask, self._last)
            self.probabilities = of.with_sink.run(given, None, self.scale, self._digits)

    def gradients(self, dp: Any) -> tuple[Any, Any]:
        """Returns the gradients of q kᵀ and of the sinks, from that of the probabilities."""
        of, options, dsinks = self._of, self._case.options, None
        if self._sinks is None:
            operands = [self.probabilities, dp, *([] if self._last is None else [self._last])]
            params = params_of("jacobian", self.scale, self._case.wide, self._last is not None)
            ds = of.functions.run(Call(PROGRAM, tuple(operands), params))
        else:
            given = (self.x, self._sinks, self.probabilities, dp, self._mask, self._last)
            ds, dsinks = of.sink_gradients.run(given, None, self.scale, self._digits)
        if options.softcap:
            numbers = options.scale, options.softcap
            ds = of.capped_gradient.run((self.raw, ds), None, *numbers)
        return ds, dsinks

    def _hidden(self, mask: Any, chunks: Chunks, start: Any) -> tuple[Any, Any]:
        """Returns the mask of the chunk's scores, and the last key that each row sees, or None."""
        case, functions = self._case, self._of.functions
        if mask is not None:
            mask = self._rows_of(mask, chunks.rows, start)
            if mask.shape[-1] != 1:
                mask = mask[..., chunks.first : chunks.end]
        if not (chunks.has_last or chunks.has_first):
            return mask, None
        query = functions.numbers(self.raw, start, chunks.rows) % max(case.queries, 1)
        last = query + (case.keys - case.queries - chunks.first)
        if chunks.has_first:
            keys = functions.numbers(self.raw, 0, chunks.end - chunks.first)
            before = keys <= (last - case.options.window)[:, None]
            mask = before if mask is None else mask | before
        if not chunks.has_last:
            return mask, None
        return mask, functions.expanded(last, tuple(self.raw.shape[:-1]))

    def _rows_of(self, mask: Any, count: int, start: Any) -> Any:
        """Returns the mask of some rows of a key head; a view if they are queries of one head."""
        functions, (*_, group, queries, _) = self._of.functions, mask.shape
        if self._case.group == 1 or group == queries == 1:
            mask = mask[..., 0, :, :]
            return mask if queries == 1 else functions.rows(mask, mask.ndim - 2, start, count)
        rows, own = functions.numbers(self.raw, start, count), max(self._case.queries, 1)
        head = rows // own if group > 1 else rows * 0
        return mask[..., head, rows % own if queries > 1 else rows * 0, :]
