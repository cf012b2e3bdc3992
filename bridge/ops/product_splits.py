"""Products of arrays that are split over devices, in any framework.

The space of a product has the batches, m, n and k as dimensions. Batches, rows and columns may be
split: each device computes its part. A contraction may be split where each device has a power of
two of leaves: its sum is then a subtree of the whole sum. The devices exchange these sums, and
each adds them in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from bridge.ops.product import LEAF, ProductParams, Shape, sizes
from bridge.ops.splitting import Split


class Arrays(Protocol):
    """The functions of a framework that `added` needs."""

    def product(self, a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
        """Returns the product of operands with as many batch dimensions each."""

    def ones(self, like: Any, shape: Shape) -> Any:
        """Returns ones of the dtype and on the device of `like`."""

    def concatenated(self, arrays: Sequence[Any]) -> Any:
        """Joins arrays along their first dimension."""

    def permuted(self, x: Any, order: Sequence[int]) -> Any:
        """Returns x with its dimensions in another order."""


def space_of(shapes: Sequence[Shape], params: ProductParams) -> Shape:
    """Returns the space of a product of operands with these shapes."""
    a, b, *_ = shapes
    batches = (y if x == 1 else x for x, y in zip(a[:-2], b[:-2], strict=True))
    return (*batches, *sizes(a, b, params))


def dims_of(shapes: Sequence[Shape], params: ProductParams) -> list[list[int | None]]:
    """Maps the dimensions of all operands and of the result to those of the space."""
    count = len(shapes[0]) - 2
    m, n, k = range(count, count + 3)
    own: list[tuple[int, ...]] = [(k, m) if params.transposed_a else (m, k)]
    own += [(n, k) if params.transposed_b else (k, n)]
    own += [(n,)] * (len(shapes) - 2)
    found: list[list[int | None]] = []
    for shape, last in zip(shapes, own, strict=True):
        batches = shape[: len(shape) - len(last)]
        found.append([*(i if size > 1 else None for i, size in enumerate(batches)), *last])
    return [*found, [*range(count), m, n]]


def supported(split: Split, *, alone: bool = False) -> Split:
    """Returns the part of a split of the space that devices can keep.

    `alone`: True if they cannot communicate.
    """
    last = len(split.shape) - 1
    axes = list(split.axes)
    for dim, size in enumerate(split.shape):
        is_even = size > 0 and size % split.parts(dim) == 0
        leaves = split.local(dim) // LEAF if is_even else 0
        is_subtree = leaves * LEAF == split.local(dim) and leaves & -leaves == leaves
        if not is_even or (dim == last and (alone or not is_subtree)):
            axes[dim] = ()
    return replace(split, axes=tuple(axes))


def own_params(params: ProductParams, dtypes: Sequence[str]) -> ProductParams:
    """Returns the parameters of a device's part of the sum, which is not rounded."""
    is_wide = "float64" in (*dtypes, params.dtype)
    return replace(params, dtype="float64" if is_wide else "float32")


def added(arrays: Arrays, sums: Any, bias: Any, dtype: str, own: str) -> Any:
    """Adds `[parts, *batches, m, n]` in the tree; only the last sum, with the bias, is rounded.

    A sum of two is a product with ones: XLA on a CPU would flush subnormal numbers.

    Args:
      dtype: of the result.
      own: the dtype of the sums.
    """
    parts, *batches, m, n = sums.shape
    while parts > 2:
        whole = parts // 2 * 2
        pairs = sums[:whole].reshape(parts // 2, 2, -1)
        ones = arrays.ones(sums, (parts // 2, 1, 2))
        found = arrays.product(ones, pairs, None, ProductParams(own)).reshape(-1, *batches, m, n)
        sums = arrays.concatenated([found, sums[whole:]]) if parts % 2 else found
        parts = sums.shape[0]
    # The pair is the contraction of a product whose batches are the batches and the rows.
    last = len(batches) + 1
    pair = arrays.permuted(sums, [*range(1, last + 1), 0, last + 1])
    if bias is not None and bias.ndim > 1:
        bias = bias.reshape(*bias.shape[:-1], 1, bias.shape[-1])
    ones = arrays.ones(sums, (*(1,) * last, 1, parts))
    return arrays.product(ones, pair, bias, ProductParams(dtype)).reshape(*batches, m, n)
