"""Labels that can be looked at before a kernel reads them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bridge.catalogue.labels import check_range


def check_labels(function: str, labels: Any, columns: int, ignore_index: int | None = None) -> None:
    """Raises ValueError for a label out of range, where nobody waits to see it."""
    if (convert := getattr(labels, "__jax_array__", None)) is not None:
        labels = convert()
    if not _is_at_hand(labels):
        return
    known = np.asarray(labels)
    if ignore_index is not None:
        known = known[known != ignore_index]
    if known.size > 0:
        check_range(function, int(known.min()), int(known.max()), columns)


def _is_at_hand(array: Any) -> bool:
    if isinstance(array, jax.core.Tracer):
        return False
    if not isinstance(array, jax.Array):
        return True
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())
