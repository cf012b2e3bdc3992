"""The table of dtypes, in the order of `bridge_dtype` in cpp/include/bridge/bridge.h."""

from __future__ import annotations

import math
from typing import NamedTuple


class Dtype(NamedTuple):
    """A dtype of arrays.

    Attributes:
      cpp: the C++ type of an element; bytes: its size.
      bits: the bits of a floating number's significand, of which one is not stored; else 0.
      least, beyond: the exponents of the smallest positive number, and of the first power of two
        out of range.
    """

    cpp: str
    bytes: int
    bits: int = 0
    least: int = 0
    beyond: int = 0

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return math.ldexp(1.0, 1 - self.bits)

    @property
    def smallest(self) -> float:
        return math.ldexp(1.0, self.least)

    @property
    def largest(self) -> float:
        return math.ldexp(2.0 - self.epsilon, self.beyond - 1)


DTYPES = {
    "float16": Dtype("math::float16", 2, 11, -24, 16),
    "bfloat16": Dtype("math::bfloat16", 2, 8, -133, 128),
    "float32": Dtype("float", 4, 24, -149, 128),
    "float64": Dtype("double", 8, 53, -1074, 1024),
    "bool": Dtype("uint8_t", 1),
    "uint8": Dtype("uint8_t", 1),
    "int64": Dtype("int64_t", 8),
    "uint32": Dtype("uint32_t", 4),
    "int8": Dtype("int8_t", 1),
    "int16": Dtype("int16_t", 2),
    "int32": Dtype("int32_t", 4),
    "uint16": Dtype("uint16_t", 2),
    "uint64": Dtype("uint64_t", 8),
    "float8_e4m3fn": Dtype("math::float8_e4m3fn", 1, 4, -9, 9),
    "float8_e5m2": Dtype("math::float8_e5m2", 1, 3, -16, 16),
    "float8_e8m0fnu": Dtype("math::float8_e8m0fnu", 1, 1, -127, 128),
}
NUMBERS = {name: number for number, name in enumerate(DTYPES)}
FLOATING = tuple(name for name, dtype in DTYPES.items() if dtype.bits and dtype.bytes > 1)
OF_8_BITS = ("int8", *(name for name, dtype in DTYPES.items() if dtype.bits and dtype.bytes == 1))
OF_16_BITS = tuple(name for name in FLOATING if DTYPES[name].bytes == 2)
# The largest numbers of 8-bit dtypes, which larger numbers become when they are stored.
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
OF_MASKS = ("bool", "uint8")
INTEGERS = tuple(sorted((n for n in DTYPES if "int" in n), key=lambda n: (n[0], DTYPES[n].bytes)))


def promote(*names: str) -> str:
    """Returns the dtype that holds every number of these dtypes.

    Both frameworks agree on it: the widest dtype, and float32 for float16 with bfloat16, neither of
    which holds the other.
    """
    distinct = set(names)
    if len(distinct) == 1:
        return names[0]
    return "float64" if "float64" in distinct else "float32"
