"""Compositions: public functions made of several ops, with a backward pass that recomputes.

A composition is written once, over the functions of `Functions`. Its adapter makes it one op with a
derivative: it stores the operands that the derivative reads, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.ops.definition import Call
from bridge.ops.product import LEAF, ProductParams, Shape

__all__ = ["LEAF", "MAPS", "Functions", "RowChunks", "Rules", "SumOfChunks", "row_chunks"]


# The kinds of maps between places, in the order of `bridge_taps_kind`.
MAPS = ("weighted", "average", "shares", "largest", "chosen", "of_chosen", "row_mean")


class Functions(Protocol):
    """The functions of a framework that a composition needs. All can be differentiated.

    Attributes:
      is_unrolled: each chunk may have sizes of its own, because a loop of Python runs them.
      has_trees: sums over chunks are binary trees, as bridge's products need them.
    """

    is_unrolled: bool
    has_trees: bool

    def product(self, a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
        """Returns a matrix product."""

    def run(self, call: Call[Any]) -> Any:
        """Returns the only result of a call of an op."""

    def results(self, call: Call[Any]) -> tuple[Any, ...]:
        """Returns the results of a call of an op."""

    def entry(self, op: Any) -> Any:
        """Returns an object whose run(operands, None, *static) computes a declared op."""

    def reshaped(self, x: Any, shape: Shape) -> Any:
        """Returns x in another shape."""

    def moved(self, x: Any, dim: int, place: int) -> Any:
        """Moves a dimension of x to another place."""

    def long_rows(self, arrays: Sequence[Any], dim: int) -> Sequence[Any]:
        """Joins the dimensions from `dim` on, or not, for fewer rows in a program.

        The arrays have one shape. They are joined where that takes no copy and adds nothing to a
        graph of derivatives, whose sums would have another order.
        """

    def expanded(self, x: Any, shape: Shape) -> Any:
        """Repeats x to a shape, without memory where the framework can."""

    def concatenated(self, arrays: Sequence[Any], dim: int) -> Any:
        """Joins arrays along a dimension."""

    def filled(self, like: Any, shape: Shape, value: float) -> Any:
        """Returns an array of one number, of the dtype of `like` and on its device."""

    def numbers(self, like: Any, start: Any, count: int) -> Any:
        """Returns `count` integers from start on, on the device of `like`."""

    def rows(self, x: Any, dim: int, start: Any, count: int) -> Any:
        """Returns `count` places of x along a dimension, from start on."""

    def cast(self, x: Any, dtype: str) -> Any:
        """Returns x in another dtype."""

    def taken(self, x: Any, index: Any, dim: int) -> Any:
        """Returns the places `index`, one row of integers, of x; any place for −1."""

    def taken_apart(self, x: Any, chosen: Any, dim: int) -> Any:
        """Returns x at `chosen` along a dimension, an array with x's other dimensions."""

    def table(self, numbers: Any, like: Any) -> Any:
        """Returns an array of NumPy on the device of `like`."""

    def entries(self, rows: Any, row: Any, inner: bool) -> Any:
        """Returns the entry of `rows` in row[…, column], or row[…, column, :] with `inner`."""

    def where_own(self, x: Any, which: Any, outputs: Any, dim: int) -> Any:
        """Returns x where `which` is the number along the dimension and outputs ≥ 0, else −0.0."""

    def mapped(
        self,
        kind: str,
        x: Any,
        others: tuple[Any, ...],
        shape: Shape,
        inner: bool,
        by_gathers: Callable[..., Any],
    ) -> Any:
        """Returns a map between places, by a kernel where there is one.

        Args:
          kind: one of MAPS.
          others: the table of places and perhaps weights in the arithmetic's dtype, or the chosen
            places.
          shape: of the result.
          inner: x has channels behind the places.
          by_gathers: by_gathers(x, *others) returns the same by other functions, and is linear in x
            but for "largest". It can be hashed.
        """

    def over_chunks(
        self, step: Callable[[Any], tuple[Sequence[Any], Sequence[Any]]], dim: int, chunks: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs a step for each of some equal chunks of rows, one after the other.

        Args:
          step: step(start) returns arrays with the rows of a chunk in the dimension `dim`, and
            arrays in the arithmetic dtype to be added up over the chunks, in a binary tree.
          chunks: has the attributes start, rows, and count, which is a power of two, 1 if
            `is_unrolled`.

        Returns:
          Arrays with the rows of all chunks, and the sums.
        """

    def in_parts(
        self,
        function: Callable[..., tuple[Any, ...]],
        operands: Sequence[Any],
        sizes: Sequence[int],
        steps: Sequence[int],
    ) -> tuple[Any, ...]:
        """Applies a function to parts of leading dimensions, one part after the other.

        Args:
          function: function(*operands) returns results with the same leading dimensions.
          operands: arrays or None. Their leading dimensions have these sizes, or 1.
          sizes, steps: the leading sizes, and those of a part, which divide them.
        """


class Rules(Protocol):
    """A composition.

    Attributes:
      name: the public function's name.
      options: a frozen dataclass of numbers.
      operands: the names of all operands, and True for operands that may be None.
      floating: the number of operands with a gradient, which come first.
      hints: the number of last operands that are functions of the others, which the composition
        computes itself if they are absent. Derivatives in forward mode leave them out.
      unread: the places of operands of which `gradients` reads shape and dtype alone.
    """

    name: str
    floating: int
    hints: int
    unread: tuple[int, ...]

    @property
    def options(self) -> type: ...

    @property
    def operands(self) -> dict[str, bool]: ...

    def result_shape(self, operands: Sequence[Any], options: Any) -> Shape:
        """Returns the shape of the result."""

    def result_dtype(self, dtype: str) -> str:
        """Returns the dtype of the result, for that of the first operand."""

    def forward(self, operands: Sequence[Any], options: Any) -> Any:
        """Returns the result."""

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Any, wanted: Sequence[bool]
    ) -> list[Any]:
        """Returns the gradients of the floating operands, None for unwanted ones."""


@dataclass(frozen=True)
class RowChunks:
    """Equal chunks of rows, one after the other.

    Attributes:
      start: the first row of the first chunk.
      rows: the number of rows in a chunk.
      count: the number of chunks, 2ⁿ; they are a subtree of a sum over chunks.
    """

    start: int
    rows: int
    count: int


def row_chunks(rows: int, per: int, most: int) -> list[RowChunks]:
    """Cuts rows into chunks of `per` rows; there is at least one chunk.

    Args:
      per: the rows of a chunk: LEAF·2ⁿ, so that its sum is a subtree of a sum over all rows, or at
        least as many as there are.
      most: the number of chunks that may run in one loop.
    """
    found: list[RowChunks] = []
    start, longest = 0, 1 << max(most, 1).bit_length() - 1
    while start < rows or not found:
        count = min(1 << max((rows - start) // per, 1).bit_length() - 1, longest)
        found.append(RowChunks(start, min(per, rows - start), count))
        start += found[-1].rows * count
    return found


class SumOfChunks:
    """The sum over chunks of rows, in the tree of one product over all rows.

    The sum of some chunks waits for that of as many more, as in a binary counter, so that few
    sums exist at a time.

    Args:
      add: add(one, other) returns the sum of two parts.
      is_tree: False to add one part after the other: then only one sum exists at a time.
    """

    def __init__(self, add: Callable[[Any, Any], Any], is_tree: bool = True) -> None:
        self._add, self._is_tree = add, is_tree
        self._waiting: tuple[tuple[int, Any], ...] = ()

    def push(self, part: Any, count: int) -> None:
        """Adds the sum of the next `count` chunks."""
        while self._waiting and (not self._is_tree or self._waiting[-1][0] == count):
            *before, (_, left) = self._waiting
            self._waiting = tuple(before)
            part = self._add(left, part)
            count *= 2
        self._waiting = (*self._waiting, (count, part))

    def total(self) -> Any:
        """Returns the sum of all chunks."""
        *before, (_, part) = self._waiting
        for _, left in reversed(before):
            part = self._add(left, part)
        return part
