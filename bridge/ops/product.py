"""Matrix products: shapes, and derivatives, which are products again.

A product takes a `[*batches, m, k]`, b `[*batches, k, n]` and perhaps a bias `[n]` or `[*batches,
n]`. Either matrix may be stored transposed. All have the same number of batch dimensions; a size of
1 in an operand serves the whole batch. The derivatives towards such an operand add up over that
dimension: its index becomes the slow part of the contraction. So the gradient of a weight is one
product over all rows, and its bits do not depend on how rows are arranged in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.ops.definition import Call
from bridge.ops.sums import sum_of_rows


@dataclass(frozen=True)
class ProductParams:
    """Parameters of a product.

    Attributes:
      dtype: the result's, to which the sum is rounded once.
      transposed_a: a is stored as `[*batches, k, m]`.
      transposed_b: b is stored as `[*batches, n, k]`.
      skips_zeros: a term whose element of a is 0 is absent, even if its element of b is NaN. So
        the weight 0 of a hidden row of b hides all that it holds. A sum of -0 is 0 then.
      bits: "portable" for leaves that are chains of fused multiply-adds; "device" for those of
        tensor cores where they take the operands; None for these on CUDA alone.
    """

    dtype: str
    transposed_a: bool = False
    transposed_b: bool = False
    skips_zeros: bool = False
    bits: str | None = "portable"


Shape = tuple[int, ...]


class ArrayFunctions(Protocol):
    """The functions of a framework that the rules of products and of convolutions need."""

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        """Returns x with its dimensions in another order."""

    def reshaped(self, x: Any, shape: Shape) -> Any:
        """Returns x in another shape."""

    def apart(self, x: Any) -> Any:
        """Returns x as the result of an op of its own, with derivatives of its own."""

    def run(self, call: Call[Any]) -> Any:
        """Returns the only result of a call of an op."""


class Arrays(ArrayFunctions, Protocol):
    """The functions of a framework that the rules need."""

    def product(self, a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
        """Returns the product, which can be differentiated."""


def sizes(a: Shape, b: Shape, params: ProductParams) -> tuple[int, int, int]:
    """Returns m, n and k."""
    m, k = (a[-1], a[-2]) if params.transposed_a else a[-2:]
    return m, b[-2] if params.transposed_b else b[-1], k


def result_shape(a: Shape, b: Shape, bias: Shape | None, params: ProductParams) -> Shape:
    """Returns the shape of the result.

    Raises:
      ValueError: if the operands do not fit each other.
    """
    m, n, k = sizes(a, b, params)
    own = b[-1] if params.transposed_b else b[-2]
    batches = [max(x, y) if 0 not in (x, y) else 0 for x, y in zip(a[:-2], b[:-2], strict=True)]
    fits = all(x in (1, size) for each in (a, b) for x, size in zip(each, batches, strict=False))
    if bias is not None and len(bias) > 1:
        fits = fits and all(x in (1, s) for x, s in zip(bias[:-1], batches, strict=True))
    if own != k or not fits or (bias is not None and bias[-1] != n):
        given = ", ".join(str(list(each)) for each in (a, b, bias) if each is not None)
        raise ValueError(f"matmul: operands of shapes {given} do not fit each other")
    return (*batches, m, n)


LEAF = 256  # terms

NO_TENSOR_CORES = "bits is 'device', expected 'portable' or None on a CPU, without tensor cores"


def fits_tensor_cores(a: str, b: str, *others: str) -> bool:
    """Returns True if tensor cores take operands a and b, for the dtypes of bias and result."""
    return a == b and a in ("float16", "bfloat16") and "float64" not in others


def takes_tensor_cores(
    function: str, bits: str | None, dtypes: Sequence[str], is_on_cuda: bool
) -> bool:
    """Returns True if tensor cores compute the products of a call.

    Products that they do not take have portable bits on every device: for instance those with a
    cotangent in float32, of a bias in float32.

    Args:
      dtypes: of a and b, and of a bias and the result.

    Raises:
      ValueError: the bits are those of tensor cores, on a CPU.
    """
    if bits == "portable" or not fits_tensor_cores(*dtypes):
        return False
    if bits == "device" and not is_on_cuda:
        raise ValueError(f"{function}: {NO_TENSOR_CORES}")
    return is_on_cuda


def has_tensor_cores(params: ProductParams, dtypes: Sequence[str], is_on_cuda: bool) -> bool:
    """Returns True if tensor cores compute a product of a, b and perhaps a bias.

    Raises:
      ValueError: the bits are those of tensor cores, on a CPU.
    """
    given = (*dtypes, params.dtype)
    return not params.skips_zeros and takes_tensor_cores("matmul", params.bits, given, is_on_cuda)


# The kernels of CUDA (cpp/products/*.cu) have so many blocks, and bytes for a tile's sums.
_BLOCKS, _TILE, _TILE_BYTES = 264, 64, 1 << 16
_MANY_LEVELS, _FEW_BLOCKS = 24, 16  # for sizes that are known later: calls with less run slower


def workspace_bytes(a: Shape, b: Shape, params: ProductParams) -> int:
    """Returns the bytes of memory on CUDA in which sums wait."""
    m, n, k = sizes(a, b, params)
    if not isinstance(k, int):
        return _MANY_LEVELS * _FEW_BLOCKS * _TILE_BYTES
    levels = (max(-(-k // LEAF), 1) - 1).bit_length()
    tiles = 1
    for size in (
        -(-m // _TILE),
        -(-n // _TILE),
        *(max(s, t) for s, t in zip(a[:-2], b[:-2], strict=True)),
    ):
        tiles = tiles * size if isinstance(size, int) else _BLOCKS
    return levels * min(tiles, _BLOCKS) * _TILE_BYTES


def joined(arrays: Arrays, x: Any, over: Sequence[int], dim: int) -> Any:
    """Moves batch dimensions into the dimension `dim`, -1 or -2, as its slow part.

    Sizes of 1 stay in their places.
    """
    if not over:
        return x
    ndim = x.ndim
    last = ndim + dim
    rest = [d for d in range(ndim) if d not in over]
    order = [*rest[: rest.index(last)], *over, *rest[rest.index(last) :]]
    size = x.shape[last]
    for d in over:
        size = size * x.shape[d]
    shape = [1 if d in over else x.shape[d] for d in range(ndim)]
    shape[last] = size
    return arrays.reshaped(arrays.permuted(x, order), tuple(shape))


def _repeated(own: Shape, full: Shape) -> list[int]:
    """Lists the batch dimensions along which an operand serves the whole batch."""
    return [d for d in range(len(full) - 2) if own[d] == 1 and full[d] != 1]


def cotangent_of_a(
    arrays: Arrays, a: Shape, b: Any, g: Any, params: ProductParams, dtype: str
) -> Any:
    """Returns g bᵀ in a's shape, where g is the cotangent of the result."""
    bits, over = params.bits, _repeated(a, tuple(g.shape))
    g = joined(arrays, g, over, -1)
    b = joined(arrays, b, over, -2 if params.transposed_b else -1)
    if params.transposed_a:
        own = ProductParams(dtype, params.transposed_b, True, bits=bits)
        return arrays.product(b, g, None, own)
    own = ProductParams(dtype, False, not params.transposed_b, bits=bits)
    return arrays.product(g, b, None, own)


