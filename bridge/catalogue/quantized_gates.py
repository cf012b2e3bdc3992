"""Gated units and the squared ReLU whose result is quantised in the same pass."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.gates import CHECKS as OF_GATES
from bridge.catalogue.gates import Glu, gated, one_a_row, plus, squared_relu
from bridge.catalogue.quantization import CHECKS as OF_FORMATS
from bridge.catalogue.quantization import checked, in_pairs, quantised
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


class QuantizedGates:
    """`glu` and `squared_relu` with `quantize=` in one framework, under a public name.

    The result is rounded to the dtype that the op alone would return, and then quantised: the bytes
    are those of two calls. All results are constants to derivatives.
    """

    def __init__(self, arrays: Arrays, name: str) -> None:
        self.arrays, self.name = arrays, name
        self._rows = Glu(arrays, name, (glu_rows, packed_glu_rows, paired_glu_rows))
        self._squared_relu = arrays.entry(squared_relu_rows, name)

    def glu(
        self, operands: Any, quantize: Any, static: tuple[Any, ...], interleaved: Any, blocks: Any
    ) -> tuple[Any, ...]:
        form = checked(self.name, quantize, "quantize")
        self.arrays.known(self.name, "interleaved", interleaved, "True or False")
        if type(blocks) is not int or blocks != 1:
            raise ValueError(
                f"{self.name}: blocks is {blocks} and quantize is given, expected one of both"
            )
        operands, dtype = self._prepared(operands)
        static = *static, dtype, form.name
        entry, operands = self._rows.form(operands, interleaved)
        return in_pairs(self.arrays, form.name, entry.run(operands, None, *static))

    def squared_relu(self, x: Any, weight: Any, quantize: Any) -> tuple[Any, ...]:
        form = checked(self.name, quantize, "quantize")
        (x, weight), dtype = self._prepared((x, weight))
        operands = x, one_a_row(x, weight)
        results = self._squared_relu.run(operands, None, dtype, form.name)
        return in_pairs(self.arrays, form.name, results)

    def _prepared(self, operands: Any) -> tuple[list[Any], str]:
        """Returns the operands without derivatives, and the dtype of the op alone."""
        dtypes = [self.arrays.dtype_of(o) for o in operands if o is not None]
        dtype = promote(*dtypes) if all(each in FLOATING for each in dtypes) else "float32"
        return [None if o is None else self.arrays.constant(o) for o in operands], dtype
