"""Gated units and the squared ReLU whose result is quantised in the same pass."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.gates import CHECKS as OF_GATES
from bridge.catalogue.gates import Glu, gated, one_a_row, plus, squared_relu
from bridge.catalogue.quantization import CHECKS as OF_FORMATS
from bridge.catalogue.quantization import blocks as in_blocks
from bridge.catalogue.quantization import checked, quantised
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays

_CHECKS = {**OF_GATES, **OF_FORMATS}


def _quantised(
    gate: Any,
    up: Any,
    bias: Any,
    up_bias: Any,
    weight: Any,
    activation: str,
    limit: float | None,
    linear_offset: float,
    dtype: str,
    name: str,
) -> Any:
    first, second = plus(gate, bias), plus(up, up_bias)
    y = gated(first, second, weight, activation, limit, linear_offset)
    return quantised(bl.rounded(y, dtype), name)


@declared(checks=_CHECKS)
@named("glu")
def glu_rows(
    gate: bl.Full,
    up: bl.Full,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
    dtype: str = "float32",
    name: str = "fp8_row",
):
    how = activation, limit, linear_offset, dtype, name
    return _quantised(gate, up, bias, up_bias, weight, *how)


@declared(checks=_CHECKS)
@named("glu")
def packed_glu_rows(
    gate: bl.Halves,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
    dtype: str = "float32",
    name: str = "fp8_row",
):
    first, second = gate
    how = activation, limit, linear_offset, dtype, name
    return _quantised(first, second, bias, up_bias, weight, *how)


@declared(checks=_CHECKS)
@named("glu")
def paired_glu_rows(
    gate: bl.Pairs,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
    dtype: str = "float32",
    name: str = "fp8_row",
):
    first, second = gate
    how = activation, limit, linear_offset, dtype, name
    return _quantised(first, second, bias, up_bias, weight, *how)


@declared(checks=_CHECKS)
@named("glu")
def glu_blocks(
    gate: bl.Full,
    up: bl.Full,
    bias: bl.Table | None = None,
    up_bias: bl.Table | None = None,
    weight: bl.Table | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
    dtype: str = "float32",
    name: str = "mxfp8",
):
    how = activation, limit, linear_offset, dtype, name
    return _quantised(gate, up, bias, up_bias, weight, *how)


@declared(checks=_CHECKS)
@named("glu")
def paired_glu_blocks(
    gate: bl.Pairs,
    bias: bl.Table | None = None,
    up_bias: bl.Table | None = None,
    weight: bl.Table | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
    dtype: str = "float32",
    name: str = "mxfp8",
):
    first, second = gate
    how = activation, limit, linear_offset, dtype, name
    return _quantised(first, second, bias, up_bias, weight, *how)


@declared(checks=OF_FORMATS)
@named("squared_relu")
def squared_relu_rows(
    x: bl.Full,
    weight: bl.PerRow | None = None,
    *,
    dtype: str = "float32",
    name: str = "fp8_row",
):
    y = squared_relu.declaration.function(x, weight)
    return quantised(bl.rounded(y, dtype), name)


@declared(checks=OF_FORMATS)
@named("squared_relu")
def squared_relu_blocks(
    x: bl.Full,
    weight: bl.Table | None = None,
    *,
    dtype: str = "float32",
    name: str = "mxfp8",
):
    y = squared_relu.declaration.function(x, weight)
    return quantised(bl.rounded(y, dtype), name)


def _of_rows(weight: Any) -> Any:
    """Returns one number for each row as a table over the blocks of rows."""
    return None if weight is None else weight.reshape(*shape_of(weight), 1, 1)


class QuantizedGates:
    """`glu` and `squared_relu` with `quantize=` in one framework, under a public name.

    The result is rounded to the dtype that the op alone would return, and then quantised: the bytes
    are those of two calls. All results are constants to derivatives.
    """

    def __init__(self, arrays: Arrays, name: str) -> None:
        self.arrays, self.name = arrays, name
        self._rows = Glu(arrays, name, (glu_rows, packed_glu_rows, paired_glu_rows))
        ops = glu_blocks, paired_glu_blocks, squared_relu_rows, squared_relu_blocks
        self._entries = {op: arrays.entry(op, name) for op in ops}

    def glu(
        self, operands: Any, quantize: Any, static: tuple[Any, ...], interleaved: Any, blocks: Any
    ) -> tuple[Any, Any]:
        form = checked(self.name, quantize, "quantize")
        self.arrays.known(self.name, "interleaved", interleaved, "True or False")
        if type(blocks) is not int or blocks != 1:
            raise ValueError(
                f"{self.name}: blocks is {blocks} and quantize is given, expected one of both"
            )
        operands, dtype = self._prepared(operands)
        static = *static, dtype, form.name
        if form.block is None:
            entry, operands = self._rows.form(operands, interleaved)
            return entry.run(operands, None, *static)  # type: ignore[no-any-return]
        # The checks of arguments are those of a format of rows.
        entry, (gate, *others, bias, up_bias, weight) = self._rows.form(operands, interleaved)
        rows, columns = shape_of(gate)[:-1], shape_of(gate)[-1:] or (0,)
        has_shapes = shape_of(others[0]) == (*rows, *columns) if others else columns[0] % 2 == 0
        if not shape_of(gate) or not has_shapes:
            return entry.run((gate, *others, bias, up_bias, weight), None, *static)  # type: ignore[no-any-return]
        d = columns[0] if others else columns[0] // 2
        block = form.block
        if d % block:
            raise ValueError(
                f"{self.name}: the result has {d} columns, expected a multiple of {block}, the "
                "columns of a block"
            )
        for key, vector in (("bias", bias), ("bias", up_bias)):
            if vector is not None and shape_of(vector) != (d,):
                raise ValueError(
                    f"{self.name}: {key} has shape {list(shape_of(vector))}, expected [{d}]: gate "
                    f"has shape {list(shape_of(gate))}"
                )
        if weight is not None and shape_of(weight) != rows:
            raise ValueError(
                f"{self.name}: weight has shape {list(shape_of(weight))}, expected {list(rows)}: "
                f"gate has shape {list(shape_of(gate))}"
            )
        tables = [None if v is None else v.reshape(d // block, block) for v in (bias, up_bias)]
        tables.append(_of_rows(weight))
        if not others and interleaved:
            pairs = gate.reshape(*rows, d // block, 2 * block)
            found = self._entries[paired_glu_blocks].run((pairs, *tables), None, *static)
        else:
            gate, up = (gate, *others) if others else self.arrays.parts(gate, (d, d))
            parts = [in_blocks(self.name, "gate", part, block) for part in (gate, up)]
            found = self._entries[glu_blocks].run((*parts, *tables), None, *static)
        return found[0].reshape(*rows, d), found[1]

    def squared_relu(self, x: Any, weight: Any, quantize: Any) -> tuple[Any, Any]:
        form = checked(self.name, quantize, "quantize")
        (x, weight), dtype = self._prepared((x, weight))
        weight = one_a_row(x, weight)
        if form.block is None:
            op, operands = squared_relu_rows, (x, weight)
        else:
            shape = shape_of(x)
            if weight is not None and shape_of(weight) != shape[:-1]:
                raise ValueError(
                    f"{self.name}: weight has shape {list(shape_of(weight))}, expected "
                    f"{list(shape[:-1])}: x has shape {list(shape)}"
                )
            op = squared_relu_blocks
            operands = in_blocks(self.name, "x", x, form.block), _of_rows(weight)
        values, scales = self._entries[op].run(operands, None, dtype, form.name)
        return values.reshape(shape_of(x)), scales

    def _prepared(self, operands: Any) -> tuple[list[Any], str]:
        """Returns the operands without derivatives, and the dtype of the op alone."""
        dtypes = [self.arrays.dtype_of(o) for o in operands if o is not None]
        dtype = promote(*dtypes) if all(each in FLOATING for each in dtypes) else "float32"
        return [None if o is None else self.arrays.constant(o) for o in operands], dtype
