"""`matmul`, `linear` and their shapes, for both frameworks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from bridge.catalogue.checks import check_each, optional, word
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays
from bridge.ops.product import NO_TENSOR_CORES, ProductParams, Shape, fits_tensor_cores

_CHECKS = {"bits": optional(word(("portable", "device")))}


class Places(Protocol):
    """A framework's answers about the memory of arrays."""

    def is_on_cpu(self, x: Any) -> bool:
        """Returns True if x is known to be in the memory of a CPU."""


class Primitives(Places, Protocol):
    """A framework's product and changes of shape."""

    def product(self, a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
        """Returns the product of operands with as many batch dimensions each."""

    def reshaped(self, x: Any, shape: Shape) -> Any:
        """Returns x in another shape."""

    def joins_rows(self, x: Any) -> bool:
        """Returns True if all dimensions but the last can become one without a copy."""


def _words(x: Any) -> str:
    return str(list(x.shape))


def _promoted(function: str, arrays: Arrays, **operands: Any) -> str:
    present = {name: arrays.dtype_of(x) for name, x in operands.items() if x is not None}
    for name, dtype in present.items():
        if dtype not in FLOATING:
            raise TypeError(
                f"{function}: {name} has dtype {dtype}, expected one of {', '.join(FLOATING)}"
            )
    return promote(*present.values())


def check_word(function: str, bits: Any) -> None:
    """Checks the word for the bits of a product.

    Raises:
      ValueError: another word.
    """
    check_each(_CHECKS, function, bits=bits)


def check_bits(
    function: str, places: Places, bits: Any, result: str, **dtypes: tuple[Any, str]
) -> None:
    """Checks the word for the bits of a product of two arrays, given by name with their dtypes.

    Args:
      result: the dtype of the result, which is float64 if a bias is.

    Raises:
      ValueError: another word, or arrays that tensor cores do not take.
    """
    check_word(function, bits)
    if bits != "device":
        return
    (one, (x, of_x)), (two, (_, of_y)) = dtypes.items()
    if not fits_tensor_cores(of_x, of_y, result):
        raise ValueError(
            f"{function}: bits is 'device' with {one} of {of_x}, {two} of {of_y} and a result of "
            f"{result}, expected two of float16 or two of bfloat16 and a result of 16 or 32 bits, "
            "or bits 'portable' or None"
        )
    if places.is_on_cpu(x):
        raise ValueError(f"{function}: {NO_TENSOR_CORES}")


class Products:
    """Matrix products in one framework."""

    def __init__(self, arrays: Arrays, primitives: Primitives) -> None:
        self.arrays, self.primitives = arrays, primitives

    def matmul(self, a: Any, b: Any, bits: str | None) -> Any:
        """Returns the product, with the shapes of `numpy.matmul`."""
        a, b = self.arrays.checked("matmul", 2, a=a, b=b)
        a, b = self.arrays.autocast(a, b)
        dtype = _promoted("matmul", self.arrays, a=a, b=b)
        self._check_bits("matmul", bits, dtype, a=a, b=b)
        for name, x in (("a", a), ("b", b)):
            if x.ndim == 0:
                raise ValueError(f"matmul: {name} has no dimensions, expected at least one")
        left, right = a, b
        if a.ndim == 1:
            left = self.primitives.reshaped(a, (1, *a.shape))
        if b.ndim == 1:
            right = self.primitives.reshaped(b, (*b.shape, 1))
        batches = self._batches(left, right)
        if left.shape[-1] != right.shape[-2] or batches is None:
            raise ValueError(
                f"matmul: a has shape {_words(a)} and b {_words(b)}, expected [..., m, k] and "
                "[..., k, n] with batches that broadcast"
            )
        own = (left.shape[-2],) * (a.ndim > 1) + (right.shape[-1],) * (b.ndim > 1)
        return self._product(left, right, None, ProductParams(dtype, bits=bits), (*batches, *own))

    def linear(
        self, x: Any, weight: Any, bias: Any, bits: str | None, *, input_first: bool = False
    ) -> Any:
        """Returns x weightᵀ + bias, or x weight + bias for a weight `[in, out]`."""
        x, weight, bias = self.arrays.checked("linear", 2, x=x, weight=weight, bias=bias)
        x, weight, bias = self.arrays.autocast(x, weight, bias)
        dtype = _promoted("linear", self.arrays, x=x, weight=weight, bias=bias)
        self._check_bits("linear", bits, dtype, x=x, weight=weight)
        if weight.ndim != 2:
            raise ValueError(
                f"linear: weight has shape {_words(weight)}, expected [out, in], two dimensions"
            )
        features, own = weight.shape[::-1] if input_first else weight.shape
        if x.ndim == 0 or x.shape[-1] != own:
            raise ValueError(
                f"linear: x has shape {_words(x)}, expected {own} in the last dimension, as weight "
                f"has shape {_words(weight)}"
            )
        if bias is not None and tuple(bias.shape) != (features,):
            raise ValueError(
                f"linear: bias has shape {_words(bias)}, expected [{features}], as weight has "
                f"shape {_words(weight)}"
            )
        left = self.primitives.reshaped(x, (1, own)) if x.ndim == 1 else x
        params = ProductParams(dtype, transposed_b=not input_first, bits=bits)
        return self._product(left, weight, bias, params, (*x.shape[:-1], features))

    def _check_bits(self, function: str, bits: str | None, result: str, **given: Any) -> None:
        dtypes = {name: (x, self.arrays.dtype_of(x)) for name, x in given.items()}
        check_bits(function, self.primitives, bits, result, **dtypes)

    def _batches(self, a: Any, b: Any) -> Shape | None:
        """Returns the batch dimensions of the result, or None if they do not fit."""
        count = max(a.ndim, b.ndim) - 2
        found = []
        for one, two in zip(_padded(a, count), _padded(b, count), strict=True):
            if one != two and one != 1 and two != 1:
                return None
            found.append(two if one == 1 else one)
        return tuple(found)

    def _product(self, a: Any, b: Any, bias: Any, params: ProductParams, shape: Shape) -> Any:
        primitives = self.primitives
        if b.ndim == 2 and a.ndim > 2 and primitives.joins_rows(a):
            # All batches are rows of one product, which packs b once.
            a = primitives.reshaped(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        count = max(a.ndim, b.ndim) - 2
        if a.ndim != count + 2:
            a = primitives.reshaped(a, (*_padded(a, count), *a.shape[-2:]))
        if b.ndim != count + 2:
            b = primitives.reshaped(b, (*_padded(b, count), *b.shape[-2:]))
        return primitives.reshaped(primitives.product(a, b, bias, params), shape)


def _padded(x: Any, count: int) -> Sequence[Any]:
    """Returns `count` batch dimensions of x, the first of which are 1."""
    return (1,) * (count + 2 - x.ndim) + tuple(x.shape[:-2])
