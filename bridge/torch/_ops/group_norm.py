"""The public group norm for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.group_norm import GroupNorm
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden

_group_norm = GroupNorm(arrays)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    channels_last: bool = False,
) -> Tensor:
    r"""(x − μ)/√(v + eps)·weight + bias for each group of channels, and its activation.

    μ and v are mean and variance of a group: of the channels c/groups of one example, at all
    places. They are computed as in `layer_norm`, so groups whose mean is a million times their
    spread keep all digits, and a group of equal numbers gives exactly bias. 16-bit tensors and
    float32 are computed in float32, float64 in float64, and rounded once, after the activation. The
    bits of an example depend on that example alone; they are the same for channels last, and in
    `bridge.jax`. Differentiable to any order, in reverse and forward mode.

    Args:
      x: `[n, c, ...]`, or `[n, ..., c]` with `channels_last`, of dtype float16, bfloat16, float32
        or float64, of any strides.
      groups: the number of groups, a divisor of c.
      weight, bias: `[c]`, of any of these dtypes.
      eps: a positive finite number.
      activation: None, or one of `glu`: "silu", "gelu", "gelu_tanh", "gelu_sigmoid", "relu" or
        "sigmoid".
      channels_last: the last dimension has the channels, not the second one.

    Returns:
      A tensor of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; eps is not a number, groups
        not an integer, or channels_last neither True nor False.
      ValueError: x has fewer than two dimensions; groups are not positive or do not divide c; a
        shape that does not fit; eps is not positive or not finite; an unknown activation.

    Example:
      >>> group_norm(torch.tensor([[1.0, 3.0, 5.0, 5.0]]), 2, eps=1e-12)
      tensor([[-1.,  1.,  0.,  0.]])

    Source: Wu and He, "Group Normalization", arXiv:1803.08494.
    """
    if is_overridden(given := (x, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("group_norm", 1, x=x, weight=weight, bias=bias)
    return _group_norm.run(x, groups, weight, bias, eps, activation, channels_last)  # type: ignore[no-any-return]
