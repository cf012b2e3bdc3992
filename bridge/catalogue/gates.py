"""Gated linear units and the squared ReLU, each with an optional factor for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.declared import DeclaredOp
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import whole_number

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": bl.silu,
    "gelu": lambda x: bl.gelu(x, "none"),
    "gelu_tanh": lambda x: bl.gelu(x, "tanh"),
    "gelu_sigmoid": lambda x: bl.gelu(x, "sigmoid"),
    "relu": bl.relu,
    "sigmoid": bl.sigmoid,
}

CHECKS = {
    "activation": checks.word(ACTIVATIONS),
    "limit": checks.optional(checks.positive),
    "linear_offset": checks.finite,
}


def gated(
    gate: Any, up: Any, weight: Any, activation: str, limit: float | None, linear_offset: float
) -> Any:
    if limit is not None:
        gate, up = bl.minimum(gate, limit), bl.maximum(bl.minimum(up, limit), -limit)
    up = up if linear_offset == 0 else up + linear_offset
    y = ACTIVATIONS[activation](gate) * up
    return y if weight is None else y * weight


def plus(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


@declared(checks=CHECKS)
def glu(
    gate: bl.Full,
    up: bl.Full,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    first, second = plus(gate, bias), plus(up, up_bias)
    return gated(first, second, weight, activation, limit, linear_offset)


@declared(checks=CHECKS)
@named("glu")
def packed_glu(
    gate: bl.Halves,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    first, second = gate
    first, second = plus(first, bias), plus(second, up_bias)
    return gated(first, second, weight, activation, limit, linear_offset)


@declared(checks=CHECKS)
@named("glu")
def paired_glu(
    gate: bl.Pairs,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    static = {"activation": activation, "limit": limit, "linear_offset": linear_offset}
    return packed_glu.declaration.function(gate, bias, up_bias, weight, **static)


# The ops for separate gate and up, for both packed in halves, and for both packed in pairs.
FORMS = (glu, packed_glu, paired_glu)
OPERANDS = ("gate", "up", "bias", "weight")  # the operands of the public functions


# These split a packed bias. A framework's own slices would not do: their gradient joins or adds
# cotangents, and may change the bits of a NaN (XLA computes bfloat16 in float32).
@declared()
def bias_halves(bias: bl.Halves):
    first, second = bias
    return first, second


@declared()
def bias_pairs(bias: bl.Pairs):
    first, second = bias
    return first, second


SPLITS = (bias_halves, bias_pairs)  # for halves and for pairs


@declared()
def squared_relu(x: bl.Full, weight: bl.PerRow | None = None):
    y = bl.relu(x) ** 2
    return y if weight is None else y * weight


class Glu:
    """`glu` in one framework, in all forms and under a public function's name.

    Attributes:
      entries: those of `FORMS`, or of other forms.
      splits: those of `SPLITS`, which split a packed bias.
    """

    def __init__(self, arrays: Arrays, name: str, forms: Sequence[DeclaredOp] = FORMS) -> None:
        self.arrays, self.name = arrays, name
        self.entries = [arrays.entry(op, name) for op in forms]
        self.splits = [arrays.entry(op, name) for op in SPLITS]

    def form(self, operands: Sequence[Any], interleaved: bool) -> tuple[Any, tuple[Any, ...]]:
        """Returns the entry for gate, up, bias and weight, and its operands.

        Raises:
          ValueError: for a separate `up` together with `interleaved`.
        """
        gate, up, bias, weight = operands
        weight = one_a_row(gate, weight)
        if up is not None:
            if interleaved:
                raise ValueError(
                    f"{self.name}: interleaved is True and up is given, expected one of both"
                )
            return self.entries[0], (gate, up, bias, None, weight)
        shape = shape_of(gate)
        columns = shape[-1] // 2 if shape else 0
        up_bias = None
        if bias is not None and getattr(bias, "ndim", 0) == 1 and bias.shape[0] == 2 * columns:
            bias, up_bias = self.splits[1 if interleaved else 0].run((bias,), None)
        return self.entries[2 if interleaved else 1], (gate, bias, up_bias, weight)

    def run(
        self,
        operands: Sequence[Any],
        out: Any,
        activation: Any,
        limit: Any,
        linear_offset: Any,
        interleaved: bool,
        blocks: Any,
    ) -> Any:
        """Runs the op on gate, up, bias and weight, with `blocks` packed arrays side by side.

        A block is treated as a row of its own, because elements are independent: gate and up are
        read without a copy. A vector shared by all rows, or a factor for each row, belongs to whole
        rows, so gate and up are split first if there is one.

        Raises:
          TypeError, ValueError: as the op and `check_blocks`; for a number of columns that does not
            fit the blocks; for a separate `up` with blocks.
        """
        self.arrays.known(self.name, "interleaved", interleaved, "True or False")
        self.arrays.known(self.name, "blocks", blocks)
        static = activation, limit, linear_offset
        if type(blocks) is not int or blocks != 1:
            blocks = check_blocks(self.name, blocks, interleaved)
        if blocks == 1:
            entry, operands = self.form(operands, interleaved)
            return entry.run(operands, out, *static)
        gate, up, bias, weight = operands
        if up is not None:
            raise ValueError(
                f"{self.name}: blocks is {blocks} and up is given, expected one of both"
            )
        packed = self.entries[1]
        if not (shape := shape_of(gate)):
            return packed.run((gate, bias, None, weight), out, *static)  # raises its own error
        *rows, columns = shape
        if columns % (2 * blocks):
            raise ValueError(
                f"{self.name}: gate has shape {list(shape)}, expected a multiple of {2 * blocks} "
                f"in the last dimension, two parts for each of {blocks} blocks"
            )
        whole = (*rows, columns // 2)
        gate = gate.reshape(*rows, blocks, columns // blocks)
        if bias is None and weight is None and (out is None or shape_of(out) == whole):
            if out is None:
                return packed.run((gate, None, None, None), None, *static).reshape(whole)
            packed.run((gate, None, None, None), out.unflatten(-1, (blocks, -1)), *static)
            return out
        split = self.splits[0]
        first, second = (part.reshape(whole) for part in split.run((gate,), None))
        up_bias = None
        if shape_of(bias) == (columns,):
            bias, up_bias = split.run((bias.reshape(blocks, columns // blocks),), None)
            bias, up_bias = bias.reshape(whole[-1]), up_bias.reshape(whole[-1])
        weight = one_a_row(first, weight)
        return self.entries[0].run((first, second, bias, up_bias, weight), out, *static)


def check_blocks(function: str, blocks: Any, interleaved: bool) -> int:
    """Returns the number of blocks.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it is less than 1, or above 1 with `interleaved`.
    """
    blocks = whole_number(function, "blocks", blocks, 1)
    if blocks > 1 and interleaved:
        raise ValueError(
            f"{function}: blocks is {blocks} and interleaved is True, expected one of both"
        )
    return blocks


def one_a_row(x: Any, weight: Any) -> Any:
    """Removes the last dimension of a weight `[..., 1]`."""
    return weight[..., 0] if shape_of(weight) == (*shape_of(x)[:-1], 1) else weight
