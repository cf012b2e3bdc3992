"""Cross-entropy of logits and labels, for JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from bridge.catalogue.cross_entropy import CrossEntropy
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import axis_size
from bridge.jax._adapter.avals import unsplit
from bridge.jax._adapter.declared import DeclaredFunction
from bridge.jax._ops import labels as labels_of_jax

_NAME = "cross_entropy"
ArrayLike = jax.typing.ArrayLike


def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    axis_name: Any = None,
) -> jax.Array:
    r"""−log softmax(logits)[label] of each row, and their mean or sum.

    With s = logits, or softcap·tanh(logits / softcap), and lse = log Σ exp(s), the loss of a row is

        (1 − ε)·(lse − s[label]) + ε·(lse − mean(s)) + z_loss·lse²        ε = label_smoothing

    The logits are read once; no array of their size is made. The backward pass reads them once more
    and writes their gradient. The bits of a row's loss depend on that row alone, and are the same
    in `bridge.torch`. Every transformation of JAX applies, derivatives of any order included.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64.
      labels: `[...]` of any integer dtype: a column number from 0 on, or `ignore_index`.
      reduction: `"mean"` over the rows that are not ignored, `"sum"`, or `"none"`.
      ignore_index: rows with this label have the loss 0 and no gradient. It has 32 bits, like the
        labels, while `jax_enable_x64` is off.
      label_smoothing: from 0 to 1. This and the numbers below must be known at compile time.
      z_loss: a number from 0 on, finite in float32.
      softcap: a positive number, neither 0 nor infinite in float32, or None.
      axis_name: inside `jax.shard_map`, the mesh axis whose devices have equal parts of the
        columns, in their order. Labels are column numbers of the whole row; labels and loss are the
        same on all devices. The devices exchange each row's maximum, sum and the label's logit,
        never the row. The bits do not depend on the number of devices. Under `jax.jit` split
        columns need no name.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64. The mean over no rows is 0. The loss
      is NaN if the label is out of range and could not be checked before the call: on a GPU and
      under transforms.

    Raises:
      TypeError: an argument is no array or of another dtype; a number is traced or none.
      ValueError: shapes that do not fit; another reduction; a number out of its range; a label out
        of range; no such axis.

    Example:
      >>> cross_entropy(jnp.zeros((2, 4)), jnp.array([0, -100]))
      Array(1.3862944, dtype=float32)
    """
    given = reduction, ignore_index, label_smoothing, z_loss, softcap
    options, parts = cross_entropies.options(_NAME, *given), axis_size(_NAME, axis_name)
    run = None if axis_name is None else partial(DeclaredFunction.on_axis, axis=axis_name)
    return cross_entropies.loss(_NAME, logits, labels, options, run, parts)  # type: ignore[no-any-return]


def flat(losses: jax.Array) -> jax.Array:
    """Returns the losses in one dimension."""
    return unsplit(losses, slice(1, None)).reshape(-1)  # type: ignore[no-any-return]


cross_entropies = CrossEntropy(arrays, labels_of_jax, flat)
