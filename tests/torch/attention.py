"""Softmax of attention scores in torch's own operations, and comparisons with it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import grad


def softmax64(x: Tensor, hidden: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(scale·x) of visible elements, 0 elsewhere; differentiable, in float64.

    A row with everything hidden is 0.
    """
    z = x.double()
    if scale is not None:
        z = z * scale
    if hidden is None:
        return z.softmax(-1)
    hidden = hidden.bool().expand(z.shape)
    nothing = hidden.all(-1, keepdim=True)
    z = z.masked_fill(hidden, -torch.inf).masked_fill(nothing, 0.0)
    return z.softmax(-1).masked_fill(hidden, 0.0)


def above_diagonal(queries: int, keys: int) -> Tensor:
    """True where key j is hidden from query i: j > i + (keys − queries)."""
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


def outside_window(queries: int, keys: int, left: int, right: int) -> Tensor:
    """True if a key is more than `left` before, or `right` after, the query's own position."""
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    return (distance < -left) | (distance > right)


def generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) & 0xFFFF_FFFF)


def unfused(x: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """The originals' own comparison: computed in the dtype of x, with hidden scores of −10000."""
    z = x if scale is None else x * scale
    if mask is None:
        return z.softmax(-1)
    y = z.masked_fill(mask, -10000.0).softmax(-1)
    return y.masked_fill(mask.all(-1, keepdim=True), 0.0)


def assert_within(actual: Tensor, expected: Tensor, tolerance: Tensor) -> None:
    error = (actual.double() - expected).abs()
    assert bool((error <= tolerance).all()), f"off by {(error / tolerance).max():.3g} tolerances"


def check_softmax(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    hidden: Tensor | None,
    scale: float | None,
    cotangent: Tensor,
) -> tuple[Tensor, Tensor]:
    """Checks values to one rounding, gradients to that and one more; returns both."""
    x = x.detach().requires_grad_()
    y = function(x)
    (dx,) = grad(y, x, cotangent)
    assert y.dtype == dx.dtype == x.dtype
    unit = torch.finfo(x.dtype).eps / 2
    least = torch.finfo(x.dtype).smallest_normal * unit
    # 16-bit: y is within 0.51 units in the last place, as docs/ops/softmax.md promises: one
    # rounding, and exponentials of about 2^-18. float32: scale·x, exponential, sum and
    # quotient are rounded.
    roundings = 1.02 if x.dtype != torch.float32 else 32.0
    factor = 1.0 if scale is None else scale
    with torch.no_grad():
        reference = softmax64(x, hidden, scale)
        error = roundings * unit * reference + least
        assert_within(y, reference, error)
        g = cotangent.double()
        difference = g - (g * reference).sum(-1, keepdim=True)
        gradient = factor * reference * difference
        # dx is computed from the rounded y, in float32, and rounded.
        from_y = error * difference.abs() + reference * (g.abs() * error).sum(-1, keepdim=True)
        terms = reference * (g.abs() + (g.abs() * reference).sum(-1, keepdim=True))
        tolerance = abs(factor) * (from_y + 2.0**-21 * terms)
        assert_within(dx, gradient, 1.01 * (tolerance + unit * gradient.abs() + least))
        if hidden is not None:
            everywhere = hidden.expand(y.shape)
            assert not y[everywhere].any()
            assert not dx[everywhere].any()
    return y.detach(), dx
