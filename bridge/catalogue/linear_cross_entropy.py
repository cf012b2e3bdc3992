"""Cross-entropy of a linear layer's logits, of which only a few rows exist at a time.

With bits="portable" the matrix products are bridge's. For each chunk of rows

    logits = hidden weightᵀ + bias        dhidden = dlogits weight
    losses = cross_entropy(logits)        dweight = Σ dlogitsᵀ hidden,  dbias = Σ dlogits

logits and dlogits are rounded to the dtype of hidden. The sums over all rows have the order of one
product and of one column sum. So the bits are those of `cross_entropy(linear(...))`, for any chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.catalogue.checks import check_each
from bridge.catalogue.cross_entropy import CrossEntropy, Options, row_losses
from bridge.catalogue.cross_entropy import Labels as LabelsOfRows
from bridge.catalogue.linear_rows import BITS, RowsOp, checked_operands, rows_at_once
from bridge.ops.arrays import Arrays

NAME = "linear_cross_entropy"


class Labels(LabelsOfRows, Protocol):
    """The interface of `labels` in bridge/torch/_ops and bridge/jax/_ops."""

    def as_signed(self, labels: Any, ignore_index: int) -> tuple[Any, int]:
        """Returns labels of the widest signed dtype, and the label that is ignored among them."""


class LinearCrossEntropy:
    """`linear_cross_entropy` in one framework.

    Args:
      compute, portable: compute(operands, chunk, options) returns the loss of checked operands, by
        the framework's products and by bridge's.
    """

    def __init__(
        self,
        arrays: Arrays,
        labels: Labels,
        losses: CrossEntropy,
        compute: Callable[[tuple[Any, ...], int | None, Any], Any],
        portable: Callable[[tuple[Any, ...], int | None, Any], Any],
    ) -> None:
        self._arrays, self._labels, self._losses = arrays, labels, losses
        self._compute, self._portable = compute, portable

    def run(self, operands: tuple[Any, ...], chunk: Any, bits: Any, *options: Any) -> Any:
        """Returns the loss of hidden, weight, labels and bias.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        check_each(BITS, NAME, bits=bits)
        checked = self._losses.options(NAME, *options)
        operands = self.checked(NAME, operands, checked.ignore_index)
        chunk = rows_at_once(self._arrays, NAME, chunk)
        return (self._portable if bits else self._compute)(operands, chunk, checked)

    def composed(
        self,
        rows: Callable[..., Any],
        operands: tuple[Any, ...],
        chunk: int | None,
        options: Options,
    ) -> Any:
        """Returns the loss by bridge's products.

        Args:
          rows: rows(operands, options) runs the composition of `ROWS`.
        """
        hidden, weight, labels, bias = operands
        shape, count = labels.shape, math.prod(labels.shape)  # there may be 0 features
        labels, ignored = self._labels.as_signed(labels.reshape((count,)), options.ignore_index)
        numbers = RowOptions(ignored, *options.static[1:], chunk or 0)
        hidden = hidden.reshape((count, weight.shape[1]))
        losses = rows((hidden, weight, bias, labels), numbers)
        if options.reduction == "none":
            return losses.reshape(shape)
        found = [losses]
        if options.is_mean:
            found.append(self._arrays.cast(labels != ignored, self._arrays.dtype_of(losses)))
        return self._losses.reduced(options.reduction, *found)

    def checked(
        self, function: str, operands: tuple[Any, ...], ignore_index: int, ranks: int = 1
    ) -> tuple[Any, ...]:
        """Returns hidden, weight, labels and bias as arrays, in autocast's dtype where that is on.

        The weight is one rank's part of `ranks` equal parts.

        Raises:
          TypeError, ValueError: as `linear_cross_entropy`.
        """
        hidden, weight, labels, bias = operands
        rows, given = hidden, labels
        hidden, weight, bias, labels = checked_operands(
            self._arrays, function, ((hidden, weight, bias),), labels
        )
        self._labels.check_ignored(function, given, ignore_index)
        columns = weight.shape[0] * ranks
        self._labels.check_labels(function, given, rows, columns, ignore_index)
        return hidden, weight, labels, bias


@dataclass(frozen=True)
class RowOptions:
    """The options of the losses of rows.

    Attributes:
      chunk: the rows whose logits exist at a time; 0 chooses them.
    """

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    chunk: int = 0


ROWS = RowsOp(f"{NAME}_rows", row_losses, RowOptions)
