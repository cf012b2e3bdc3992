"""Cross-entropy of a linear layer's logits, of which only a few rows exist at a time.

With bits="portable" the matrix products are bridge's. For each chunk of rows

    logits = hidden weightᵀ + bias        dhidden = dlogits weight
    losses = cross_entropy(logits)        dweight = Σ dlogitsᵀ hidden,  dbias = Σ dlogits

logits and dlogits are rounded to the dtype of hidden. The sums over all rows have the order of one
product and of one column sum. So the bits are those of `cross_entropy(linear(...))`, for any chunk.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from bridge.catalogue.checks import check_each, optional, word
from bridge.catalogue.cross_entropy import CrossEntropy, Options, row_losses
from bridge.catalogue.cross_entropy import Labels as LabelsOfRows
from bridge.ops.arrays import Arrays
from bridge.ops.compositions import LEAF, Functions, RowChunks, SumOfChunks, row_chunks
from bridge.ops.definition import Call, Spec
from bridge.ops.form import check_operands
from bridge.ops.linear_losses import check_dtypes, check_shapes, chunk_rows
from bridge.ops.product import ProductParams, Shape
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.scalars import whole_number
from bridge.ops.sums import rounded, sum_of, sum_of_rows
from bridge.ops.traced import traced

NAME = "linear_cross_entropy"
_CHECKS = {"bits": optional(word(("portable",)))}


class Labels(LabelsOfRows, Protocol):
    """The interface of `labels` in bridge/torch/_ops and bridge/jax/_ops."""

    def as_signed(self, labels: Any, ignore_index: int) -> tuple[Any, int]:
        """Returns labels of the widest signed dtype, and the label that is ignored among them."""


class LinearCrossEntropy:
    """`linear_cross_entropy` in one framework.

    Args:
      compute, portable: compute(operands, chunk, options) returns the loss of checked operands, by
        the framework's products and by bridge's.
    """

    def __init__(
        self,
        arrays: Arrays,
        labels: Labels,
        losses: CrossEntropy,
        compute: Callable[[tuple[Any, ...], int | None, Any], Any],
        portable: Callable[[tuple[Any, ...], int | None, Any], Any],
    ) -> None:
        self._arrays, self._labels, self._losses = arrays, labels, losses
        self._compute, self._portable = compute, portable

    def run(self, operands: tuple[Any, ...], chunk: Any, bits: Any, *options: Any) -> Any:
        """Returns the loss of hidden, weight, labels and bias.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        check_each(_CHECKS, NAME, bits=bits)
        checked = self._losses.options(NAME, *options)
        operands = self.checked(NAME, operands, checked.ignore_index)
        chunk = self._arrays.known(NAME, "chunk", chunk)
        if chunk is not None:
            chunk = whole_number(NAME, "chunk", chunk, 1)
        return (self._portable if bits else self._compute)(operands, chunk, checked)

    def composed(
        self,
        rows: Callable[..., Any],
        operands: tuple[Any, ...],
        chunk: int | None,
        options: Options,
    ) -> Any:
        """Returns the loss by bridge's products.

        Args:
          rows: rows(operands, options) runs the composition `RowLosses`.
        """
        hidden, weight, labels, bias = operands
        shape, count = labels.shape, math.prod(labels.shape)  # there may be 0 features
        labels, ignored = self._labels.as_signed(labels.reshape((count,)), options.ignore_index)
        numbers = RowOptions(ignored, *options.static[1:], chunk or 0)
        hidden = hidden.reshape((count, weight.shape[1]))
        losses = rows((hidden, weight, bias, labels), numbers)
        if options.reduction == "none":
            return losses.reshape(shape)
        found = [losses]
        if options.is_mean:
            found.append(self._arrays.cast(labels != ignored, self._arrays.dtype_of(losses)))
        return self._losses.reduced(options.reduction, *found)

    def checked(
        self, function: str, operands: tuple[Any, ...], ignore_index: int, ranks: int = 1
    ) -> tuple[Any, ...]:
        """Returns hidden, weight, labels and bias as arrays, in autocast's dtype where that is on.

        The weight is one rank's part of `ranks` equal parts.

        Raises:
          TypeError, ValueError: as `linear_cross_entropy`.
        """
        hidden, weight, labels, bias = operands
        rows, given = hidden, labels
        hidden, weight, labels, bias = self._arrays.checked(
            function, 3, ("labels",), hidden=hidden, weight=weight, labels=labels, bias=bias
        )
        hidden, weight, bias = self._arrays.autocast(hidden, weight, bias)
        dtype_of = self._arrays.dtype_of
        floating = {"hidden": hidden, "weight": weight}
        if bias is not None:
            floating["bias"] = bias
        check_shapes(function, labels.shape, **{k: each.shape for k, each in floating.items()})
        dtypes = {name: dtype_of(each) for name, each in floating.items()}
        check_dtypes(function, dtypes, dtype_of(labels))
        self._labels.check_ignored(function, given, ignore_index)
        columns = weight.shape[0] * ranks
        self._labels.check_labels(function, given, rows, columns, ignore_index)
        return hidden, weight, labels, bias


