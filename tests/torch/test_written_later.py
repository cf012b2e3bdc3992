"""A caller may write into an operand before the backward pass, unless the gradient reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

import bridge.torch as bt
from tests.torch.test_overrides import FUNCTIONS

STATISTICS = torch.tensor([0.5, -0.5, 0.0]), torch.tensor([1.0, 2.0, 0.5])
# Functions of an image `[2, 3, 6, 6]` and two vectors `[3]`.
VISION: dict[str, Callable[..., Tensor]] = {
    "batch_norm": lambda x, w, b: bt.batch_norm(x, None, None, w, b, training=True),
    "evaluation": lambda x, w, b: bt.batch_norm(x, *STATISTICS, w, b),
    "channels_last": lambda x, w, b: bt.batch_norm(
        x.contiguous(memory_format=torch.channels_last), None, None, w, b, training=True
    ),
    "group_norm": lambda x, w, b: bt.group_norm(x, 3, w, b),
    "interpolate": lambda x, w, b: bt.interpolate(x, size=(7, 9), mode="bilinear"),
    "nearest": lambda x, w, b: bt.interpolate(x, scale_factor=2.0, mode="nearest"),
    "avg_pool": lambda x, w, b: bt.avg_pool(x, 2),
    "max_pool": lambda x, w, b: bt.max_pool(x, 3, padding=1),
    "means": lambda x, w, b: bt.adaptive_avg_pool(x, 1),
    "parts": lambda x, w, b: bt.adaptive_avg_pool(x, (2, 4)),
    "conv2d": lambda x, w, b: bt.conv2d(x, w.reshape(3, 1, 1, 1) * x[:1, :, :2, :3], b),
}
SHAPES = ((4, 5), (5,))
IMAGES = ((2, 3, 6, 6), (3,), (3,))
# Their gradients read an operand and do not depend on it: groups of one number, equal policies, the
# sum before a norm, whose node has the norm's gradient as well, and torch.gather in top_k.
INDEPENDENT = ("group_norm-0", "preference_loss-0", "preference_loss-1", "rms_norm-1", "top_k-0")
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    f"{n}-{i}": (f, SHAPES) for n, calls in FUNCTIONS.items() for i, f in enumerate(calls)
}
CALLS = {name: call for name, call in CALLS.items() if name not in INDEPENDENT}
CALLS |= {name: (call, IMAGES) for name, call in VISION.items()}


def gradients(
    call: Callable[..., Any], values: Sequence[Tensor], written: int | None = None
) -> list[Tensor | None] | None:
    """Returns the gradients of a call, None if its result has none.

    Args:
      written: the operand that is overwritten between the forward and the backward pass.
    """
    leaves = [value.detach().requires_grad_() for value in values]
    given = [leaf.clone() for leaf in leaves]
    torch.manual_seed(5)
    try:
        y = call(*given)
    except RuntimeError as error:
        if "out=" in str(error):
            return None
        raise
    if not isinstance(y, Tensor) or y.grad_fn is None:
        return None
    if written is not None:
        with torch.no_grad():
            given[written].fill_(0.75)
    g = torch.linspace(-1.0, 2.0, y.numel(), dtype=y.dtype).reshape(y.shape)
    return list(grad(y, leaves, g, allow_unused=True))


@pytest.mark.parametrize("name", CALLS)
def test_an_operand_that_no_gradient_reads(draw: Any, name: str) -> None:
    call, shapes = CALLS[name]
    values = [draw(*shape, dtype=torch.float32) for shape in shapes]
    expected = gradients(call, values)
    if expected is None:
        pytest.skip("no gradient")
    for place in range(len(values)):
        changed = [v.exp() if i == place else v for i, v in enumerate(values)]
        others = gradients(call, changed)
        assert others is not None
        if not all(map(same, expected, others)):
            continue  # read by the gradient
        for one, other in zip(gradients(call, values, place) or (), expected, strict=True):
            assert same(one, other)


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
