"""Functions that the frameworks have and bridge has no name for: `invariant` runs them.

`silu`, `mean`, and the forms of cross-entropy that only `torch.nn.functional.cross_entropy` has.
"""

from __future__ import annotations

import math
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.labels import at_label, is_column
from bridge.lang.reductions import beyond_largest


@declared()
def silu(x: bl.Full):
    return bl.silu(x)


def _mean(x: Any) -> Any:
    return bl.like(bl.mean(x), x)


@declared()
def mean(x: bl.Full):
    return _mean(x)


@declared()
@named("cross_entropy")
def weighted_mean(losses: bl.Full, weights: bl.Full):
    """Returns Σ losses ÷ Σ weights; NaN, as in torch, where no row counts."""
    return (bl.sum(losses) + 0.0) / bl.sum(bl.stop_gradient(weights))


@declared(keep=("largest", "rest"))
@named("cross_entropy")
def weighted_losses(
    logits: bl.Full,
    weight: bl.Row,
    labels: bl.PerRow[int],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
):
    """Returns the losses of rows with weights of the columns, and the weight of each label."""
    largest, rest = bl.logsumexp_parts(logits)
    of_label = at_label(weight, labels)
    loss = (beyond_largest(largest, rest) - (at_label(logits, labels) - largest)) * of_label
    if label_smoothing:
        of_all = bl.mean((beyond_largest(largest, rest) - (logits - largest)) * weight)
        loss = loss * (1 - label_smoothing) + of_all * label_smoothing
    ignored = labels == ignore_index
    known = bl.where(is_column(labels), loss, math.nan)
    return bl.where(ignored, 0.0, known), bl.where(ignored, 0.0, of_label)


@declared(keep=("largest", "rest"))
@named("cross_entropy")
def probability_losses(
    logits: bl.Full,
    target: bl.Full,
    weight: bl.Row | None = None,
    *,
    label_smoothing: float = 0.0,
):
    """Returns −Σ target·weight·log softmax(logits) of each row, the target smoothed."""
    largest, rest = bl.logsumexp_parts(logits)
    logs: Any = beyond_largest(largest, rest) - (logits - largest)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / bl.columns()
    return bl.sum(target * (logs if weight is None else logs * weight)) + 0.0
