"""Batch norm as a module of Flax NNX, with the constructor of `flax.nnx`."""

from __future__ import annotations

import inspect
from typing import Any

import jax
from flax import nnx

from bridge.jax._adapter.arguments import as_array_likes, as_arrays
from bridge.jax._ops.vision.batch_norm import batch_norm

# Flax's default. It computes in the widest of the dtypes, and so does the op by itself.
_PROMOTE_DTYPE = inspect.signature(nnx.BatchNorm.__init__).parameters["promote_dtype"].default


def normalised(
    module: nnx.BatchNorm,
    x: Any,
    use_running_average: bool | None = None,
    mask: Any = None,
    *,
    unbiased: bool = False,
) -> jax.Array:
    """Computes a module of batch norm.

    Args:
      unbiased: update the running variance by torch's rule, with n − 1.
    """
    if mask is not None:
        raise ValueError("BatchNorm: mask is given, expected None: all places count")
    if module.axis_index_groups is not None:
        raise ValueError(
            "BatchNorm: axis_index_groups is given, expected None: all devices of the axis count"
        )
    is_evaluated = (
        module.use_running_average if use_running_average is None else (use_running_average)
    )
    if is_evaluated is None:
        raise ValueError(
            "BatchNorm: use_running_average is None, expected True or False in the constructor "
            "or in the call"
        )
    (x,) = as_arrays(*as_array_likes("BatchNorm", 1, x=x))
    named = [module.mean, module.var, module.scale, module.bias]
    mean, var, scale, bias = [
        None if each is None or each.get_value() is None else each[...] for each in named
    ]
    if module.dtype is not None or module.promote_dtype is not _PROMOTE_DTYPE:
        x, scale, bias = module.promote_dtype((x, scale, bias), dtype=module.dtype)
    found = batch_norm(
        x,
        mean,
        var,
        scale,
        bias,
        not is_evaluated,
        module.momentum,
        module.epsilon,
        axis=module.axis,
        axis_name=None if is_evaluated else module.axis_name,
        unbiased=unbiased,
    )
    y = found if is_evaluated else found[0]
    if not is_evaluated:
        module.mean[...], module.var[...] = found[1:]
    return y if module.dtype is None else y.astype(module.dtype)


class BatchNorm(nnx.BatchNorm):
    """`flax.nnx.BatchNorm` by `batch_norm`; the same parameters and statistics.

    The constructor is the original's. `use_fast_variance` has no effect: the variance comes from
    centred numbers. `axis` is one dimension, and with `axis_name` the images are split over that
    mesh axis, in `jax.shard_map`. A mask and groups of devices raise ValueError.

    Example:
      >>> BatchNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __call__(
        self, x: Any, use_running_average: bool | None = None, *, mask: Any = None
    ) -> jax.Array:
        """Returns y, and updates the running statistics unless they are used."""
        return normalised(self, x, use_running_average, mask)
