"""Checks of labels before a kernel reads them, where their values are available."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue.labels import LABELS, check_range


def check_labels(
    function: str,
    labels: Any,
    rows: Any,
    columns: int,
    ignore_index: int | None = None,
    names: tuple[str, str] = LABELS,
) -> None:
    """Raises ValueError for a label out of range, if the check need not wait for the device.

    Args:
      rows: the array whose rows have one label each.
      names: the words for the labels and for the columns in the message.
    """
    if columns == 0 and isinstance(rows, jax.core.Tracer):
        return  # no label is in range, but jax.vmap may be over no rows
    if (convert := getattr(labels, "__jax_array__", None)) is not None:
        labels = convert()
    if not _is_at_hand(labels):
        return
    known = np.asarray(labels)
    if ignore_index is not None:
        known = known[known != ignore_index]
    if known.size > 0:
        check_range(function, int(known.min()), int(known.max()), columns, names)


def check_ignored(function: str, labels: Any, ignore_index: int) -> None:
    """Raises ValueError for an ignore_index outside the range of JAX's labels without x64."""
    signed = jnp.iinfo(_canonical(np.int64))
    if signed.min <= ignore_index <= signed.max:
        return
    dtype = getattr(labels, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "u":
        own = jnp.iinfo(_canonical(dtype))
        if 0 <= ignore_index <= own.max:
            return
    raise ValueError(
        f"{function}: ignore_index is {ignore_index}, expected an integer from {signed.min} to "
        f"{signed.max}: while jax_enable_x64 is off, labels have {signed.bits} bits"
    )


def readable(function: str, labels: Any, ignore_index: int) -> Any:
    """Returns labels of uint64 as `as_signed` does, others as they are, and checks ignore_index."""
    check_ignored(function, labels, ignore_index)
    if getattr(labels, "dtype", None) != np.uint64:
        return labels
    return as_signed(jnp.asarray(labels), ignore_index)[0]


def as_signed(labels: Any, ignore_index: int) -> tuple[Any, int]:
    """Returns labels of the widest signed dtype, and the label that is ignored among them.

    Kernels read the upper half of uint64 as 2**63 - 1, which could be the ignored label. Here such
    a label becomes a number that is neither a column nor ignored. So do labels of uint32 that do
    not fit.
    """
    widest = jnp.iinfo(_canonical(np.int64))
    found = labels.astype(widest.dtype)
    if jnp.iinfo(labels.dtype).max <= widest.max:
        return found, ignore_index

    def of_labels(number: int) -> Any:
        return jnp.array(number, labels.dtype)

    def of_found(number: int) -> Any:
        return jnp.array(number, widest.dtype)

    beyond = of_found(-2 if ignore_index == -1 else -1)
    found = jnp.where(labels > of_labels(widest.max), beyond, found)
    if ignore_index <= widest.max:
        return found, ignore_index
    ignored = int(widest.min)
    return jnp.where(labels == of_labels(ignore_index), of_found(ignored), found), ignored


def _canonical(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(dtype)


def _is_at_hand(array: Any) -> bool:
    if isinstance(array, jax.core.Tracer):
        return False
    if not isinstance(array, jax.Array):
        return True
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())
