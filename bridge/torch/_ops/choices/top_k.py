"""The largest numbers of each row, for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.ops.selection import check_count, check_rows
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.choices.functions import chosen, taken


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""The k largest numbers of each row in falling order, and their columns.

    Equal numbers come in the order of their columns, on every device, and zeros are equal. NaN is
    above all numbers, as in `torch.topk`; two NaN count as equal. A row's result depends on that
    row alone, and `bridge.jax` gives the same. The gradient of a chosen number goes to its place.
    The places of a row differ, so that nothing is added up. Differentiable to any order, in reverse
    and forward mode. The rows of a DTensor may be split over processes.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      k: an integer from 1 to 64, and at most d.

    Returns:
      Values `[..., k]` in x's dtype, and columns `[..., k]` in int64.

    Raises:
      TypeError: x is no dense tensor or has another dtype; k is no integer.
      ValueError: x has no columns; k is out of range.

    Example:
      >>> top_k(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 2)
      (tensor([[3., 3.]]), tensor([[1, 2]]))
    """
    if is_overridden(given := (x,)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("top_k", 1, x=x)
    spec = spec_of(x)
    check_rows("top_k", "x", spec)
    columns = chosen(x, check_count("top_k", "k", fixed(k), spec.shape[-1]))
    return taken(x, columns), columns
