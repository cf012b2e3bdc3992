"""Cross-entropy of logits and labels, for PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import cross_entropy as losses
from bridge.catalogue.cross_entropy import Options
from bridge.ops import PROGRAM
from bridge.torch._adapter.autograd import Plan, plan_of
from bridge.torch._adapter.chain import chained
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.destination import call_overwritten, pull_over
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import Results, dtypes_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.labels import as_signed, check_labels

# Make them now: a first call under torch.compile could not make them.
_row_losses, _counted_losses = (
    op.entry("torch") for op in (losses.row_losses, losses.counted_losses)
)
_total, _mean = losses.total.entry("torch"), losses.mean.entry("torch")


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
    is_unsigned = getattr(labels, "dtype", None) is torch.uint64
    read = as_signed(labels, ignore_index) if is_unsigned else labels
    if group is None and not overwrite_logits:
        numbers = ignore_index, label_smoothing, z_loss, softcap
        loss: Any = _reduced((logits, read), reduction, *numbers)
        check_labels("cross_entropy", labels, logits.shape[-1], ignore_index)
        return loss  # type: ignore[no-any-return]
    fixed_numbers = map(fixed, (ignore_index, label_smoothing, z_loss, softcap))
    options = Options.of("cross_entropy", reduction, *fixed_numbers)
    if group is not None:
        from bridge.torch._ops.split_vocabulary import joined  # needs torch.distributed

        def check(ranks: int) -> None:
            _row_losses.prepare(logits, read, **options.of_rows)
            check_labels("cross_entropy", labels, logits.shape[-1] * ranks, options.ignore_index)

        logits = joined("cross_entropy", logits, group, check, others=options.words)
        overwrite_logits = False
    found = losses_of(logits, read, options, overwrite_logits)
    if group is None:
        check_labels("cross_entropy", labels, logits.shape[-1], options.ignore_index)
    loss = reduce(reduction, *found)
    return loss if group is None else loss.to_local()  # type: ignore[no-any-return]


def losses_of(
    logits: Tensor, labels: Tensor, options: Options, overwrite: bool = False
) -> tuple[Tensor, ...]:
    """Returns the loss of each row and, for a mean, 1 for each row that counts.

    Labels are not checked.
    """
    is_mean = options.reduction == "mean"
    of_rows: Any = _counted_losses if is_mean else _row_losses
    if overwrite:
        params = of_rows.prepare(logits, labels, **options.of_rows)
        found: Any = call_overwritten("cross_entropy", PROGRAM, (logits, labels), params)
        return found if is_mean else found[:1]  # type: ignore[no-any-return]
    found = of_rows.public(logits, labels, **options.of_rows)
    return found if is_mean else (found,)


def losses_and_gradient(
    logits: Tensor, labels: Tensor, options: Options, g: Tensor | None
) -> tuple[Any, Any]:
    """Returns `losses_of` and the gradient, written over the logits; autograd records nothing.

    Args:
      g: cotangents of the losses, or None for no gradient.
    """
    is_mean = options.reduction == "mean"
    of_rows: Any = _counted_losses if is_mean else _row_losses
    operands, count = (logits, labels), 1 + is_mean
    params = of_rows.prepare(*operands, **options.of_rows)
    plan = plan_of(PROGRAM, params, dtypes_of(operands), "cross_entropy")
    if g is None:
        return plan.run_below(operands)[:count], None
    results = plan.saving.run_below(operands)
    return results[:count], pull_over(plan, operands, results, (g, None)[:count])


def _reduced(operands: tuple[Tensor, Tensor], reduction: str, *numbers: Any) -> Tensor:
    """Returns the loss of plain logits; checks options at their first call, and no labels."""
    is_mean = reduction == "mean"
    of_rows = _counted if is_mean else _uncounted
    logits, labels = operands
    plan = None
    is_recorded = getattr(logits, "requires_grad", False) and torch.is_grad_enabled()
    if is_recorded and reduction != "none" and getattr(labels, "ndim", 0) == 1:
        plan = of_rows.recorded(operands, reduction, *numbers)
    if plan is not None:
        try:
            return chained(plan, _mean_of if is_mean else _total_of, operands)  # type: ignore[no-any-return]
        except ValueError:  # wrong shapes: the checks below raise a better message
            pass
    found = of_rows.run(operands, None, reduction, *numbers)
    return reduce(reduction, *(found if is_mean else (found,)))


_reductions: dict[Any, Plan] = {}  # key: the op and the dtype of the losses


def _reduction_of(op: Any, found: Results) -> Plan:
    """Returns the plan that reduces such losses, which have one dimension."""
    key = op, found[0].dtype  # type: ignore[union-attr]
    if key not in _reductions:
        params = op.prepare(*found)
        _reductions[key] = plan_of(PROGRAM, params, dtypes_of(found), "cross_entropy")
    return _reductions[key]


_mean_of, _total_of = partial(_reduction_of, _mean), partial(_reduction_of, _total)


class _Losses(DeclaredEntry):
    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        options = Options.of("cross_entropy", *values)
        return super().resolve(operands, *options.of_rows.values())


_counted, _uncounted = _Losses(losses.counted_losses), _Losses(losses.row_losses)


def reduce(reduction: str, losses: Tensor, *counts: Tensor) -> Tensor:
    """Returns the losses reduced as `reduction` says."""
    if reduction == "none":
        return losses
    flat = [each if each.ndim == 1 else _flat(each) for each in (losses, *counts)]
    return (_mean if counts else _total).public(*flat)  # type: ignore[no-any-return]


def _flat(numbers: Tensor) -> Tensor:
    if type(numbers).__name__ == "DTensor":
        from bridge.torch._sharded.rows import in_one_dimension

        return in_one_dimension(numbers)
    return numbers.flatten()  # reshape(-1) fails if the batch has no elements
