"""Batch norm for JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from bridge.catalogue.vision.batch_norm import NAME, BatchNorm, Evaluation, Options, Statistics
from bridge.catalogue.vision.batch_norm_layer import (
    Rule,
    check_numbers,
    check_operands,
    rows_of,
    running,
)
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import (
    as_array_likes,
    as_arrays,
    as_flag,
    axis_size,
    compiled_for,
)
from bridge.jax._adapter.avals import unsplit
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition
from bridge.jax._ops.vision.batch_norm_devices import over_devices
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
) -> Any:
    r"""(x − μ)/√(v + eps)·weight + bias for each channel.

    In training μ and v = Σ (x − μ)²/n are mean and variance of a channel over all images and
    places; the variance comes from centred numbers, in a second pass over x. Otherwise they are the
    running statistics. 16-bit arrays and float32 are computed in float32, float64 in float64, and
    rounded once. Sums are added in the tree of column sums over (image, place), so the bits are the
    same for any `axis`, for any number of devices under jit, and in `bridge.torch`. Every
    transformation of JAX applies, derivatives of any order included.

    In training the new running statistics are returned too, by Flax's rule:
    new = momentum·old + (1 − momentum)·batch, with the variance v. torch has another rule. They
    have no gradient.

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
    given = as_array_likes(
        NAME,
        1,
        input=input,
        running_mean=running_mean,
        running_var=running_var,
        weight=weight,
        bias=bias,
    )
    training = as_flag(NAME, "training", training)
    momentum, eps = check_numbers(arrays, momentum, eps)
    axis = whole_number(NAME, "axis", arrays.known(NAME, "axis", axis), -9)
    shaped = [_shaped(each) for each in given]
    check_operands(shaped[0], shaped[1], shaped[2], shaped[3], shaped[4], training, axis)
    parts = axis_size(NAME, axis_name)
    ndim = np.ndim(given[0])
    static = training, momentum, eps, axis % ndim, parts, axis_name if parts > 1 else None
    return _compiled(*static)(*given)


def _shaped(value: Any) -> Any:
    """Returns an object with shape and dtype, for the checks."""
    return value if value is None or isinstance(value, jax.Array) else np.asarray(value)


@compiled_for
def _compiled(
    training: bool, momentum: float, eps: float, axis: int, parts: int, axis_name: Any
) -> Any:
    def run(x: Any, *others: Any) -> Any:
        x, mean, variance, weight, bias = as_arrays(x, *others)
        present = [each for each in (x, weight, bias) if each is not None]
        x = arrays.cast(x, jax.numpy.result_type(*present).name)
        place, last = axis, x.ndim == 2 or axis != 1
        place = x.ndim - 1 if last else 1
        x = x if place == axis else functions.moved(x, axis, place)
        x = unsplit(x, slice(place, place + 1))
        options = Options(eps, x.ndim - 1, last, parts)
        if not training:
            y = _evaluation.run((x, mean, variance, weight, bias), options)
        elif axis_name is None:
            pair = _statistics.run((x,), options)
            y = _values.run((x, weight, bias, pair), options)
        else:
            y, pair = over_devices(axis_name, x, weight, bias, options)
        y = y if place == axis else functions.moved(y, place, axis)
        if not training:
            return y
        count = rows_of(x.shape, place) * parts
        if mean is None or count == 0:
            return y, mean, variance
        rule = Rule(momentum, 1.0 - momentum, 0)
        return y, *running(arrays, mean, variance, lax.stop_gradient(pair), rule, count)

    run.__name__ = NAME
    return run


_evaluation = Composition(Evaluation(functions))
_statistics = Composition(Statistics(functions))
_values = Composition(BatchNorm(functions))
