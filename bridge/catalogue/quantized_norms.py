"""Norms whose result is quantised before it reaches memory.

A format of rows takes one program. In a format of blocks, a first program computes the numbers that
a row needs, and a second one treats each block as a row.
"""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue import norms
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.quantization import CHECKS, blocks, checked, quantised
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays


def _sum(x: Any, residual: Any, dtype: str, like: str) -> tuple[Any, tuple[Any, ...]]:
    """Returns h, and h as a further result if it is a sum."""
    if residual is None:
        return x, ()
    h = bl.rounded(x + residual, dtype)
    return h, (bl.like(h, x if like == "x" else residual),)


def _layer(h: Any, mean: Any, correction: Any, r: Any, weight: Any, bias: Any) -> Any:
    return norms.shifted((h - mean - correction) * r, weight, bias)


@declared(checks={**norms.RMS_CHECKS, **CHECKS}, needs=norms.RMS_NEEDS)
@named("rms_norm")
def rms_rows(
    x: bl.Full,
    weight: bl.Row | None = None,
    residual: bl.Full | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    dtype: str = "float32",
    of_sum: str = "float32",
    like: str = "x",
    name: str = "fp8_row",
):
    h, others = _sum(x, residual, of_sum, like)
    y = norms.scaled(h * norms.inverse(h, eps), norms.whole(weight, offset))
    return *quantised(bl.rounded(y, dtype), name), *others


@declared(checks={**norms.LAYER_CHECKS, **CHECKS})
@named("layer_norm")
def layer_rows(
    x: bl.Full,
    weight: bl.Row | None = None,
    bias: bl.Row | None = None,
    residual: bl.Full | None = None,
    *,
    eps: float = 1e-5,
    dtype: str = "float32",
    of_sum: str = "float32",
    like: str = "x",
    name: str = "fp8_row",
):
    h, others = _sum(x, residual, of_sum, like)
    y = _layer(h, *norms.moments(h, eps), weight, bias)
    return *quantised(bl.rounded(y, dtype), name), *others


@declared(checks={"eps": norms.RMS_CHECKS["eps"]})
@named("rms_norm")
def rms_numbers(
    x: bl.Full,
    residual: bl.Full | None = None,
    *,
    eps: float = 1e-6,
    of_sum: str = "float32",
    like: str = "x",
):
    h, others = _sum(x, residual, of_sum, like)
    return norms.inverse(h, eps), *others


@declared(checks=norms.LAYER_CHECKS)
@named("layer_norm")
def layer_numbers(
    x: bl.Full,
    residual: bl.Full | None = None,
    *,
    eps: float = 1e-5,
    of_sum: str = "float32",
    like: str = "x",
):
    h, others = _sum(x, residual, of_sum, like)
    return *norms.moments(h, eps), *others


@declared(checks={"offset": norms.RMS_CHECKS["offset"], **CHECKS})
@named("rms_norm")
def rms_blocks(
    h: bl.Full,
    r: bl.Table,
    weight: bl.Table | None = None,
    *,
    offset: float = 0.0,
    dtype: str = "float32",
    name: str = "mxfp8",
):
    y = norms.scaled(h * r, norms.whole(weight, offset))
    return quantised(bl.rounded(y, dtype), name)


@declared(checks=CHECKS)
@named("layer_norm")
def layer_blocks(
    h: bl.Full,
    mean: bl.Table,
    correction: bl.Table,
    r: bl.Table,
    weight: bl.Table | None = None,
    bias: bl.Table | None = None,
    *,
    dtype: str = "float32",
    name: str = "mxfp8",
):
    y = _layer(h, mean, correction, r, weight, bias)
    return quantised(bl.rounded(y, dtype), name)


