"""Values: the parameters of a declaration while it is traced, and the results of operations."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from typing import Any

import numpy as np

from bridge.lang.active import current
from bridge.lang.errors import refuse
from bridge.lang.program import (
    BLOCK_REDUCTIONS,
    COLUMNS,
    FULL,
    REDUCTIONS,
    ROWS,
    Node,
    constant_of,
)
from bridge.lang.refusals import NoNumber, Unusable

COMPARISONS = frozenset({"lt", "le", "eq", "ne"})
_MOST_BITS = 1023  # of a whole number that always fits float64
_LOGIC = frozenset({"and", "or", "not"})
_OF_NUMPY = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}


def _as_float(x: numbers.Real) -> float:
    """Converts a number to float64; fractions and longer floats may be beyond its range."""
    try:
        number = float(x)
    except OverflowError as error:
        raise refuse(f"a {type(x).__name__} beyond 1.8e308 is no float64") from error
    if math.isinf(number) and number != x:
        raise refuse(f"a {type(x).__name__} beyond 1.8e308 is no float64")
    return number


class Builder:
    """The operations of one program, each once, in the order of their first use."""

    length: Value | None = None  # the number of columns of each row that count, if not all
    within: Value | None = None  # true in these columns

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def node(
        self,
        operation: str,
        inputs: tuple[int, ...] = (),
        static: Any = None,
        *,
        axes: int | None = None,
        dtype: str = "float",
    ) -> Value:
        if axes is None:
            axes = functools.reduce(operator.or_, [self.nodes[i].axes for i in inputs], 0)
        key = (operation, inputs, static, axes, dtype)
        number = self._numbers.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(Node(*key))
        return Value(self, number)

    def constant(self, number: float | int | bool) -> Value:
        kind = "bool" if isinstance(number, bool) else "int" if isinstance(number, int) else "float"
        static = number.hex() if isinstance(number, float) else number
        return self.node("constant", static=static, axes=0, dtype=kind)

    def parameter(self, number: float, name: str) -> Value:
        """A constant that stays apart from others, so that the program is the same for all numbers.

        It is not simplified away where it is 0 or 1.
        """
        return self.node("constant", static=f"{float(number).hex()} {name}", axes=0)

    def operand(self, position: int, half: int, axes: int, dtype: str) -> Value:
        return self.node("operand", static=(position, half), axes=axes, dtype=dtype)

    def value(self, x: Any) -> Value:
        """Converts to a value of this program: x is one already, or a Python number."""
        if isinstance(x, Value):
            if x.builder is not self:
                raise refuse("a value of another declaration: pass it as an operand")
            return x
        if isinstance(x, Unusable):
            x.refused()
        if isinstance(x, (bool, np.bool_)):
            return self.constant(bool(x))
        if isinstance(x, numbers.Integral):
            if (bits := int(x).bit_length()) > _MOST_BITS:
                raise refuse(f"a whole number of {bits} bits is no float64")
            return self.constant(int(x))
        if isinstance(x, numbers.Real):
            return self.constant(_as_float(x))
        raise refuse(
            f"{type(x).__name__} is neither a value of the declaration nor a number: arrays come "
            "in as operands"
        )

    def apply(self, operation: str, *inputs: Any, static: Any = None) -> Value:
        """Applies an operation to values and numbers; checks types, makes integers floating.

        A reduction leaves out hidden columns. Other results are hidden where an input is.
        """
        values = [self.value(x) for x in inputs]
        if operation in REDUCTIONS or operation in BLOCK_REDUCTIONS:
            neutral = -0.0 if operation.endswith("sum") else -math.inf
            values[0] = self.cut(values[0])
            return self._apply(operation, [shown(x, neutral) for x in values], static)
        extents = {x.extent.number: x.extent for x in values if isinstance(x, Visible)}
        result = self._apply(operation, values, static)
        if not extents:
            return result
        extent = functools.reduce(lambda x, y: self._apply("and", [x, y]), extents.values())
        return Visible(self, result.number, extent)

    def end_rows_at(self, length: Value) -> None:
        """Lets only the first columns of each row count, `length` many."""
        self.length, self.within = length, self.node("column", axes=COLUMNS, dtype="int") < length

    def is_within(self, truth: Value) -> bool:
        return self.within is not None and self.within.number == truth.number

    def cut(self, value: Value) -> Value:
        """Returns the value, hidden in the columns that do not count too."""
        if self.within is None or value.kind == "bool":
            return value
        extent = value.extent if isinstance(value, Visible) else self.within
        node = self.nodes[extent.number]
        is_cut = self.is_within(extent) or self.within.number in node.inputs
        within = extent if is_cut else self._apply("and", [extent, self.within])
        return Visible(self, value.number, within)

    def _apply(self, operation: str, values: list[Value], static: Any = None) -> Value:
        kinds = {value.kind for value in values}
        if operation in _LOGIC:
            if kinds != {"bool"}:
                raise refuse("&, | and ~ are for truth values: compare first, as in (x > 0) & mask")
            return self.node(operation, _numbers(values), dtype="bool")
        if operation == "where":
            condition, *values = values
            if condition.kind != "bool":
                raise refuse("the first argument of where is no truth value: compare, as in x > 0")
            values = self._alike(values)
            return _simplified(self, operation, [condition, *values], None, values[0].kind)
        if "bool" in kinds:
            raise refuse("no arithmetic on truth values: write bl.where(condition, 1.0, 0.0)")
        if operation in COMPARISONS:
            return self.node(operation, _numbers(self._alike(values)), dtype="bool")
        if kinds == {"int"} and operation in ("add", "sub", "mul", "neg"):
            return self.node(operation, _numbers(values), dtype="int")
        values = [self.floating(value) for value in values]
        if operation in REDUCTIONS:
            kind = "int" if operation == "argmax" else "float"
            return self.node(operation, _numbers(values), static, axes=ROWS, dtype=kind)
        if operation in BLOCK_REDUCTIONS:
            kind = "int" if operation == "block_argmax" else "float"
            axes = values[0].axes | COLUMNS
            return self.node(operation, _numbers(values), static, axes=axes, dtype=kind)
        return _simplified(self, operation, values, static, "float")

    def floating(self, value: Value) -> Value:
        if value.kind == "float":
            return value
        if value.kind == "bool":
            raise refuse("no arithmetic on truth values: write bl.where(condition, 1.0, 0.0)")
        node = self.nodes[value.number]
        if node.operation == "constant":
            return self.constant(float(constant_of(node)))
        if node.operation == "columns":
            return self.node("columns", axes=0)
        return self.node("float", (value.number,))

    def _alike(self, values: list[Value]) -> list[Value]:
        is_one = len({value.kind for value in values}) == 1
        return values if is_one else [self.floating(value) for value in values]


def _numbers(values: list[Value]) -> tuple[int, ...]:
    return tuple(value.number for value in values)


def _simplified(
    builder: Builder, operation: str, values: list[Value], static: Any, dtype: str
) -> Value:
    """The operation, or a simpler one that has the same bits for every input.

    x + 0.0 is not simplified: it turns -0.0 into +0.0.
    """
    nodes = builder.nodes

    def is_constant(place: int, number: float) -> bool:
        node = nodes[values[place].number]
        return node.operation == "constant" and node.static == number.hex()

    if operation == "neg":
        node = nodes[values[0].number]
        if node.operation == "constant":
            return builder.constant(-constant_of(node))
        if node.operation == "neg":
            return Value(builder, node.inputs[0])
    elif operation in ("mul", "add"):
        neutral = 1.0 if operation == "mul" else -0.0
        for place in (0, 1):
            other = values[1 - place]
            if is_constant(place, neutral):
                return other
            if operation == "mul" and is_constant(place, -1.0):
                return -other
    elif (operation == "div" and is_constant(1, 1.0)) or (
        operation == "sub" and is_constant(1, 0.0)
    ):
        return values[0]
    elif operation == "where" and values[1].number == values[2].number:
        varying = nodes[values[0].number].axes | values[1].axes
        if varying == values[1].axes:
            return values[1]
    return builder.node(operation, _numbers(values), static, dtype=dtype)


class Value(NoNumber):
    """A number at each place of the row space, or one for each row or each column.

    Attributes:
      axes: the dimensions along which it varies: ROWS | COLUMNS.
      kind: "float", "int" or "bool".
    """

    __slots__ = ("builder", "number")
    __hash__ = object.__hash__

    def __init__(self, builder: Builder, number: int) -> None:
        self.builder = builder
        self.number = number

    @property
    def axes(self) -> int:
        return self.builder.nodes[self.number].axes

    @property
    def kind(self) -> str:
        return self.builder.nodes[self.number].dtype

    def __add__(self, other: Any) -> Value:
        return self.builder.apply("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.builder.apply("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.builder.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.builder.apply("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.builder.apply("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.builder.apply("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.builder.apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.builder.apply("div", other, self)

    def __neg__(self) -> Value:
        return self.builder.apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return self.builder.apply("abs", self)

    def __pow__(self, exponent: Any) -> Value:
        """x**n by squaring: x**2 is x·x, x**3 (x·x)·x, x**4 (x·x)·(x·x); x**-n is 1/x**n.

        x**0 is 1 for every x, as in NumPy.
        """
        is_number = isinstance(exponent, numbers.Real) and not isinstance(exponent, bool)
        if not is_number or exponent % 1 != 0:
            raise refuse("only integer powers: write bl.sqrt(x), or bl.exp(p * bl.log(x))")
        exponent = int(exponent)
        count = abs(exponent)
        if count == 0:
            return self.builder.constant(1 if self.kind == "int" else 1.0)
        power = self
        for bit in bin(count)[3:]:
            power = power * power
            if bit == "1":
                power = power * self
        return power if exponent > 0 else 1.0 / power

    def __lt__(self, other: Any) -> Value:
        return self.builder.apply("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return self.builder.apply("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.builder.apply("lt", other, self)

    def __ge__(self, other: Any) -> Value:
        return self.builder.apply("le", other, self)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self.builder.apply("eq", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self.builder.apply("ne", self, other)

    def __and__(self, other: Any) -> Value:
        return self.builder.apply("and", self, other)

    def __rand__(self, other: Any) -> Value:
        return self.builder.apply("and", other, self)

    def __or__(self, other: Any) -> Value:
        return self.builder.apply("or", self, other)

    def __ror__(self, other: Any) -> Value:
        return self.builder.apply("or", other, self)

    def __invert__(self) -> Value:
        return self.builder.apply("not", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        """Arithmetic with a NumPy number on the left; all other NumPy functions are refused."""
        operation = _OF_NUMPY.get(ufunc.__name__)
        if operation is None or method != "__call__" or kwargs:
            self.__array__()
        return self.builder.apply(operation, *inputs)

    def __repr__(self) -> str:
        varies = {0: "", ROWS: " per row", COLUMNS: " per column", FULL: ""}[self.axes]
        return f"<{self.kind}{varies}>"


class Visible(Value):
    """A value in some columns of each row: `bl.visible`.

    Attributes:
      extent: a truth value, true in these columns.
    """

    __slots__ = ("extent",)

    def __init__(self, builder: Builder, number: int, extent: Value) -> None:
        super().__init__(builder, number)
        self.extent = extent


def shown(value: Value, hidden: float) -> Value:
    """Returns the value, and the number `hidden` in its hidden columns."""
    if not isinstance(value, Visible):
        return value
    builder = value.builder
    plain = builder.floating(Value(builder, value.number))
    return builder.apply("where", value.extent, plain, hidden)


def builder_of(*arguments: Any) -> Builder:
    """Returns the builder of the program being traced, from the values among the arguments."""
    for argument in arguments:
        if isinstance(argument, Value):
            return argument.builder
    active: Builder | None = current()
    if active is None:
        raise refuse("bridge.lang's functions work inside a declaration: see bridge.op")
    return active
