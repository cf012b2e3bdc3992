"""Batch norm for JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bridge.catalogue.vision.batch_norm import NAME
from bridge.catalogue.vision.batch_norm_layer import OPERANDS, Rule, check_numbers, check_operands
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_likes, as_flag, axis_size
from bridge.jax._ops.vision.batch_norm_devices import compiled_batch_norm
from bridge.ops.scalars import whole_number

ArrayLike = jax.typing.ArrayLike


def batch_norm(
    input: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    momentum: float = 0.99,
    eps: float = 1e-5,
    *,
    axis: int = -1,
    axis_name: Any = None,
    unbiased: bool = False,
) -> Any:
    r"""(x − μ)/√(v + eps)·weight + bias for each channel.

    In training μ and v = Σ (x − μ)²/n are mean and variance of a channel over all images and
    places; the variance comes from centred numbers, in a second pass over x. Otherwise they are the
    running statistics. 16-bit arrays and float32 are computed in float32, float64 in float64, and
    rounded once. Sums are added in the tree of column sums over (image, place), so the bits are the
    same for any `axis`, for any number of devices under jit, and in `bridge.torch`. Every
    transformation of JAX applies, derivatives of any order included.

    In training the new running statistics are returned too, by Flax's rule:
    new = momentum·old + (1 − momentum)·batch, with the variance v. torch's rule has the variance
    v·n/(n − 1), as `unbiased`, and 1 − momentum in place of momentum. They have no gradient.

    Args:
      input: `[n, ..., c]`, or with channels in another dimension `axis`, float16, bfloat16, float32
        or float64.
      running_mean, running_var: `[c]`, of any of these dtypes.
      weight, bias: `[c]`, of any of these dtypes.
      training: take the batch's statistics.
      momentum: a finite number.
      eps: a positive finite number.
      axis: the dimension of the channels. A channel dimension between others is moved, except
        dimension 1.
      axis_name: in training, inside `jax.shard_map`, the mesh axis whose devices have equal parts
        of the images: the statistics are those of all parts, in the order of the devices. If each
        has 16·2ⁿ rows (images × places), the bits are those of one array on one device. Reverse
        mode only. Arrays that are split under jit need no name.
      unbiased: the batch's variance divides by n − 1 in the running variance, as in torch.

    Returns:
      An array of input's shape in the promoted dtype of input, weight and bias. In training a tuple
      of it, the new running mean and the new running variance (None without running statistics).

    Raises:
      TypeError: an argument is no array or has another dtype; a number or flag is none, or traced.
      ValueError: input has fewer than two dimensions; no such axis; a vector of another shape; one
        running statistic without the other; no running statistics outside of training; eps is not
        positive or not finite.

    Source: Ioffe and Szegedy, "Batch Normalization", arXiv:1502.03167.

    Example:
      >>> batch_norm(jnp.array([[1.0, 5.0], [3.0, 5.0]]), training=True, eps=1e-12)[0]
      Array([[-1.,  0.],
             [ 1.,  0.]], dtype=float32)
    """
    operands = input, running_mean, running_var, weight, bias
    given = as_array_likes(NAME, 1, **dict(zip(OPERANDS, operands, strict=True)))
    training = as_flag(NAME, "training", training)
    unbiased = as_flag(NAME, "unbiased", unbiased)
    momentum, eps = check_numbers(arrays, momentum, eps)
    axis = whole_number(NAME, "axis", arrays.known(NAME, "axis", axis), -9)
    shaped = [_shaped(each) for each in given]
    check_operands(shaped[0], shaped[1], shaped[2], shaped[3], shaped[4], training, axis)
    parts = axis_size(NAME, axis_name)
    ndim = np.ndim(given[0])
    rule = Rule(momentum, 1.0 - momentum, int(unbiased))
    static = training, rule, eps, axis % ndim, parts, axis_name if parts > 1 else None
    return compiled_batch_norm(*static)(*given)


def _shaped(value: Any) -> Any:
    """Returns an object with shape and dtype, for the checks."""
    return value if value is None or isinstance(value, jax.Array) else np.asarray(value)