class QuantizedNorms:
    """`rms_norm` and `layer_norm` with `quantize=` in one framework.

    The result is rounded to the dtype that the norm alone would return, and then quantised: the
    bytes are those of two calls. All results are constants to derivatives.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        ops = rms_rows, rms_numbers, rms_blocks, layer_rows, layer_numbers, layer_blocks
        self._entries = {op: arrays.entry(op) for op in ops}

    def rms_norm(
        self, x: Any, weight: Any, residual: Any, eps: Any, offset: Any, quantize: Any
    ) -> tuple[Any, ...]:
        operands = {"x": x, "weight": weight, "residual": residual}
        x, weight, residual = self.arrays.checked("rms_norm", 1, **operands)
        form = checked("rms_norm", quantize, "quantize")
        x, residual, *vectors, of_sum, dtype = self._prepared(x, residual, weight)
        # The op of rows has the words for an offset that has no weight.
        if form.block is None or (weight is None and offset != 0):
            static = eps, offset, dtype, *of_sum, form.name
            return self._run(rms_rows, (x, *vectors, residual), *static)
        numbers = rms_numbers, (x, residual), eps, of_sum
        return self._in_blocks(rms_blocks, numbers, vectors, (offset, dtype), form)

    def layer_norm(
        self, x: Any, weight: Any, bias: Any, residual: Any, eps: Any, quantize: Any
    ) -> tuple[Any, ...]:
        operands = {"x": x, "weight": weight, "bias": bias, "residual": residual}
        x, weight, bias, residual = self.arrays.checked("layer_norm", 1, **operands)
        form = checked("layer_norm", quantize, "quantize")
        x, residual, *vectors, of_sum, dtype = self._prepared(x, residual, weight, bias)
        if form.block is None:
            static = eps, dtype, *of_sum, form.name
            return self._run(layer_rows, (x, *vectors, residual), *static)
        numbers = layer_numbers, (x, residual), eps, of_sum
        return self._in_blocks(layer_blocks, numbers, vectors, (dtype,), form)

    def _prepared(self, x: Any, residual: Any, *vectors: Any) -> tuple[Any, ...]:
        """Returns the operands without derivatives, the dtype of the sum and that of the norm."""
        of_sum: tuple[str, str] = ("float32", "x")
        if residual is not None:
            x, residual, *found = norms.summands(self.arrays, x, residual)
            of_sum = (found[0], found[1])
        given = [each for each in (x, residual, *vectors) if each is not None]
        dtypes = [self.arrays.dtype_of(each) for each in given]
        dtype = promote(*dtypes) if all(each in FLOATING for each in dtypes) else "float32"
        operands = [None if o is None else self.arrays.constant(o) for o in (x, residual, *vectors)]
        return *operands, of_sum, dtype

    def _run(self, op: Any, operands: tuple[Any, ...], *static: Any) -> tuple[Any, ...]:
        return self._entries[op].run(operands, None, *static)  # type: ignore[no-any-return]

    def _in_blocks(
        self, op: Any, first: Any, vectors: list[Any], static: tuple[Any, ...], form: Any
    ) -> tuple[Any, ...]:
        """Runs both programs.

        Args:
          op: the second program.
          first: the first program, its operands, eps, and the dtype of the sum.
          vectors: weight, and bias.
          static: of the second program; the last one is the dtype of the norm.
        """
        numbers_of, (x, residual), eps, of_sum = first
        shape, name = shape_of(x), op.declaration.name
        blocks(name, "x", x, form.block)
        count = len(op.declaration.parameters) - 1 - len(vectors)
        for key, vector in zip(("weight", "bias"), vectors, strict=False):
            if vector is not None and shape_of(vector) != shape[-1:]:
                raise ValueError(
                    f"{name}: {key} has shape {list(shape_of(vector))}, expected "
                    f"{list(shape[-1:])}: x has shape {list(shape)}"
                )
        found = self._run(numbers_of, (x, residual), eps, *of_sum)
        numbers, sums = found[:count], found[count:]
        whole = sums[0] if sums else x
        if static[-1] == "float64" and self.arrays.dtype_of(whole) != "float64":
            # The arithmetic follows from all operands, weights included.
            whole = self.arrays.cast(whole, "float64")
            numbers = self._run(numbers_of, (whole, None), eps, "float64", "x")
        h = blocks(name, "x", whole, form.block)
        tables = [number.reshape(*shape_of(number), 1, 1) for number in numbers]
        tables += [None if v is None else blocks(name, "x", v, form.block) for v in vectors]
        values, scales = self._run(op, (h, *tables), *static, form.name)
        return values.reshape(shape), scales, *sums
