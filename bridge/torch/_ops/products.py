"""The public matrix products for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.products import Products
from bridge.torch._adapter import arrays
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._adapter.products import PRIMITIVES, quick

_products = Products(arrays, PRIMITIVES)


def matmul(a: Tensor, b: Tensor, *, bits: str | None = None) -> Tensor:
    r"""The matrix product of a and b, with the same bits in both frameworks and for any batch.

    c[i, j] = Σₚ a[i, p]·b[p, j]. The contraction is cut into leaves of 256 terms. A leaf is a chain
    of fused multiply-adds in increasing order; leaves are added in the binary tree that is aligned
    at powers of two. So an element of c depends on its row of a and its column of b alone: not on
    other rows, the batch, threads or the instruction set, nor on the device (but see `bits`). The
    same input gives the
    same bits in `bridge.jax`. The arithmetic is float64 if an operand is, else float32; the sum is
    rounded once. Infinities, NaN and subnormal numbers are those of IEEE arithmetic in this order.

    Differentiable to any order, in reverse and forward mode, and under `torch.func`: da = g·bᵀ and
    db = aᵀ·g are products again, and a gradient towards an operand that was broadcast is one sum
    over the batches as well. Works under `torch.compile(fullgraph=True)`, `torch.export` and
    autocast, which casts the operands as it does for torch's own products.

    Args:
      a: `[..., m, k]` or `[k]` of dtype float16, bfloat16, float32 or float64, with any strides: a
        transposed operand costs no copy.
      b: `[..., k, n]` or `[k]` of any of these dtypes. Batch dimensions broadcast as in
        `numpy.matmul`.
      bits: "portable" for the same bits on every device. "device" for the sums of tensor cores, on
        CUDA for two operands of float16 or two of bfloat16: the bits of a generation of GPUs, which
        still depend on a row and a column alone. None is "device" for these, "portable" for others.

    Returns:
      `[..., m, n]` in the promoted dtype, without the dimension of an operand that has only one.
      With k = 0 it is zeros.

    Raises:
      TypeError: an operand is not a dense tensor or has another dtype.
      ValueError: shapes that do not fit, an operand without dimensions, another word, "device"
        without tensor cores that take the operands.

    Example:
      >>> matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
      tensor([[11.]])
    """
    if bits is None and (result := quick(a, b, None, False)) is not None:
        return result  # type: ignore[no-any-return]
    if is_overridden(given := (a, b)):
        return hand_over(given)  # type: ignore[no-any-return]
    return _products.matmul(a, b, bits)  # type: ignore[no-any-return]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, bits: str | None = None
) -> Tensor:
    r"""x·weightᵀ + bias, with the sums of `matmul` and one rounding after the bias.

    Args:
      x: `[..., in]` of dtype float16, bfloat16, float32 or float64.
      weight: `[out, in]` of any of these dtypes, as in `torch.nn.Linear`.
      bias: `[out]` of any of these dtypes, or None.
      bits: as for `matmul`, with x and weight as its operands.

    Returns:
      `[..., out]` in the promoted dtype of all arguments.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: shapes that do not fit, another word.

    Example:
      >>> linear(torch.ones(1, 2), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5]))
      tensor([[7.5000]])
    """
    if bits is None and (result := quick(x, weight, bias, True)) is not None:
        return result  # type: ignore[no-any-return]
    if is_overridden(given := (x, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    return _products.linear(x, weight, bias, bits)  # type: ignore[no-any-return]
