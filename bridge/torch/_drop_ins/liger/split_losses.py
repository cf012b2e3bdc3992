"""The cross-entropy of Liger-Kernel for logits that are split over ranks."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.losses import ranks_in, split_losses, spread_smoothing

_FORMULAS, _MODES = ("pytorch", "megatron"), ("global", "partition")


class LigerVocabParallelCEFunction(Function, metaclass=DropIn):
    """`LigerVocabParallelCEFunction.apply(vocab_parallel_logits, target, tp_group, ...)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        vocab_parallel_logits: Tensor,
        target: Tensor,
        tp_group: Any,
        ignore_index: int,
        label_smoothing: float,
        label_smoothing_formula: str,
        label_smoothing_mode: str,
    ) -> Tensor:
        """Returns the loss of each row, as `LigerVocabParallelCrossEntropy` does."""
        _check_smoothing(label_smoothing_formula, label_smoothing_mode)
        if label_smoothing and label_smoothing_mode == "partition" and ranks_in(tp_group) > 1:
            raise ValueError(
                "LigerVocabParallelCEFunction: label_smoothing_mode is 'partition', expected "
                "'global' if ranks share the vocabulary"
            )
        if label_smoothing_formula == "megatron":
            label_smoothing = spread_smoothing(
                "LigerVocabParallelCEFunction", label_smoothing, vocab_parallel_logits, tp_group
            )
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return split_losses(vocab_parallel_logits, target, tp_group, **options)


class LigerVocabParallelCrossEntropy(torch.nn.Module):
    """The loss of each row of logits that are split over the ranks of a group, in float32.

    Args:
      ignore_index: rows with this label have the loss 0 and no gradient.
      label_smoothing: from 0 on, less than 1.
      reduction: "none".
      label_smoothing_formula: "pytorch", as in `torch.nn.functional.cross_entropy`, or "megatron",
        which spreads ε·V/(V − 1) over the V columns.
      label_smoothing_mode: "global"; or "partition", in the original the mean over a rank's part.
        Both are the same if one rank has all columns.

    Raises:
      ValueError: another reduction, formula or mode, or a smoothing out of range; in a call
        "partition" with smoothing and several ranks.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "none",
        label_smoothing_formula: str = "pytorch",
        label_smoothing_mode: str = "global",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if reduction != "none":
            raise ValueError(f"{name}: reduction is {reduction!r}, expected 'none'")
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"{name}: label_smoothing is {label_smoothing}, expected a number from 0 on, less "
                "than 1"
            )
        _check_smoothing(label_smoothing_formula, label_smoothing_mode)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.reduction = reduction
        self.label_smoothing_formula = label_smoothing_formula
        self.label_smoothing_mode = label_smoothing_mode

    def forward(
        self, vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any = None
    ) -> Tensor:
        """Returns the loss of each row.

        Args:
          vocab_parallel_logits: `[..., V / ranks]`; target: `[...]`, numbers of columns of the
            whole.
          tp_group: a process group; None, or a group of one rank, for whole rows.
        """
        return LigerVocabParallelCEFunction.apply(
            vocab_parallel_logits,
            target,
            tp_group,
            self.ignore_index,
            self.label_smoothing,
            self.label_smoothing_formula,
            self.label_smoothing_mode,
        )

    def extra_repr(self) -> str:
        return (
            f"ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}, "
            f"reduction={self.reduction!r}, "
            f"label_smoothing_formula={self.label_smoothing_formula!r}, "
            f"label_smoothing_mode={self.label_smoothing_mode!r}"
        )


def _check_smoothing(formula: str, mode: str) -> None:
    for name, value, known in (("formula", formula, _FORMULAS), ("mode", mode, _MODES)):
        if value not in known:
            raise ValueError(
                f"LigerVocabParallelCrossEntropy: label_smoothing_{name} is {value!r}, expected "
                f"{' or '.join(map(repr, known))}"
            )