@dataclass(frozen=True)
class RowOptions:
    """The options of the losses of rows.

    Attributes:
      chunk: the rows whose logits exist at a time; 0 chooses them.
    """

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    chunk: int = 0

    @property
    def static(self) -> tuple[int, float, float, float]:
        return self.ignore_index, self.label_smoothing, self.z_loss, self.softcap


class RowLosses:
    """The losses of rows by bridge's products, `bridge.ops.compositions.Rules`, in one framework.

    Operands: hidden `[*batch, rows, features]`, weight `[*batch, V, features]`, bias `[*batch, V]`
    or None, labels `[*batch, rows]`, each of whose batch sizes may be 1.
    """

    name, options, floating, hints = f"{NAME}_rows", RowOptions, 3, 0
    operands: ClassVar = {"hidden": False, "weight": False, "bias": True, "labels": False}

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def result_shape(self, operands: Sequence[Any], options: RowOptions) -> Shape:
        return tuple(operands[0].shape[:-1])

    def result_dtype(self, dtype: str) -> str:
        return _wide(dtype)

    def forward(self, operands: Sequence[Any], options: RowOptions) -> Any:
        case = _Case.of(operands, options, self._functions.is_unrolled)
        operands = self._expanded(operands, case)
        found: list[Any] = []
        for chunks in case.chunks:
            step = functools.partial(self._losses, operands, case, chunks)
            found += self._functions.over_chunks(step, case.dim, chunks)[0]
        return self._joined(found, case)

    def gradients(
        self, g: Any, operands: Sequence[Any], options: RowOptions, wanted: Sequence[bool]
    ) -> list[Any]:
        case = _Case.of(operands, options, self._functions.is_unrolled)
        given = (*self._expanded(operands, case), g)
        of_hidden, *of_sums = wanted
        rows: list[Any] = []
        totals = tuple([SumOfChunks(functools.partial(self._sum, case)) for i in of_sums if i])
        for chunks in case.chunks:
            step = functools.partial(self._gradients, given, case, wanted, chunks)
            own, sums = self._functions.over_chunks(step, case.dim, chunks)
            rows += own
            for total, each in zip(totals, sums, strict=True):
                total.push(each, chunks.count)
        whole = iter([self._rounded(each.total(), case) for each in totals])
        return [
            self._joined(rows, case) if of_hidden else None,
            *[next(whole) if i else None for i in of_sums],
        ]

    def _losses(
        self, given: Sequence[Any], case: _Case, chunks: RowChunks, start: Any
    ) -> tuple[list[Any], list[Any]]:
        """Returns the losses of a chunk's rows."""
        call = Call(PROGRAM, self._logits(given, case, chunks, start)[1], case.params)
        return [self._functions.run(call)], []

    def _gradients(
        self,
        given: Sequence[Any],
        case: _Case,
        wanted: Sequence[bool],
        chunks: RowChunks,
        start: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Returns the gradient of a chunk's rows, and its terms of those of weight and bias."""
        _, weight, *_, g = given
        of_hidden, of_weight, of_bias = wanted
        hidden, operands = self._logits(given, case, chunks, start)
        functions = self._functions
        g = functions.rows(g, case.dim, start, chunks.rows)
        d = functions.run(_cotangent(operands, g, case))
        rows, sums = [], []
        if of_hidden:
            rows.append(functions.product(d, weight, None, ProductParams(case.dtype)))
        if of_weight:
            params = ProductParams(case.of_sums, transposed_a=True)
            sums.append(functions.product(d, hidden, None, params))
        if of_bias:
            call = sum_of_rows(d, _wide(case.dtype), case.of_sums, case.dim)
            sums.append(functions.run(call))
        return rows, sums

    def _logits(
        self, given: Sequence[Any], case: _Case, chunks: RowChunks, start: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        """Returns a chunk's rows of hidden, and their logits and labels."""
        hidden, weight, bias, labels, *_ = given
        hidden, labels = (
            self._functions.rows(x, case.dim, start, chunks.rows) for x in (hidden, labels)
        )
        params = ProductParams(case.dtype, transposed_b=True)
        return hidden, (self._functions.product(hidden, weight, bias, params), labels)

    def _expanded(self, operands: Sequence[Any], case: _Case) -> tuple[Any, ...]:
        hidden, weight, bias, labels = operands
        rows = tuple(hidden.shape[:-1])
        if tuple(labels.shape) != rows:
            labels = self._functions.expanded(labels, rows)
        return hidden, weight, bias, labels

    def _joined(self, arrays: Sequence[Any], case: _Case) -> Any:
        return arrays[0] if len(arrays) == 1 else self._functions.concatenated(arrays, case.dim)

    def _sum(self, case: _Case, x: Any, y: Any) -> Any:
        return self._functions.run(sum_of(x, y, case.of_sums, case.of_sums))

    def _rounded(self, total: Any, case: _Case) -> Any:
        if case.of_sums == case.dtype:
            return total
        return self._functions.run(rounded(total, case.of_sums, case.dtype))


@dataclass(frozen=True)
class _Case:
    """Sizes of a call, and its division into chunks.

    Attributes:
      dim: the dimension of rows.
      dtype: that of hidden.
      params: of the losses of a chunk.
    """

    dim: int
    dtype: str
    chunks: list[RowChunks]
    params: ProgramParams

    @property
    def of_sums(self) -> str:
        """The dtype of a chunk's sums; a sum that is the whole is rounded at once."""
        is_whole = len(self.chunks) == self.chunks[0].count == 1
        return self.dtype if is_whole else _wide(self.dtype)

    @classmethod
    def of(cls, operands: Sequence[Any], options: RowOptions, is_unrolled: bool) -> _Case:
        hidden, weight, _, labels = operands
        dtype, integers = (str(x.dtype).removeprefix("torch.") for x in (hidden, labels))
        rows, (columns, features) = hidden.shape[-2], weight.shape[-2:]
        if isinstance(rows, int):
            per = chunk_rows(options.chunk or None, rows, features, columns)
            if per < rows:
                per = max(1 << per.bit_length() - 1, LEAF)
            chunks = row_chunks(rows, per, 1 if is_unrolled else rows)
        else:  # symbolic: a graph must hold for any number of rows
            chunks = [RowChunks(0, rows, 1)]
        return cls(hidden.ndim - 2, dtype, chunks, _params(dtype, integers, *options.static))


def _wide(dtype: str) -> str:
    """Returns the arithmetic dtype, that of losses."""
    return "float64" if dtype == "float64" else "float32"


def _params(dtype: str, integers: str, *static: Any) -> ProgramParams:
    found = traced(row_losses.declaration, (True, True), *static)
    specs = Spec((1, 1), dtype), Spec((1,), integers)
    return check_operands(NAME, found.form, specs, found.texts)


def _cotangent(operands: tuple[Any, Any], g: Any, case: _Case) -> Call[Any]:
    """Returns the call for the gradient of logits, which reads them alone, not their losses."""
    specs = [Spec((), str(x.dtype).removeprefix("torch.")) for x in operands]
    wanted = True, False
    ((call, _),) = PROGRAM.vjp(operands, (None,), (g,), wanted, specs, case.params)
    return call
