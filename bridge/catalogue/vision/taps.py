"""Maps between places, as compositions: each output is a chain over its taps.

x is `[*batch, n, places]`, or `[*batch, n, places, c]` with `inner`. The options have a text that
describes the windows; `bridge.catalogue.vision.plans` makes the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bridge.catalogue.vision import tap_programs
from bridge.catalogue.vision.batch_norm_programs import dtype_of, wide_of
from bridge.catalogue.vision.plans import direction_of, outputs_of, weights_of, window_of
from bridge.catalogue.vision.windows import Direction
from bridge.ops.compositions import Functions
from bridge.ops.product import Shape


@dataclass(frozen=True)
class Options:
    """Options of the maps.

    Attributes:
      text: the windows.
      inner: x has channels behind the places.
      back: the transposed map.
    """

    text: str
    inner: bool
    back: bool = False


def along(x: Any, options: Options) -> int:
    """Returns the dimension of the places."""
    return len(x.shape) - 2 if options.inner else len(x.shape) - 1


def with_places(x: Any, options: Options, places: int) -> Shape:
    """Returns the shape of x with another number of places."""
    shape = list(x.shape)
    shape[along(x, options)] = places
    return tuple(shape)


@dataclass(frozen=True)
class ByGathers:
    """A map by gathers of the framework and programs."""

    function: Callable[..., Any]
    options: Options

    def __call__(self, *operands: Any) -> Any:
        return self.function(self.options, *operands)


class _Rules:
    """A composition whose first operand alone has a gradient."""

    options, floating, hints = Options, 1, 0
    unread: tuple[int, ...] = (0,)  # the maps are linear
    # Runs the composition of the gradient.
    transposed: Callable[[Sequence[Any], Options], Any]

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def result_dtype(self, dtype: str) -> str:
        return dtype

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Options, wanted: Sequence[bool]
    ) -> list[Any]:
        other = replace(options, back=not options.back)
        return [self.transposed((g, *operands[1:]), other) if wanted[0] else None]

    def taken(self, x: Any, rows: Any, dim: int) -> list[Any]:
        """Returns x at each row of a table of places."""
        return [self.functions.taken(x, rows[tap], dim) for tap in range(rows.shape[0])]


def aligned(rows: Any, inner: bool) -> list[Any]:
    """Returns the rows of a table, which broadcast along the places."""
    ones = (1,) * inner
    return [rows[tap].reshape(rows.shape[1], *ones) for tap in range(rows.shape[0])]


class Sums(_Rules):
    """The linear map of a plan."""

    name = "taps"
    operands: ClassVar = {"x": False}

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        return with_places(operands[0], options, self._direction(options).places.shape[1])

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        (x,), own = operands, self._direction(options)
        shape, functions = self.result_shape(operands, options), self.functions
        if own.places.shape[0] == 0 or 0 in shape:
            return functions.filled(x, shape, 0.0)
        if own.form == "row_mean":
            gathers = ByGathers(self._row_mean, options)
            return functions.mapped(own.form, x, (), shape, options.inner, gathers)
        weights = weights_of(options.text, options.back, wide_of(x))
        tables = functions.table(own.places, x), functions.table(weights, x)
        gathers = ByGathers(self._by_gathers, options)
        return functions.mapped(own.form, x, tables, shape, options.inner, gathers)

    def _by_gathers(self, options: Options, x: Any, places: Any, table: Any) -> Any:
        functions, wide, dtype = self.functions, wide_of(x), dtype_of(x)
        form = self._direction(options).form
        if x.shape[along(x, options)] == 1 and places.shape[0] == 1:
            taken = [functions.expanded(x, with_places(x, options, places.shape[1]))]
        else:
            taken = self.taken(x, places, along(x, options))
        weights = aligned(table, options.inner)
        if form != "average":
            return tap_programs.run(functions, form, [taken, weights], wide, [dtype])[0]
        are_there = aligned(places >= 0, options.inner)
        total = tap_programs.run(functions, "added", [taken, are_there], wide, [wide])[0]
        return tap_programs.divided(functions, total, weights[0], wide, dtype)

    def _row_mean(self, options: Options, x: Any) -> Any:
        functions, end = self.functions, len(x.shape) - 1
        rows = functions.moved(x, along(x, options), end)
        own = functions.filled(rows, tuple(rows.shape[:end]), 0.0)
        y = functions.entry(tap_programs.mean_of_places).run((rows, own), None)
        return functions.reshaped(y, with_places(x, options, 1))

    def _direction(self, options: Options) -> Direction:
        return direction_of(options.text, options.back)


class Chosen(_Rules):
    """The number x[chosen] of each output.

    Operands: x, and `chosen` with one place for each output.
    """

    name = "chosen_taps"
    operands: ClassVar = {"x": False, "chosen": False}

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        return with_places(operands[0], options, window_of(options.text).shape[1])

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        x, chosen = operands
        shape = self.result_shape(operands, options)
        gathers = ByGathers(self._by_gathers, options)
        return self.functions.mapped("chosen", x, (chosen,), shape, options.inner, gathers)

    def _by_gathers(self, options: Options, x: Any, chosen: Any) -> Any:
        return self.functions.taken_apart(x, chosen, along(x, options))


class SumsOfChosen(_Rules):
    """For each place, the chain of additions over the outputs that chose it.

    Operands: a number for each output, and `chosen` as in `Chosen`.
    """

    name = "sums_of_chosen_taps"
    operands: ClassVar = {"g": False, "chosen": False}

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        return with_places(operands[0], options, outputs_of(options.text).shape[1])

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        (g, chosen), outputs = operands, outputs_of(options.text)
        shape, functions = self.result_shape(operands, options), self.functions
        if outputs.shape[0] == 0 or 0 in shape:
            return functions.filled(g, shape, 0.0)
        gathers = ByGathers(self._by_gathers, options)
        return functions.mapped("of_chosen", g, (chosen,), shape, options.inner, gathers)

    def _by_gathers(self, options: Options, g: Any, chosen: Any) -> Any:
        functions, outputs = self.functions, outputs_of(options.text)
        dim, rows = along(g, options), functions.table(outputs, g)
        both = zip(self.taken(g, rows, dim), self.taken(chosen, rows, dim), strict=True)
        terms = [
            functions.where_own(own, which, rows[tap], dim) for tap, (own, which) in enumerate(both)
        ]
        return tap_programs.run(functions, "sum", [terms], wide_of(g), [dtype_of(g)])[0]


class Largest(_Rules):
    """The place of the largest number of each output: the first one, or the last NaN.

    The result is of integers and has no gradient.
    """

    name = "largest_taps"
    operands: ClassVar = {"x": False}

    def result_shape(self, operands: Sequence[Any], options: Options) -> Shape:
        return with_places(operands[0], options, window_of(options.text).shape[1])

    def result_dtype(self, dtype: str) -> str:
        return "int32"

    def forward(self, operands: Sequence[Any], options: Options) -> Any:
        (x,), functions = operands, self.functions
        shape = self.result_shape(operands, options)
        if 0 in shape:
            return functions.cast(functions.filled(x, shape, 0.0), "int32")
        tables = (functions.table(window_of(options.text), x),)
        gathers = ByGathers(self._by_gathers, options)
        return functions.mapped("largest", x, tables, shape, options.inner, gathers)

    def _by_gathers(self, options: Options, x: Any, places: Any) -> Any:
        functions = self.functions
        given = [self.taken(x, places, along(x, options)), aligned(places >= 0, options.inner)]
        wide = wide_of(x)
        found = tap_programs.run(functions, "largest", given, wide, [dtype_of(x), wide])
        return functions.cast(functions.entries(places, found[1], options.inner), "int32")


class Taps:
    """The maps in one framework.

    Args:
      compose: makes a composition of rules.
    """

    def __init__(self, functions: Functions, compose: Callable[[Any], Any]) -> None:
        sums, chosen, back = Sums(functions), Chosen(functions), SumsOfChosen(functions)
        self.sums, self.chosen, of_chosen = map(compose, (sums, chosen, back))
        self.largest = compose(Largest(functions))
        sums.transposed = self.sums.run
        chosen.transposed, back.transposed = of_chosen.run, self.chosen.run
