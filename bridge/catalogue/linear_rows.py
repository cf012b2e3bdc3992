"""Numbers of each row of a linear layer's logits, of which only a few rows exist at a time.

For each chunk of rows, of one linear layer or of two,

    logits = hidden weightᵀ + bias        dhidden = dlogits weight
    numbers = f(logits)                   dweight = Σ dlogitsᵀ hidden,  dbias = Σ dlogits

logits and dlogits are rounded to the dtype of hidden. With bridge's products, the sums over all
rows have the order of one product and of one column sum: the bits are the same for any chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from bridge.catalogue.checks import optional, word
from bridge.declared import DeclaredOp
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

LAYER = ("hidden", "weight", "bias")
BITS = {"bits": optional(word(("portable",)))}


@dataclass(frozen=True)
class RowsOp:
    """An op of rows of logits, over linear layers.

    Attributes:
      name: the name of the composition.
      op: its operands are the logits of each layer, then perhaps labels.
      options: a frozen dataclass: the static arguments of `op` in their order, then `chunk`, the
        rows whose logits exist at a time; 0 chooses them.
      layers: the prefix of the names of each layer's operands.
      has_labels: True if the op reads labels.
      results: the number of results, one number a row each.
    """

    name: str
    op: DeclaredOp
    options: type
    layers: tuple[str, ...] = ("",)
    has_labels: bool = True
    results: int = 1

    def static(self, options: Any) -> tuple[Any, ...]:
        return tuple([getattr(options, field.name) for field in fields(self.options)[:-1]])


class LinearRows:
    """The composition, `bridge.ops.compositions.Rules`, in one framework.

    Operands: for each layer hidden `[*batch, rows, features]`, weight `[*batch, V, features]` and
    bias `[*batch, V]` or None; labels `[*batch, rows]` where the op has them. Batch sizes may be 1.
    The result is `[*batch, rows]`, and `[*batch, results, rows]` for several.
    """

    hints = 0
    unread: tuple[int, ...] = ()

    def __init__(self, functions: Functions, of: RowsOp, name: str = "") -> None:
        self._functions, self._of = functions, of
        self.name, self.options = name or of.name, of.options
        self.floating = len(LAYER) * len(of.layers)
        names = [f"{layer}{own}" for layer in of.layers for own in LAYER]
        self.operands = {each: each.endswith("bias") for each in names}
        if of.has_labels:
            self.operands["labels"] = False

    def result_shape(self, operands: Sequence[Any], options: Any) -> Shape:
        *batch, rows = operands[0].shape[:-1]
        return (*batch, rows) if self._of.results == 1 else (*batch, self._of.results, rows)

    def result_dtype(self, dtype: str) -> str:
        return wide(dtype)

    def forward(self, operands: Sequence[Any], options: Any) -> Any:
        case = _Case.of(self._of, operands, options, self._functions.is_unrolled)
        operands = self._expanded(operands)
        found: list[Sequence[Any]] = []
        for chunks in case.chunks:
            step = functools.partial(self._numbers, operands, case, chunks)
            found.append(self._functions.over_chunks(step, case.dim, chunks)[0])
        results = [self._joined(each, case.dim) for each in zip(*found, strict=True)]
        if len(results) == 1:
            return results[0]
        batch, rows = tuple(results[0].shape[:-1]), results[0].shape[-1]
        apart = [self._functions.reshaped(each, (*batch, 1, rows)) for each in results]
        return self._functions.concatenated(apart, case.dim)

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Any, wanted: Sequence[bool]
    ) -> list[Any]:
        case = _Case.of(self._of, operands, options, self._functions.is_unrolled)
        several = self._of.results > 1
        cotangents = [g[..., i, :] for i in range(self._of.results)] if several else [g]
        given = self._expanded(operands), cotangents
        asked = [i for i in range(self.floating) if wanted[i]]
        rows: list[Sequence[Any]] = []
        sums = [i for i in asked if i % len(LAYER)]
        add, is_tree = functools.partial(self._sum, case), self._functions.has_trees
        totals = tuple([SumOfChunks(add, is_tree) for _ in sums])
        for chunks in case.chunks:
            step = functools.partial(self._gradients, given, case, asked, chunks)
            own, parts = self._functions.over_chunks(step, case.dim, chunks)
            rows.append(own)
            for total, each in zip(totals, parts, strict=True):
                total.push(each, chunks.count)
        found: list[Any] = [None] * self.floating
        whole = [self._joined(each, case.dim) for each in zip(*rows, strict=True)]
        for i, each in zip([i for i in asked if i % len(LAYER) == 0], whole, strict=True):
            found[i] = each
        for i, total in zip(sums, totals, strict=True):
            found[i] = self._rounded(total.total(), case)
        return found

    def _numbers(
        self, operands: Sequence[Any], case: _Case, chunks: RowChunks, start: Any
    ) -> tuple[Sequence[Any], list[Any]]:
        """Returns the results of a chunk's rows."""
        _, read = self._read(operands, case, chunks, start)
        found = self._functions.results(Call(PROGRAM, read, case.params))
        return found[: self._of.results], []

    def _gradients(
        self,
        given: tuple[Sequence[Any], Sequence[Any]],
        case: _Case,
        asked: Sequence[int],
        chunks: RowChunks,
        start: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Returns gradients of a chunk's rows, and its terms of those of weights and biases."""
        operands, cotangents = given
        functions = self._functions
        hidden, read = self._read(operands, case, chunks, start)
        own = [functions.rows(g, case.dim, start, chunks.rows) for g in cotangents]
        rows, sums = [], []
        for layer, d in self._of_logits(read, own, case, asked).items():
            of_hidden, of_weight, of_bias = range(len(LAYER) * layer, len(LAYER) * (layer + 1))
            if of_hidden in asked:
                params = ProductParams(case.dtype)
                rows.append(functions.product(d, operands[of_weight], None, params))
            if of_weight in asked:
                params = ProductParams(case.of_sums, transposed_a=True)
                sums.append(functions.product(d, hidden[layer], None, params))
            if of_bias in asked:
                call = sum_of_rows(d, wide(case.dtype), case.of_sums, case.dim)
                sums.append(functions.run(call))
        return rows, sums

    def _read(
        self, operands: Sequence[Any], case: _Case, chunks: RowChunks, start: Any
    ) -> tuple[list[Any], tuple[Any, ...]]:
        """Returns a chunk's rows of each hidden, and the operands of the op."""
        functions = self._functions
        hidden, read = [], []
        params = ProductParams(case.dtype, transposed_b=True)
        for first in range(0, self.floating, len(LAYER)):
            x, weight, bias = operands[first : first + len(LAYER)]
            hidden.append(functions.rows(x, case.dim, start, chunks.rows))
            read.append(functions.product(hidden[-1], weight, bias, params))
        for labels in operands[self.floating :]:
            read.append(functions.rows(labels, case.dim, start, chunks.rows))
        return hidden, tuple(read)

    def _of_logits(
        self, read: tuple[Any, ...], cotangents: Sequence[Any], case: _Case, asked: Sequence[int]
    ) -> dict[int, Any]:
        """Returns the gradient of each layer's logits that is needed, from the logits alone."""
        specs = [Spec((), _dtype(x)) for x in read]
        needed = [any(i // len(LAYER) == place for i in asked) for place in range(len(read))]
        nothing = (None,) * self._of.results
        calls = PROGRAM.vjp(read, nothing, tuple(cotangents), needed, specs, case.params)
        found: dict[Any, Any] = {}
        for call, places in calls:
            for d, place in zip(self._functions.results(call), places, strict=True):
                for layer in place if isinstance(place, tuple) else (place,):
                    found[layer] = d
        return dict(sorted(found.items()))

    def _expanded(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the operands; labels have the batch sizes of the first hidden."""
        rows = tuple(operands[0].shape[:-1])
        labels = [
            x if tuple(x.shape) == rows else self._functions.expanded(x, rows)
            for x in operands[self.floating :]
        ]
        return (*operands[: self.floating], *labels)

    def _joined(self, arrays: Sequence[Any], dim: int) -> Any:
        return arrays[0] if len(arrays) == 1 else self._functions.concatenated(arrays, dim)

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
      params: of the op on a chunk.
    """

    dim: int
    dtype: str
    chunks: list[RowChunks]
    params: ProgramParams

    @property
    def of_sums(self) -> str:
        """The dtype of a chunk's sums; a sum that is the whole is rounded at once."""
        is_whole = len(self.chunks) == self.chunks[0].count == 1
        return self.dtype if is_whole else wide(self.dtype)

    @classmethod
    def of(cls, of: RowsOp, operands: Sequence[Any], options: Any, is_unrolled: bool) -> _Case:
        hidden = operands[0]
        layers = [operands[len(LAYER) * i : len(LAYER) * (i + 1)] for i in range(len(of.layers))]
        rows = hidden.shape[-2]
        features = sum(each[0].shape[-1] for each in layers)
        columns = sum(each[1].shape[-2] for each in layers)
        if isinstance(rows, int):
            per = chunk_rows(options.chunk or None, rows, features, columns)
            if per < rows:
                per = max(1 << per.bit_length() - 1, LEAF)
            chunks = row_chunks(rows, per, 1 if is_unrolled else rows)
        else:  # symbolic: a graph must hold for any number of rows
            chunks = [RowChunks(0, rows, 1)]
        dtypes = [_dtype(each[0]) for each in layers]
        labels = [_dtype(operands[-1])] if of.has_labels else []
        params = _params(of, (*dtypes, *labels), *of.static(options))
        return cls(hidden.ndim - 2, dtypes[0], chunks, params)


def wide(dtype: str) -> str:
    """Returns the arithmetic dtype, that of a row's numbers."""
    return "float64" if dtype == "float64" else "float32"


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _params(of: RowsOp, dtypes: Sequence[str], *static: Any) -> ProgramParams:
    found = traced(of.op.declaration, (True,) * len(dtypes), *static)
    layers = len(of.layers)
    specs = [Spec((1, 1) if i < layers else (1,), dtype) for i, dtype in enumerate(dtypes)]
    return check_operands(of.name, found.form, tuple(specs), found.texts)


def rows_at_once(arrays: Arrays, function: str, chunk: Any) -> int | None:
    """Returns the checked argument `chunk`: the rows whose logits exist at a time, or None.

    Raises:
      TypeError, ValueError: it is no positive integer, or known only at run time.
    """
    chunk = arrays.known(function, "chunk", chunk)
    return None if chunk is None else whole_number(function, "chunk", chunk, 1)


def checked_operands(
    arrays: Arrays,
    function: str,
    layers: Sequence[tuple[Any, Any, Any]],
    labels: Any = None,
    prefixes: tuple[str, ...] = ("",),
) -> tuple[Any, ...]:
    """Returns hidden, weight and bias of each layer, then labels where the function has them.

    They are arrays, in autocast's dtype where that is on. The values of labels are not checked.

    Raises:
      TypeError, ValueError: an operand is no array, or has another dtype or shape.
    """
    has_labels = len(layers) == 1
    given: dict[str, Any] = {}
    for prefix, (hidden, weight, _) in zip(prefixes, layers, strict=True):
        given |= {f"{prefix}hidden": hidden, f"{prefix}weight": weight}
    given |= {"labels": labels} if has_labels else {}
    required = len(given)
    given |= {f"{prefix}bias": each[2] for prefix, each in zip(prefixes, layers, strict=True)}
    found = dict(zip(given, arrays.checked(function, required, ("labels",), **given), strict=True))
    labels = found.get("labels")
    shape = None if labels is None else labels.shape
    for prefix in prefixes:
        names = [f"{prefix}{name}" for name in LAYER]
        found |= zip(names, arrays.autocast(*[found[name] for name in names]), strict=True)
        hidden, weight, bias = (getattr(found[name], "shape", None) for name in names)
        check_shapes(function, shape, hidden, weight, bias, prefix)  # type: ignore[arg-type]
    if not has_labels:
        _check_second(function, prefixes, found)
    floating = [f"{prefix}{name}" for prefix in prefixes for name in LAYER]
    dtypes = {name: arrays.dtype_of(found[name]) for name in floating if found[name] is not None}
    check_dtypes(function, dtypes, None if labels is None else arrays.dtype_of(labels))
    return (*[found[name] for name in floating], *([] if labels is None else [labels]))


def _check_second(function: str, prefixes: Sequence[str], floating: Any) -> None:
    """Raises ValueError for layers with other rows or other columns than the first one."""
    first, other = prefixes
    rows, columns = floating[f"{first}hidden"].shape[:-1], floating[f"{first}weight"].shape[0]
    hidden, weight = floating[f"{other}hidden"].shape, floating[f"{other}weight"].shape
    if hidden[:-1] != rows:
        raise ValueError(
            f"{function}: {other}hidden has shape {list(hidden)}, expected "
            f"{[*rows, hidden[-1]]}: the rows of {first}hidden"
        )
    if weight[0] != columns:
        raise ValueError(
            f"{function}: {other}weight has shape {list(weight)}, expected "
            f"{[columns, weight[1]]}: the columns of {first}weight"
        )
