"""Cross-entropy of logits and labels, for PyTorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bridge.catalogue import cross_entropy as losses
from bridge.catalogue.cross_entropy import CrossEntropy, options_of
from bridge.torch._adapter import arrays
from bridge.torch._adapter.chain import Chain
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops import labels as labels_of_torch
from bridge.torch._ops.labels import check_labels, readable

_NAME = "cross_entropy"


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    group: Any = None,
    overwrite_logits: bool = False,
) -> Tensor:
    r"""−log softmax(logits)[label] of each row, and their mean or sum.

    With s = logits, or softcap·tanh(logits / softcap), and lse = log Σ exp(s), the loss of a row is

        (1 − ε)·(lse − s[label]) + ε·(lse − mean(s)) + z_loss·lse²        ε = label_smoothing

    in one reading of the logits; no array of their size is made. The backward pass reads them once
    more and writes their gradient. The bits of a row's loss depend on that row alone, and
    `bridge.jax` gives the same bits. Differentiable to any order, in reverse and forward mode.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64, of any strides.
      labels: `[...]` of any integer dtype: a column's number, from 0 on, or `ignore_index`.
      reduction: `"mean"` over the rows that are not ignored, `"sum"`, or `"none"`.
      ignore_index: rows with this label have the loss 0 and no gradient.
      label_smoothing: from 0 to 1.
      z_loss: a number from 0 on, in the range of float32.
      softcap: a positive number in the range of float32, or None.
      group: a `torch.distributed` process group whose ranks have equal parts of the columns, in
        rank order. Labels are numbers of columns of the whole; labels and loss are the same on all
        ranks. The ranks exchange each row's maximum, sum and label's logit, never the row; the bits
        do not depend on the number of ranks. First the ranks compare shapes and dtypes, as in
        `all_gather`, but not labels: if one rank has other labels, losses are wrong without an
        error. Works with autograd and `torch.compile(fullgraph=True)`, not with `torch.func` or
        forward mode.
      overwrite_logits: the backward pass may write the gradient over the logits: nobody reads them
        again.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64. A mean of no rows is 0. NaN for a
      label out of range that could not be checked before: on a GPU and under transforms.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; a numeric argument is not a
        number; group is not a process group.
      ValueError: shapes that do not fit; another reduction; a number out of its range; a label out
        of range. With a group on all of its ranks, also if shapes or dtypes differ between them.
      NotImplementedError: a group under `torch.func` or in forward mode.

    Example:
      >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, -100]))
      tensor(1.3863)
    """
    if is_overridden(given := (logits, labels)):
        return hand_over(given)  # type: ignore[no-any-return]
    options = reduction, ignore_index, label_smoothing, z_loss, softcap
    return _loss(logits, labels, options, group, overwrite_logits)  # type: ignore[no-any-return]


def _loss(logits: Any, labels: Any, given: Any, group: Any, overwrite: bool) -> Any:
    if group is None and not overwrite:
        operands, reduction = (logits, readable(_NAME, labels, given[1])), given[0]
        if reduction == "none":
            loss = _rows.run(operands, None, *given)
        else:
            loss = (_mean if reduction == "mean" else _sum).run(operands, given)
        check_labels(_NAME, labels, logits, logits.shape[-1], given[1])
        return loss
    options = cross_entropies.options(_NAME, *given)
    if group is None:
        return cross_entropies.loss(_NAME, logits, labels, options, DeclaredEntry.overwritten)
    from bridge.torch._ops.split_vocabulary import joined  # needs torch.distributed

    def check(ranks: int) -> None:
        read = readable(_NAME, labels, options.ignore_index)
        cross_entropies.entries[0].params((logits, read), *options.static)
        check_labels(_NAME, labels, logits, logits.shape[-1] * ranks, options.ignore_index)

    whole = joined(_NAME, logits, group, check, others=options.words)
    return cross_entropies.loss(_NAME, whole, labels, options).to_local()


def flat(numbers: Tensor) -> Tensor:
    """Returns the numbers in one dimension."""
    if type(numbers).__name__ == "DTensor":
        from bridge.torch._sharded.rows import in_one_dimension

        return in_one_dimension(numbers)
    return numbers.flatten()  # reshape(-1) fails if the batch has no elements


class _Rows(DeclaredEntry):
    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        return super().resolve(operands, *options_of(self.name, *values).static)


cross_entropies = CrossEntropy(arrays, labels_of_torch, flat)
_rows = _Rows(losses.row_losses)
_sum = Chain(_rows, cross_entropies.total, flat)
_mean = Chain(_Rows(losses.counted_losses), cross_entropies.mean, flat)
