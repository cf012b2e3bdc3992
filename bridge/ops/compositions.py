"""Compositions: public functions made of several ops, with a backward pass that recomputes.

A composition is written once, over the functions of `Functions`. Its adapter makes it one op with a
derivative: it stores the operands and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bridge.ops.definition import Call
from bridge.ops.product import ProductParams, Shape


class Functions(Protocol):
    """The functions of a framework that a composition needs. All can be differentiated.

    Attributes:
      is_unrolled: each chunk may have sizes of its own, because a loop of Python runs them.
    """

    is_unrolled: bool

    def product(self, a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
        """Returns a matrix product."""

    def run(self, call: Call[Any]) -> Any:
        """Returns the only result of a call of an op."""

    def entry(self, op: Any) -> Any:
        """Returns an object whose run(operands, None, *static) computes a declared op."""

    def reshaped(self, x: Any, shape: Shape) -> Any:
        """Returns x in another shape."""

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
    """

    name: str
    floating: int

    @property
    def options(self) -> type: ...

    @property
    def operands(self) -> dict[str, bool]: ...

    def result_shape(self, operands: Sequence[Any]) -> Shape:
        """Returns the shape of the result, whose dtype is that of the first operand."""

    def forward(self, operands: Sequence[Any], options: Any) -> Any:
        """Returns the result."""

    def gradients(
        self, g: Any, operands: Sequence[Any], options: Any, wanted: Sequence[bool]
    ) -> list[Any]:
        """Returns the gradients of the floating operands, None for unwanted ones."""