def cotangent_of_b(
    arrays: Arrays, a: Any, b: Shape, g: Any, params: ProductParams, dtype: str
) -> Any:
    """Returns aᵀ g in b's shape; the terms that were absent are absent here too."""
    over = _repeated(b, tuple(g.shape))
    g = joined(arrays, g, over, -2)
    a = joined(arrays, a, over, -1 if params.transposed_a else -2)
    if params.transposed_b and not params.skips_zeros:
        own = ProductParams(dtype, True, params.transposed_a, bits=params.bits)
        return arrays.product(g, a, None, own)
    own = ProductParams(dtype, not params.transposed_a, False, params.skips_zeros, params.bits)
    found = arrays.product(a, g, None, own)
    if not params.transposed_b:
        return found
    last = found.ndim - 1
    return arrays.permuted(found, [*range(last - 1), last, last - 1])


def cotangent_of_bias(
    arrays: Arrays, bias: Shape, g: Any, params: ProductParams, dtype: str
) -> Any:
    """Returns the sum of g over rows and repeated batches, in the bias's shape."""
    batches = g.ndim - 2
    own = (1,) * (batches + 1 - len(bias)) + tuple(bias)
    over = [d for d in range(batches) if own[d] == 1]
    kept = [d for d in range(batches) if d not in over]
    rows = batch = 1
    for d in (*over, batches):
        rows = rows * g.shape[d]
    for d in kept:
        batch = batch * g.shape[d]
    moved = arrays.permuted(g, [*kept, *over, batches, batches + 1])
    own = "float64" if "float64" in (dtype, params.dtype) else "float32"
    rows_of_all = arrays.reshaped(moved, (batch, rows, g.shape[-1]))
    total = arrays.run(sum_of_rows(rows_of_all, own, dtype, 1))
    return arrays.reshaped(total, tuple(bias))


def tangents(
    arrays: Arrays, primals: Sequence[Any], directions: Sequence[Any], params: ProductParams
) -> list[Any]:
    """Returns products that add up to the tangent of the result; a direction may be None."""
    (a, b, _), (da, db, dbias) = primals, directions
    found = []
    for left, right in ((da, b), (a, db)):
        if left is not None and right is not None and not (left is a and right is b):
            found.append(arrays.product(left, right, None, params))
    if dbias is not None:  # the bias of a product without terms
        m, n, _ = sizes(tuple(a.shape), tuple(b.shape), params)
        left = arrays.reshaped(a[..., :0, :0], (*a.shape[:-2], m, 0))
        right = arrays.reshaped(b[..., :0, :0], (*b.shape[:-2], 0, n))
        found.append(arrays.product(left, right, dbias, ProductParams(params.dtype)))
    return found


def added_tangents(arrays: ArrayFunctions, terms: Sequence[Any]) -> Any:
    """Returns the sum of the terms of `tangents`, the first two apart from the bias.

    Each framework adds the cotangents of one value in an order of its own. Here two of them meet at
    most, and a sum of two has one order.
    """
    if len(terms) == 1:
        return terms[0]
    total = terms[0] + terms[1]
    return total if len(terms) == 2 else arrays.apart(total) + terms[2]
