"""Quantised rows: numbers of 8 bits, and a scale for each row or for each block of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from bridge import lang as bl
from bridge.catalogue import checks
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
}
_MISSING = {"nvfp4": "JAX has no dtype of two 4-bit numbers in a byte"}


def _format_name(function: str, name: str, value: Any) -> str:
    if isinstance(value, str) and value in _MISSING:
        raise ValueError(
            f"{function}: {name} is {value!r}, expected one of {', '.join(map(repr, FORMATS))}: "
            f"{_MISSING[value]}"
        )
    return checks.word(FORMATS)(function, name, value)


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
        """The name of the dtype of the values."""
        return FORMATS[self.name].dtype

    @property
    def scale_dtype(self) -> str:
        """The name of the dtype of the scales."""
        return FORMATS[self.name].scale_dtype

    @property
    def block(self) -> int | None:
        """The number of columns that share a scale; None for a whole row."""
        return FORMATS[self.name].block


def _scale_of(x: Any, form: Format) -> Any:
    """Returns the scale of a row or of each block, as it will be read back.

    It is positive, so that a row of zeros is 0. A power of two is the one of the OCP's
    specification: 2^(floor(log2 of the largest |x|) - 8), with which values beyond 448 saturate.
    """
    size = bl.abs(x)
    largest = bl.max(size) if form.block is None else bl.block_max(size, form.block)
    if form.scale_dtype == "float8_e8m0fnu":
        power = bl.binade(largest) * 2.0**-8  # the largest power of two of float8_e4m3fn is 2^8
        return bl.maximum(power, _LEAST_POWER)
    return bl.maximum(bl.rounded(largest / LARGEST[form.dtype], "float32"), LEAST_SCALE)


def quantised(x: Any, name: str) -> tuple[Any, Any]:
    """Returns the values and the scales of a row, to be returned by an op."""
    form = FORMATS[name]
    scale = _scale_of(x, form)
    return bl.stored(x / scale, form.dtype), bl.stored(scale, form.scale_dtype)


@declared(checks=CHECKS)
@named("quantize")
def quantize(x: bl.Full, *, name: str = "fp8_row"):
    return quantised(x, name)


@declared(checks=CHECKS)
@named("fake_quantize")
def fake_quantize(x: bl.Full, *, name: str = "fp8_row"):
    form = FORMATS[name]
    scale = _scale_of(x, form)
    # The derivatives of the quotient and of the product would round a gradient twice.
    return bl.straight_through(bl.rounded(x / scale, form.dtype) * scale, x)


@declared()
@named("dequantize")
def dequantize(values: bl.Quantized, scales: bl.Scale, *, dtype: str = "float32"):
    return bl.stored(values * scales, dtype)


class Quantizer:
    """`quantize`, `fake_quantize` and `dequantize` in one framework.

    A block of columns is a row of `dequantize`, so blocks may have any number of columns there.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        ops = quantize, fake_quantize, dequantize
        self._quantize, self._fake_quantize, self._dequantize = map(arrays.entry, ops)

    def quantize(self, x: Any, quantization: Any) -> tuple[Any, Any]:
        form = checked("quantize", quantization)
        return self._quantize.run((self.arrays.constant(x),), None, form.name)  # type: ignore[no-any-return]

    def fake_quantize(self, x: Any, quantization: Any) -> Any:
        form = checked("fake_quantize", quantization)
        return self._fake_quantize.run((x,), None, form.name)

    def dequantize(self, values: Any, scales: Any, dtype: Any) -> Any:
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
        return self._dequantize.run((values, scales), None, dtype).reshape(shape)


def checked(function: str, quantization: Any, name: str = "quantization") -> Quantization:
    """Checks the argument `name` of a public function."""
    if not isinstance(quantization, Quantization):
        raise TypeError(
            f"{function}: {name} is {quantization!r}, expected a bridge.Quantization, such "
            "as bridge.Quantization('mxfp8')"
        )
    return quantization
