"""Norms whose result is quantised before it reaches memory."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue import norms
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.quantization import CHECKS, checked, in_pairs, quantised
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


class QuantizedNorms:
    """`rms_norm` and `layer_norm` with `quantize=` in one framework.

    The result is rounded to the dtype that the norm alone would return, and then quantised: the
    bytes are those of two calls. All results are constants to derivatives.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._entries = {op: arrays.entry(op) for op in (rms_rows, layer_rows)}

    def rms_norm(
        self, x: Any, weight: Any, residual: Any, eps: Any, offset: Any, quantize: Any
    ) -> tuple[Any, ...]:
        operands = {"x": x, "weight": weight, "residual": residual}
        x, weight, residual = self.arrays.checked("rms_norm", 1, **operands)
        form = checked("rms_norm", quantize, "quantize")
        x, residual, *vectors, of_sum, dtype = self._prepared(x, residual, weight)
        static = eps, offset, dtype, *of_sum, form.name
        return self._run(rms_rows, (x, *vectors, residual), *static)

    def layer_norm(
        self, x: Any, weight: Any, bias: Any, residual: Any, eps: Any, quantize: Any
    ) -> tuple[Any, ...]:
        operands = {"x": x, "weight": weight, "bias": bias, "residual": residual}
        x, weight, bias, residual = self.arrays.checked("layer_norm", 1, **operands)
        form = checked("layer_norm", quantize, "quantize")
        x, residual, *vectors, of_sum, dtype = self._prepared(x, residual, weight, bias)
        static = eps, dtype, *of_sum, form.name
        return self._run(layer_rows, (x, *vectors, residual), *static)

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
        return in_pairs(self.arrays, static[-1], self._entries[op].run(operands, None, *static))
