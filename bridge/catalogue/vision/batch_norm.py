"""Batch norm: statistics of each channel over all images and places, and the values.

    μ = Σ x / n                       x̂ = (x − μ)·r,  r = rsqrt(v + eps)
    v = Σ (x − μ)² / n                dbias = Σ g,  dweight = Σ g·x̂
    y = (x − μ)·r·weight + bias       dx = r·weight·(g − Σ g / n − x̂·(Σ g·x̂ / n))

All sums are in the tree of column sums over rows (image, place) in row-major order, in either
layout of the channels. With an exchange of sums among devices, n counts the rows of all devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bridge.catalogue.vision import batch_norm_programs as programs
from bridge.ops.compositions import Functions
from bridge.ops.definition import Call
from bridge.ops.product import Shape
from bridge.ops.sums import folded

NAME = "batch_norm"


@dataclass(frozen=True)
class Options:
    """Options of both compositions.

    Attributes:
      rows: the number of dimensions of x beside channels and batch dimensions.
      last: the channels are the last dimension, else the first one after the images.
      parts: the number of devices whose rows count.
    """

    eps: float
    rows: int
    last: bool
    parts: int = 1


Function = Callable[..., Any]
# exchange(sums) returns the sums of all devices, `[devices, c]` from `[c]`.
Exchange = Callable[[Any], Any]


class Case:
    """Sizes of a call.

    Attributes:
      batch: the batch dimensions.
      channel: the dimension of x with the channels.
      wide: the dtype of the arithmetic.
    """

    def __init__(
        self,
        functions: Functions,
        operands: Sequence[Any],
        options: Options,
        exchange: Exchange | None = None,
    ) -> None:
        x = operands[0]
        self.functions, self.options, self._exchange = functions, options, exchange
        self.batch_ndim = len(x.shape) - 1 - options.rows
        self.batch = tuple(x.shape[: self.batch_ndim])
        self.channel = len(x.shape) - 1 if options.last else self.batch_ndim + 1
        self.channels = x.shape[self.channel]
        self._shape = x.shape
        self.wide = programs.wide_of(*operands)
        self.dtype = programs.dtype_of(x)

    @property
    def count(self) -> float:
        """The number of rows of all devices, at least 1."""
        own = [d for d in range(self.batch_ndim, len(self._shape)) if d != self.channel]
        rows = math.prod([self._shape[d] for d in own]) * self.options.parts
        return float(max(rows, 1))

    def run(
        self,
        function: Function,
        operands: Sequence[Any],
        dtypes: Sequence[str],
        batch_ndim: int | None = None,
        **static: float,
    ) -> tuple[Any, ...]:
        batch = self.batch_ndim if batch_ndim is None else batch_ndim
        call = programs.program(function, operands, self.wide, dtypes, batch, **static)
        return self.functions.results(call)

    def small(self, function: Function, *operands: Any, **static: float) -> Any:
        """Runs a declaration on arrays `[*batch, c]`."""
        return self.run(function, operands, [self.wide], 0, **static)[0]

    def rounded(self, function: Function, given: Sequence[Any], like: Any) -> Any:
        """Runs a declaration on arrays `[*batch, c]`, with a result in the dtype of `like`."""
        return self.run(function, given, [programs.dtype_of(like)], 0)[0]

    def rows(self, x: Any) -> Any:
        """Returns x as `[*batch, *rows, c]`."""
        return x if self.options.last else self.functions.moved(x, self.channel, len(x.shape) - 1)

    def column_sums(self, function: Function, *operands: Any, count: int = 1) -> tuple[Any, ...]:
        """Returns sums over the rows of this device."""
        return self.run(function, operands, [self.wide] * count)

    def of_all(self, own: Any) -> Any:
        """Returns the sum over the rows of all devices, in the tree over all rows."""
        if self._exchange is None:
            return own

        def run(op: Any, operands: Any, params: Any) -> tuple[Any, ...]:
            return self.functions.results(Call(op, operands, params))

        nodes = self._exchange(own)
        return folded(nodes, self.wide, self.wide, run, self.functions.concatenated)

    def along(self, forms: tuple[Function, Function], full: Sequence[Any], *vectors: Any) -> Any:
        """Returns an array like x, of arrays like x and vectors `[*batch, c]`.

        Args:
          forms: the declaration for channels last, and that for channels before places.
        """
        function, first = forms
        if self.options.last:
            return self.run(function, (*full, *vectors), [self.dtype])[0]
        given = tuple(full[0].shape)
        full = self.functions.long_rows(full, self.channel + 1)
        ones = (1,) * (len(full[0].shape) - self.channel - 1)
        shape = (*self.batch, 1, self.channels, *ones)
        tables = [None if v is None else self.functions.reshaped(v, shape) for v in vectors]
        y = self.run(first, (*full, *tables), [self.dtype], 0)[0]
        return y if len(y.shape) == len(given) else self.functions.reshaped(y, given)


class Statistics:
    """The composition of the statistics `[*batch, 2, c]`: μ and Σ (x − μ)², in one framework."""

    name, options, floating = "batch_norm_statistics", Options, 1
    hints = 0
    operands: ClassVar = {"x": False}
    unread: tuple[int, ...] = ()

    def __init__(self, functions: Functions, exchange: Exchange | None = None) -> None:
        self._functions, self._exchange = functions, exchange

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        case = Case(self._functions, operands, options)
        return (*case.batch, 2, case.channels)

    def result_dtype(self, dtype: str) -> str:
        return "float64" if dtype == "float64" else "float32"

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        case = Case(self._functions, operands, options, self._exchange)
        x, mean = case.rows(operands[0]), self._mean(case, operands[0])
        square = case.of_all(case.column_sums(programs.squares, x, mean)[0])
        shape = (*case.batch, 1, case.channels)
        pair = [self._functions.reshaped(each, shape) for each in (mean, square)]
        return self._functions.concatenated(pair, len(case.batch))

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Options, wanted: Sequence[bool]
    ) -> list[Any]:
        if not wanted[0]:
            return [None]
        case, (x,) = Case(self._functions, operands, options), operands
        mean = self._mean(case, x)
        over_n = case.small(programs.over, g[..., 0, :], count=case.count)
        twice = case.small(programs.doubled, g[..., 1, :])
        return [case.along(programs.OF_STATISTICS, (x,), mean, over_n, twice)]

    def _mean(self, case: Case, x: Any) -> Any:
        sum_of_x = case.of_all(case.column_sums(programs.total, case.rows(x))[0])
        return case.small(programs.over, sum_of_x, count=case.count)


class BatchNorm:
    """The composition of the values in training, in one framework.

    With an exchange, the gradients of weight and bias are sums over this device's rows, unless
    `share` is given: share(total) returns this device's share of a sum over all rows.

    Operands: x `[*batch, images, c, *places]` or, with `last`, `[*batch, images, *places, c]`;
    weight and bias `[*batch, c]` or None, x's statistics `[*batch, 2, c]`, by which x is no
    longer read for them. All derivatives take the statistics as functions of x.
    """

    name, options, floating, hints = NAME, Options, 3, 1
    operands: ClassVar = {"x": False, "weight": True, "bias": True, "statistics": True}
    unread: tuple[int, ...] = (2,)

    def __init__(
        self,
        functions: Functions,
        exchange: Exchange | None = None,
        share: Exchange | None = None,
    ) -> None:
        self._functions, self._exchange, self._share = functions, exchange, share
        self.statistics = Statistics(functions, exchange)

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        return tuple(operands[0].shape)

    def result_dtype(self, dtype: str) -> str:
        return dtype

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        case, (x, weight, bias, _) = self._case(operands, options), operands
        mean, r = self._moments(case, operands)
        return case.along(programs.VALUES, (x,), mean, r, weight, bias)

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Options, wanted: Sequence[bool]
    ) -> list[Any]:
        case, (x, weight, bias, _) = self._case(operands, options), operands
        mean, r = self._moments(case, operands)
        own = case.column_sums(programs.sums, case.rows(x), case.rows(g), mean, r, count=2)
        totals = [case.of_all(each) for each in own]
        dx = None
        if wanted[0]:
            means = [case.small(programs.over, each, count=case.count) for each in totals]
            dx = case.along(programs.GRADIENT, (x, g), mean, r, *means, weight)
        found: list[Any] = [dx]
        own = own if self._share is None else tuple(map(self._share, totals))
        for vector, each, is_wanted in zip((weight, bias), own[::-1], wanted[1:], strict=True):
            found.append(case.rounded(programs.same, (each,), vector) if is_wanted else None)
        return found

    def _case(self, operands: Sequence[Any], options: Options) -> Case:
        return Case(self._functions, operands, options, self._exchange)

    def _moments(self, case: Case, operands: Sequence[Any]) -> tuple[Any, Any]:
        """Returns μ and r."""
        x, *_, statistics = operands
        if statistics is None:
            statistics = self.statistics.forward((x,), case.options)
        shape = (*case.batch, 2, case.channels)
        if tuple(statistics.shape) != shape:
            statistics = self._functions.expanded(statistics, shape)
        mean, square = statistics[..., 0, :], statistics[..., 1, :]
        r = case.small(programs.inverse, square, count=case.count, eps=case.options.eps)
        return mean, r


class Evaluation:
    """The composition of the values with given statistics, in one framework."""

    name, options, floating, hints = f"{NAME}_evaluation", Options, 5, 0
    operands: ClassVar = {
        "x": False,
        "mean": False,
        "variance": False,
        "weight": True,
        "bias": True,
    }
    unread: tuple[int, ...] = (4,)

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        return tuple(operands[0].shape)

    def result_dtype(self, dtype: str) -> str:
        return dtype

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        case, (x, mean, variance, weight, bias) = self._case(operands, options), operands
        r = case.small(programs.inverse, variance, count=1.0, eps=options.eps)
        return case.along(programs.VALUES, (x,), mean, r, weight, bias)

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Options, wanted: Sequence[bool]
    ) -> list[Any]:
        case, (x, mean, variance, weight, _) = self._case(operands, options), operands
        r = case.small(programs.inverse, variance, count=1.0, eps=options.eps)
        found: list[Any] = [None] * 5
        if wanted[0]:
            found[0] = case.along(programs.GIVEN_GRADIENT, (g,), r, weight)
        if not any(wanted[1:]):
            return found
        of_g, of_gx = case.column_sums(programs.sums, case.rows(x), case.rows(g), mean, r, count=2)
        made: list[Any] = [
            (programs.of_mean, (of_g, r, weight)),
            (programs.of_variance, (of_gx, r, weight)),
            (programs.same, (of_gx,)),
            (programs.same, (of_g,)),
        ]
        for place, (function, given) in enumerate(made, 1):
            if wanted[place]:
                found[place] = case.rounded(function, given, operands[place])
        return found

    def _case(self, operands: Sequence[Any], options: Options) -> Case:
        return Case(self._functions, operands, options)
