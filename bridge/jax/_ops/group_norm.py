"""The public group norm of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.group_norm import GroupNorm
from bridge.jax._adapter import arrays

ArrayLike = jax.typing.ArrayLike

_group_norm = GroupNorm(arrays)


def group_norm(
    x: ArrayLike,
    groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    channels_last: bool = False,
) -> jax.Array:
    r"""(x − μ)/√(v + eps)·weight + bias for each group of channels, and its activation.

    μ and v are mean and variance of a group: of the channels c/groups of one example, at all
    places. They are computed as in `layer_norm`, so groups whose mean is a million times their
    spread keep all digits, and a group of equal numbers gives exactly bias. 16-bit arrays and
    float32 are computed in float32, float64 in float64, and rounded once, after the activation. The
    bits of an example depend on that example alone; they are the same for channels last, and in
    `bridge.torch`. Every transformation of JAX applies, derivatives of any order included.

    Args:
      x: `[n, c, ...]`, or `[n, ..., c]` with `channels_last`, float16, bfloat16, float32 or
        float64.
      groups: the number of groups, a divisor of c.
      weight, bias: `[c]`, of any of these dtypes.
      eps: a positive finite number.
      activation: None, or one of `glu`: "silu", "gelu", "gelu_tanh", "gelu_sigmoid", "relu" or
        "sigmoid".
      channels_last: the last dimension has the channels, not the second one.

    Returns:
      An array of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is no array or has another dtype; eps is no number, groups no integer,
        channels_last neither True nor False, or one of them is traced.
      ValueError: x has fewer than two dimensions; groups are not positive or do not divide c; a
        shape that does not fit; eps is not positive or not finite; an unknown activation.

    Example:
      >>> group_norm(jnp.array([[1.0, 3.0, 5.0, 5.0]]), 2, eps=1e-12)
      Array([[-1.,  1.,  0.,  0.]], dtype=float32)

    Source: Wu and He, "Group Normalization", arXiv:1803.08494.
    """
    x, weight, bias = arrays.checked("group_norm", 1, x=x, weight=weight, bias=bias)
    return _group_norm.run(x, groups, weight, bias, eps, activation, channels_last)  # type: ignore[no-any-return]
