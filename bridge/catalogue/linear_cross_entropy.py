"""Cross-entropy of a linear layer's logits, of which only a few rows exist at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.catalogue.cross_entropy import CrossEntropy, Labels
from bridge.ops.arrays import Arrays
from bridge.ops.linear_losses import check_dtypes, check_shapes
from bridge.ops.scalars import whole_number

NAME = "linear_cross_entropy"


class LinearCrossEntropy:
    """`linear_cross_entropy` in one framework.

    Args:
      compute: compute(operands, chunk, options) returns the loss of checked operands.
    """

    def __init__(
        self,
        arrays: Arrays,
        labels: Labels,
        losses: CrossEntropy,
        compute: Callable[[tuple[Any, ...], int | None, Any], Any],
    ) -> None:
        self._arrays, self._labels, self._losses = arrays, labels, losses
        self._compute = compute

    def run(self, operands: tuple[Any, ...], chunk: Any, *options: Any) -> Any:
        """Returns the loss of hidden, weight, labels and bias.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        checked = self._losses.options(NAME, *options)
        operands = self.checked(NAME, operands, checked.ignore_index)
        chunk = self._arrays.known(NAME, "chunk", chunk)
        if chunk is not None:
            chunk = whole_number(NAME, "chunk", chunk, 1)
        return self._compute(operands, chunk, checked)

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
        hidden, weight, labels, bias = self._arrays.checked(
            function, 3, ("labels",), hidden=hidden, weight=weight, labels=labels, bias=bias
        )
        hidden, weight, bias = self._arrays.autocast(hidden, weight, bias)
        dtype_of = self._arrays.dtype_of
        floating = {"hidden": hidden, "weight": weight}
        if bias is not None:
            floating["bias"] = bias
        check_shapes(function, labels.shape, **{k: each.shape for k, each in floating.items()})
        dtypes = {name: dtype_of(each) for name, each in floating.items()}
        check_dtypes(function, dtypes, dtype_of(labels))
        self._labels.check_ignored(function, given, ignore_index)
        columns = weight.shape[0] * ranks
        self._labels.check_labels(function, given, rows, columns, ignore_index)
        return hidden, weight, labels, bias
