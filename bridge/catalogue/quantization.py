"""Quantised rows: numbers of 8 or 4 bits, and a scale for each row or block of its columns."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

from bridge import lang as bl
from bridge.catalogue import checks, four_bits
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.lang.dtypes import FLOATING, LARGEST, OF_8_BITS
from bridge.ops.arrays import Arrays

LEAST_SCALE = 2.0**-126  # the smallest normal float32
_LEAST_POWER = 2.0**-127  # the smallest number of float8_e8m0fnu


class Format(NamedTuple):
    """The layout of quantised rows.

    Attributes:
      dtype: of the values; scale_dtype: of the scales.
      block: the columns that share a scale; None for a whole row.
    """

    dtype: str
    scale_dtype: str
    block: int | None


FORMATS = {
    "fp8_row": Format("float8_e4m3fn", "float32", None),
    "int8_row": Format("int8", "float32", None),
    "fp8_block128": Format("float8_e4m3fn", "float32", 128),
    "mxfp8": Format("float8_e4m3fn", "float8_e8m0fnu", 32),
    "nvfp4": Format(four_bits.NAME, "float8_e4m3fn", 16),
}
_LEAST_FLOAT8 = 2.0**-9  # the smallest positive number of float8_e4m3fn

_format_name = checks.word(FORMATS)
CHECKS = {"name": _format_name}


@dataclass(frozen=True)
class Quantization:
    """The format of quantised rows.

    | name | values | scales |
    | --- | --- | --- |
    | `"fp8_row"` | float8_e4m3fn | float32, one a row: the largest \\|x\\| / 448 |
    | `"int8_row"` | int8 | float32, one a row: the largest \\|x\\| / 127 |
    | `"fp8_block128"` | float8_e4m3fn | float32, one for 128 columns: the largest \\|x\\| / 448 |
    | `"mxfp8"` | float8_e4m3fn | float8_e8m0fnu, one for 32 columns: a power of 2 |
    | `"nvfp4"` | float4_e2m1fn, in pairs | float8_e4m3fn, one for 16: the largest \\|x\\| / 6 |

    Attributes:
      name: the name of the format.

    Raises:
      ValueError: for another name.
    """

    name: str

    def __post_init__(self) -> None:
        _format_name("Quantization", "name", self.name)

    @property
    def dtype(self) -> str:
        """The name of the dtype of the values; JAX has uint8 for float4_e2m1fn_x2."""
        return FORMATS[self.name].dtype

    @property
    def scale_dtype(self) -> str:
        """The name of the dtype of the scales."""
        return FORMATS[self.name].scale_dtype

    @property
    def block(self) -> int | None:
        """The number of columns that share a scale; None for a whole row."""
        return FORMATS[self.name].block


def _scale_of(x: Any, form: Format, global_scale: Any = None) -> Any:
    """Returns the scale of a row or of each block, as it will be read back.

    It is positive, so that a row of zeros is 0. A power of two is the one of the OCP's
    specification: 2^(floor(log2 of the largest |x|) - 8), with which values beyond 448 saturate.
    """
    size = bl.abs(x)
    if form.dtype == four_bits.NAME:
        largest = bl.block_max(size, 16)
        scale = _whole(largest / four_bits.LARGEST, global_scale, lambda a, b: a / b)
        scale = bl.maximum(bl.rounded(scale, form.scale_dtype), _LEAST_FLOAT8)
        return bl.where(largest < math.inf, scale, math.nan)  # a block with an infinity or a NaN
    largest = bl.max(size) if form.block is None else bl.block_max(size, form.block)
    if form.scale_dtype == "float8_e8m0fnu":
        power = bl.binade(largest) * 2.0**-8  # the largest power of two of float8_e4m3fn is 2^8
        return bl.maximum(power, _LEAST_POWER)
    return bl.maximum(bl.rounded(largest / LARGEST[form.dtype], "float32"), LEAST_SCALE)


def _whole(scale: Any, global_scale: Any, join: Any = operator.mul) -> Any:
    """Returns the scale joined with that of the whole array, by default their product."""
    return scale if global_scale is None else join(scale, global_scale)


def quantised(x: Any, name: str, global_scale: Any = None) -> tuple[Any, Any]:
    """Returns the values and the scales of a row, to be returned by an op.

    Numbers of 4 bits are codes, to be joined by `in_pairs`.
    """
    form = FORMATS[name]
    scale = _scale_of(x, form, global_scale)
    near = x / _whole(scale, global_scale)
    if form.dtype == four_bits.NAME:
        values = bl.stored(four_bits.code_of(near), "int8")
    else:
        values = bl.stored(near, form.dtype)
    return values, bl.stored(scale, form.scale_dtype)


def in_pairs(arrays: Arrays, name: str, results: Any) -> tuple[Any, ...]:
    """Returns the results of an op; two numbers of 4 bits are joined in a byte."""
    values, *others = results
    is_pair = FORMATS[name].dtype == four_bits.NAME
    return arrays.packed(values) if is_pair else values, *others


@declared(checks=CHECKS)
@named("quantize")
def quantize(x: bl.Full, global_scale: bl.PerRow | None = None, *, name: str = "fp8_row"):
    return quantised(x, name, global_scale)


@declared(checks=CHECKS)
@named("fake_quantize")
def fake_quantize(x: bl.Full, global_scale: bl.PerRow | None = None, *, name: str = "fp8_row"):
    form = FORMATS[name]
    scale = _whole(_scale_of(x, form, global_scale), global_scale)
    is_pair = form.dtype == four_bits.NAME
    near = four_bits.nearest(x / scale) if is_pair else bl.rounded(x / scale, form.dtype)
    # The derivatives of the quotient and of the product would round a gradient twice.
    return bl.like(bl.straight_through(near * scale, x), x)  # type: ignore[arg-type]


@declared()
@named("dequantize")
def dequantize(values: bl.Quantized, scales: bl.Scale, *, dtype: str = "float32"):
    return bl.stored(values * scales, dtype)


@declared()
@named("dequantize")
def dequantize_codes(
    values: bl.Quantized,
    scales: bl.Scale,
    global_scale: bl.PerRow | None = None,
    *,
    dtype: str = "float32",
):
    return bl.stored(four_bits.number_of(values) * _whole(scales, global_scale), dtype)


class Quantizer:
    """`quantize`, `fake_quantize` and `dequantize` in one framework.

    A block of columns is a row of `dequantize`, so blocks may have any number of columns there.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        ops = quantize, fake_quantize, dequantize, dequantize_codes
        self._quantize, self._fake_quantize, *others = map(arrays.entry, ops)
        self._dequantize, self._dequantize_codes = others

    def quantize(self, x: Any, quantization: Any, global_scale: Any) -> tuple[Any, ...]:
        form = checked("quantize", quantization)
        operands = self.arrays.constant(x), self._one("quantize", form, x, global_scale)
        return in_pairs(self.arrays, form.name, self._quantize.run(operands, None, form.name))

    def fake_quantize(self, x: Any, quantization: Any, global_scale: Any) -> Any:
        form = checked("fake_quantize", quantization)
        operands = x, self._one("fake_quantize", form, x, global_scale)
        return self._fake_quantize.run(operands, None, form.name)

    def _one(self, function: str, form: Quantization, x: Any, global_scale: Any) -> Any:
        """Returns the scale of the whole array as a constant, once for each row of x."""
        if global_scale is None:
            return None
        if form.dtype != four_bits.NAME:
            raise ValueError(
                f"{function}: global_scale is given, but {form.name!r} has none, expected 'nvfp4'"
            )
        return self.arrays.constant(self._number(function, x, shape_of(x)[:-1], global_scale))

    def _number(self, function: str, like: Any, rows: Any, global_scale: Any) -> Any:
        shape = shape_of(global_scale)
        if any(size != 1 for size in shape) or self.arrays.dtype_of(global_scale) not in FLOATING:
            raise ValueError(
                f"{function}: global_scale has shape {list(shape)} and dtype "
                f"{self.arrays.dtype_of(global_scale)}, expected one floating number"
            )
        number = self.arrays.cast(global_scale.reshape(()), "float32")
        return self.arrays.zeros(like, rows, "float32") + number

    def dequantize(self, values: Any, scales: Any, dtype: Any, global_scale: Any) -> Any:
        if (codes := self.arrays.unpacked(values)) is not None:
            return self._of_pairs(codes, scales, dtype, global_scale)
        if global_scale is not None:
            raise ValueError(
                "dequantize: global_scale is given, but values has dtype "
                f"{self.arrays.dtype_of(values)}, expected pairs of float4_e2m1fn"
            )
        return self._product(values, scales, dtype)

    def _of_pairs(self, codes: Any, scales: Any, dtype: Any, global_scale: Any) -> Any:
        number = global_scale
        if number is not None:
            number = self._number("dequantize", codes, shape_of(scales), number)
        return self._product(codes, scales, dtype, number, self._dequantize_codes)

    def _product(
        self, values: Any, scales: Any, dtype: Any, number: Any = None, entry: Any = None
    ) -> Any:
        if dtype not in FLOATING:
            raise ValueError(f"dequantize: dtype is {dtype}, expected one of {', '.join(FLOATING)}")
        for name, array, allowed in (
            ("values", values, OF_8_BITS),
            ("scales", scales, (*FLOATING, *OF_8_BITS)),
        ):
            if self.arrays.dtype_of(array) not in allowed:
                raise TypeError(
                    f"dequantize: {name} has dtype {self.arrays.dtype_of(array)}, expected one of "
                    f"{', '.join(allowed)}"
                )
        shape, of_scales = shape_of(values), shape_of(scales)
        if shape and len(of_scales) == len(shape):
            count, columns = of_scales[-1], shape[-1]
            if of_scales[:-1] != shape[:-1] or columns % max(count, 1) or (columns and not count):
                raise ValueError(
                    f"dequantize: scales has shape {list(of_scales)}, expected one for each row or "
                    f"for each block of columns: values has shape {list(shape)}"
                )
            values = values.reshape(*of_scales, columns // max(count, 1))
        operands = (values, scales) if entry is None else (values, scales, number)
        return (entry or self._dequantize).run(operands, None, dtype).reshape(shape)


def checked(function: str, quantization: Any, name: str = "quantization") -> Quantization:
    """Checks the argument `name` of a public function."""
    if not isinstance(quantization, Quantization):
        raise TypeError(
            f"{function}: {name} is {quantization!r}, expected a bridge.Quantization, such "
            "as bridge.Quantization('mxfp8')"
        )
    return quantization
