"""Cross-entropy of logits with the labels of their rows, and reductions of a batch of losses.

Source: z-loss, Chowdhery et al., "PaLM", arXiv:2204.02311; label smoothing, Szegedy et al.,
"Rethinking the Inception Architecture", arXiv:1512.00567; soft caps, "Gemma 2", arXiv:2408.00118.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.labels import at_label, is_column
from bridge.lang.functions import beyond_largest
from bridge.ops.scalars import (
    LARGEST_FLOAT32,
    LEAST_FLOAT32,
    real_number,
    whole_number,
)

REDUCTIONS = ("mean", "sum", "none")


def _capped(logits: Any, softcap: float) -> Any:
    return softcap * bl.tanh(logits / softcap) if softcap else logits


def _loss(
    s: Any,
    largest: Any,
    rest: Any,
    labels: Any,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
) -> Any:
    target = at_label(s, labels) - largest
    if smoothing:
        target = target * (1 - smoothing) + bl.mean(s - largest) * smoothing
    loss = beyond_largest(largest, rest) - target
    if z_loss:
        lse = largest + rest
        loss = loss + z_loss * (lse * lse)
    known = bl.where(is_column(labels), loss, math.nan)
    return bl.where(labels == ignore_index, 0.0, known)


@declared(keep=("largest", "rest"))
@named("cross_entropy")
def row_losses(
    logits: bl.Full,
    labels: bl.PerRow[int],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
):
    s = _capped(logits, softcap)
    largest, rest = bl.logsumexp_parts(s)
    return _loss(s, largest, rest, labels, ignore_index, label_smoothing, z_loss)


@declared(keep=("largest", "rest"))
@named("cross_entropy")
def counted_losses(
    logits: bl.Full,
    labels: bl.PerRow[int],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
):
    """Returns the losses, and 1 for each row that is not ignored."""
    s = _capped(logits, softcap)
    largest, rest = bl.logsumexp_parts(s)
    losses = _loss(s, largest, rest, labels, ignore_index, label_smoothing, z_loss)
    return losses, bl.where(labels == ignore_index, 0.0, 1.0)


@declared()
@named("cross_entropy")
def total(losses: bl.Full):
    return bl.sum(losses) + 0.0  # turns -0.0, the sum of no rows, into +0.0


@declared()
@named("cross_entropy")
def mean(losses: bl.Full, counts: bl.Full):
    # Counts get no derivative, not even zeros, which would be added to other cotangents.
    return (bl.sum(losses) + 0.0) / bl.maximum(bl.sum(bl.stop_gradient(counts)), 1.0)


@dataclass(frozen=True)
class Options:
    """The checked options of cross-entropy."""

    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float

    @staticmethod
    def of(
        function: str,
        reduction: Any,
        ignore_index: Any,
        label_smoothing: Any,
        z_loss: Any,
        softcap: Any,
    ) -> Options:
        """Checks the options; raises TypeError or ValueError for an invalid one."""
        if reduction not in REDUCTIONS:
            raise ValueError(
                f"{function}: reduction is {reduction!r}, expected one of {', '.join(REDUCTIONS)}"
            )
        smoothing = real_number(function, "label_smoothing", label_smoothing)
        if not 0 <= smoothing <= 1:
            raise ValueError(
                f"{function}: label_smoothing is {smoothing}, expected a number from 0 to 1"
            )
        z = real_number(function, "z_loss", z_loss)
        # Infinity in float32, or a softcap that is 0 there, would make losses NaN.
        if not 0 <= z <= LARGEST_FLOAT32:
            raise ValueError(
                f"{function}: z_loss is {z}, expected a number from 0 to {LARGEST_FLOAT32:.1e}"
            )
        cap = 0.0
        if softcap is not None:
            cap = real_number(function, "softcap", softcap)
            if not LEAST_FLOAT32 <= cap <= LARGEST_FLOAT32:
                raise ValueError(
                    f"{function}: softcap is {cap}, expected a number from "
                    f"{LEAST_FLOAT32:.1e} to {LARGEST_FLOAT32:.1e} or None"
                )
        index = whole_number(function, "ignore_index", ignore_index, -(2**63))
        if index >= 2**63:
            raise ValueError(f"{function}: ignore_index is {index}, expected an integer of 64 bits")
        return Options(reduction, index, smoothing, z, cap)

    def values(self) -> tuple[str, int, float, float, float]:
        """The arguments of Options in order; torch 2.11 cannot trace dataclasses.astuple."""
        return (
            self.reduction,
            self.ignore_index,
            self.label_smoothing,
            self.z_loss,
            self.softcap,
        )

    def words(self) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in vars(self).items())

    @property
    def of_rows(self) -> dict[str, Any]:
        """The static parameters of a row's loss."""
        return {
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
            "z_loss": self.z_loss,
            "softcap": self.softcap,
        }
