"""Cross-entropy of logits with the labels of their rows, and reductions of a batch of losses.

Source: z-loss, Chowdhery et al., "PaLM", arXiv:2204.02311; label smoothing, Szegedy et al.,
"Rethinking the Inception Architecture", arXiv:1512.00567; soft caps, "Gemma 2", arXiv:2408.00118.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.labels import at_label, is_column
from bridge.lang.reductions import beyond_largest
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import LARGEST_FLOAT32, LEAST_FLOAT32, whole_number

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
    """The checked options of cross-entropy; softcap is 0 for None."""

    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float

    @property
    def static(self) -> tuple[int, float, float, float]:
        """The static parameters of a row's loss."""
        return self.ignore_index, self.label_smoothing, self.z_loss, self.softcap

    @property
    def is_mean(self) -> bool:
        return self.reduction == "mean"

    def words(self) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in vars(self).items())


def _check_index(function: str, name: str, value: Any) -> int:
    index = whole_number(function, name, value, -(2**63))
    if index >= 2**63:
        raise ValueError(f"{function}: {name} is {index}, expected an integer of 64 bits")
    return index


# Infinity in float32, or a softcap that is 0 there, would make losses NaN.
_CHECKS = {
    "reduction": checks.word(REDUCTIONS, shown=str),
    "ignore_index": _check_index,
    "label_smoothing": checks.number("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "z_loss": checks.number(
        f"a number from 0 to {LARGEST_FLOAT32:.1e}", lambda value: 0 <= value <= LARGEST_FLOAT32
    ),
    "softcap": checks.optional(
        checks.number(
            f"a number from {LEAST_FLOAT32:.1e} to {LARGEST_FLOAT32:.1e} or None",
            lambda value: LEAST_FLOAT32 <= value <= LARGEST_FLOAT32,
        )
    ),
}


def options_of(function: str, *given: Any) -> Options:
    """Checks the options, given in the order of `Options`.

    Raises:
      TypeError, ValueError: for an option that is not allowed.
    """
    found = [
        check(function, name, value)
        for (name, check), value in zip(_CHECKS.items(), given, strict=True)
    ]
    found[-1] = found[-1] or 0.0
    return Options(*found)


class Labels(Protocol):
    """The interface of `labels` in bridge/torch/_ops and bridge/jax/_ops."""

    def readable(self, function: str, labels: Any, ignore_index: int) -> Any:
        """Returns the labels in a dtype that kernels read, or raises."""

    def check_ignored(self, function: str, labels: Any, ignore_index: int) -> None:
        """Raises ValueError for an ignore_index outside the range of the framework's labels."""

    def check_labels(
        self, function: str, labels: Any, rows: Any, columns: int, ignore_index: int | None = None
    ) -> None:
        """Raises ValueError for a label out of range, if the check need not wait for a device.

        Args:
          rows: the array whose rows have one label each.
        """


class CrossEntropy:
    """Losses of rows and their reductions in one framework."""

    def __init__(self, arrays: Arrays, labels: Labels, flat: Callable[[Any], Any]) -> None:
        self._arrays, self._labels = arrays, labels
        self._flat = flat  # removes all dimensions but one
        self.entries = arrays.entry(row_losses), arrays.entry(counted_losses)
        self.total, self.mean = arrays.entry(total), arrays.entry(mean)

    def options(self, function: str, *given: Any) -> Options:
        """Works as `options_of`, and refuses traced options."""
        known = self._arrays.known
        values = [known(function, name, each) for name, each in zip(_CHECKS, given, strict=True)]
        return options_of(function, *values)

    def loss(
        self,
        function: str,
        logits: Any,
        labels: Any,
        options: Options,
        run: Callable[..., Any] | None = None,
        parts: int = 1,
    ) -> Any:
        """Returns the loss of logits, which are one of `parts` equal parts of the columns.

        Raises:
          ValueError: for a label out of range, after the kernel has been started.
        """
        read = self._labels.readable(function, labels, options.ignore_index)
        found = self.of_rows((logits, read), options, run)
        columns = parts * math.prod(shape_of(logits)[-1:])
        self._labels.check_labels(function, labels, logits, columns, options.ignore_index)
        return self.reduced(options.reduction, *found)

    def entry_of(self, options: Options) -> Any:
        """Returns the entry of the op that computes the losses of rows."""
        return self.entries[options.is_mean]

    def of_rows(
        self, operands: tuple[Any, Any], options: Options, run: Callable[..., Any] | None = None
    ) -> tuple[Any, ...]:
        """Returns the loss of each row and, for a mean, 1 for each row that counts.

        Labels are not checked.

        Args:
          operands: logits and labels.
          run: run(entry, operands, *static) runs an entry in another way.
        """
        entry = self.entry_of(options)
        if run is None:
            found = entry.run(operands, None, *options.static)
        else:
            found = run(entry, operands, *options.static)
        return found if options.is_mean else (found,)

    def reduced(self, reduction: str, *found: Any) -> Any:
        """Returns the losses of rows reduced as `reduction` says."""
        if reduction == "none":
            return found[0]
        flat = tuple([each if each.ndim == 1 else self._flat(each) for each in found])
        return (self.mean if len(flat) > 1 else self.total).run(flat, None)
