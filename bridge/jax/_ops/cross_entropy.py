"""Cross-entropy of logits and labels, for JAX."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue import cross_entropy as losses
from bridge.catalogue.cross_entropy import Options
from bridge.jax._adapter.arguments import refuse_traced
from bridge.jax._adapter.avals import unsplit
from bridge.jax._ops.labels import as_signed, check_ignored, check_labels

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
    given = (reduction, ignore_index, label_smoothing, z_loss, softcap)
    options = checked_options("cross_entropy", *given)
    columns = np.shape(logits)[-1] if np.ndim(logits) else 0
    if axis_name is not None:
        columns *= axis_size("cross_entropy", axis_name)
    check_ignored("cross_entropy", labels, options.ignore_index)
    read = labels
    if getattr(labels, "dtype", None) == np.uint64:
        read = as_signed(jnp.asarray(labels), options.ignore_index)[0]
    found = losses_of(logits, read, options, axis_name)
    check_labels("cross_entropy", labels, logits, columns, options.ignore_index)
    return reduce(reduction, *found)


def checked_options(function: str, *given: Any) -> Options:
    names = ("reduction", "ignore_index", "label_smoothing", "z_loss", "softcap")
    for name, value in zip(names, given, strict=True):
        refuse_traced(function, name, value)
    return Options.of(function, *given)


def axis_size(function: str, axis_name: Any) -> int:
    """Returns the number of devices on a mesh axis, inside `shard_map`.

    Raises:
      ValueError: there is no such axis here.
    """
    # An axis of jax.vmap has a size too, but no devices that could exchange values.
    mesh_axes = jax.sharding.get_abstract_mesh().manual_axes
    if not isinstance(axis_name, Hashable) or axis_name not in mesh_axes:
        raise ValueError(
            f"{function}: axis_name is {axis_name!r}, expected the name of a mesh axis of the "
            "jax.shard_map around the call"
        )
    return int(jax.lax.axis_size(axis_name))


def losses_of(
    logits: Any, labels: Any, options: Options, axis_name: Any = None
) -> tuple[jax.Array, ...]:
    """Returns each row's loss, and for a mean 1 per row that counts; labels are unchecked."""
    is_mean = options.reduction == "mean"
    of_rows = (losses.counted_losses if is_mean else losses.row_losses).entry("jax")
    if axis_name is None:
        found = of_rows.public(logits, labels, **options.of_rows)
    else:
        found = of_rows.on_axis(axis_name, logits, labels, **options.of_rows)
    return found if is_mean else (found,)


def reduce(reduction: str, of_rows: jax.Array, *counts: jax.Array) -> Any:
    """Reduces the losses as `reduction` says."""
    if reduction == "none":
        return of_rows
    flat = [unsplit(each, slice(1, None)).reshape(-1) for each in (of_rows, *counts)]
    return (losses.mean if counts else losses.total).jax(*flat)
