"""Cross-entropy of a linear layer's logits, of which few rows exist at a time, for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from bridge.catalogue.cross_entropy import Options
from bridge.catalogue.linear_cross_entropy import check_dtypes, check_shapes, chunk_rows
from bridge.torch._adapter.autograd import forward_ad, is_recorded, is_watched
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import NAMES
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._adapter.recomputed import recomputed
from bridge.torch._ops.cross_entropy import losses_of, reduce
from bridge.torch._ops.labels import check_labels

_NAME = "linear_cross_entropy"


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    chunk: int | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    r"""`cross_entropy(hidden @ weight.T + bias, labels)`, without the logits of all rows in memory.

    The logits of `chunk` rows exist at a time. For a mean or a sum the gradients of hidden, weight
    and bias are formed while they do, in the forward pass; for `"none"`, and for derivatives of
    gradients, the logits are computed again. The matrix products are torch's own, so the bits of
    the result are not those of `bridge.jax`.

    Args:
      hidden: `[..., features]`.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      chunk: rows whose logits exist at a time; None for so many that their logits take about the
        memory of `hidden`, and at least 256.
      reduction, ignore_index, label_smoothing, z_loss, softcap: as for `cross_entropy`.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64.

    Raises:
      TypeError, ValueError: as for `cross_entropy`; dtypes that differ, shapes that do not fit, a
        chunk that is no positive integer.

    Example:
      >>> linear_cross_entropy(torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0, 1]))
      tensor(1.3863)

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
    gradients in the forward pass: Hsu et al., "Liger Kernel", arXiv:2410.10989.
    """
    if is_overridden(given := (hidden, weight, labels, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    numbers = map(fixed, (ignore_index, label_smoothing, z_loss, softcap))
    options = Options.of(_NAME, reduction, *numbers)
    check_tensors(_NAME, required=3, hidden=hidden, weight=weight, labels=labels, bias=bias)
    shapes = {"hidden": hidden, "weight": weight, "labels": labels, "bias": bias}
    check_shapes(_NAME, {n: None if t is None else tuple(t.shape) for n, t in shapes.items()})
    floating = {"hidden": hidden, "weight": weight, "bias": bias}
    check_dtypes(
        _NAME,
        {name: NAMES.get(t.dtype, str(t.dtype)) for name, t in floating.items() if t is not None},
        NAMES.get(labels.dtype, str(labels.dtype)),
    )
    check_labels(_NAME, labels, weight.shape[0], options.ignore_index)
    rows = hidden.reshape(-1, hidden.shape[-1])
    count = chunk_rows(_NAME, chunk, rows.shape[0], *reversed(weight.shape))
    operands = (rows, weight, labels.reshape(-1), bias)
    at_once = (
        options.reduction != "none"
        and not torch.compiler.is_compiling()
        and not is_watched(operands)
        and forward_ad._current_level < 0
        and is_recorded((rows, weight, bias))
    )
    if at_once:
        return _AtOnce.apply(*operands, count, options)  # type: ignore[no-any-return]
    found = _again(*operands, count, options)
    return found.reshape(labels.shape) if options.reduction == "none" else found


def _again(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Any, count: int, options: Options
) -> Tensor:
    """The losses of `[rows, features]`; backward passes compute each chunk's logits again."""

    def losses(hidden: Tensor, labels: Tensor) -> Any:
        return losses_of(linear(hidden, weight, bias), labels, options)

    found = [recomputed(losses, part, weight, bias) for part in _parts(count, hidden, labels)]
    return reduce(options.reduction, *[torch.cat(each) for each in zip(*found, strict=True)])


def _parts(count: int, *arrays: Tensor) -> Any:
    """Chunks of so many rows, one at least."""
    return zip(*[array.split(count) for array in arrays], strict=True)


class _AtOnce(torch.autograd.Function):
    """A mean or a sum whose gradients are formed in the forward pass, but for their factor."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Any,
        count: int,
        options: Options,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, labels, bias)
        ctx.count, ctx.options = count, options
        of_hidden, of_weight, _, of_bias, *_ = ctx.needs_input_grad
        share = _share(labels, options, hidden.dtype)
        dh = torch.empty_like(hidden) if of_hidden else None
        dw = _zeros_for_sums(weight) if of_weight else None
        db = _zeros_for_sums(bias) if of_bias else None
        found = []
        rows_of_dh = _parts(count, hidden if dh is None else dh)
        for (h, own), (written,) in zip(_parts(count, hidden, labels), rows_of_dh, strict=True):
            logits = linear(h, weight, bias).requires_grad_()
            with torch.enable_grad():
                of_rows = losses_of(logits, own, options, overwrite=True)
            (d,) = torch.autograd.grad(of_rows[:1], logits, [share.expand(len(own))])
            found.append([each.detach() for each in of_rows])
            if dh is not None:
                written.copy_(d @ weight)
            if dw is not None:
                dw += d.t() @ h
            if db is not None:
                db += d.sum(0, dtype=db.dtype)
            del logits, of_rows, d  # or those of two chunks would be there
        ctx.gradients = [
            None if gradient is None else gradient.to(like.dtype)
            for gradient, like in ((dh, hidden), (dw, weight), (db, bias))
        ]
        return reduce(options.reduction, *[torch.cat(each) for each in zip(*found, strict=True)])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if torch.is_grad_enabled():  # these are differentiated again
            hidden, weight, labels, bias = ctx.saved_tensors
            is_wanted = ctx.needs_input_grad[:4]
            wanted = [t for t, i in zip(ctx.saved_tensors, is_wanted, strict=True) if i]
            loss = _again(hidden, weight, labels, bias, ctx.count, ctx.options)
            made = iter(torch.autograd.grad(loss, wanted, g, create_graph=True))
            return (*[next(made) if i else None for i in is_wanted], None, None)
        dh, dw, db = (None if each is None else each * g for each in ctx.gradients)
        return dh, dw, None, db, None, None


def _share(labels: Tensor, options: Options, dtype: torch.dtype) -> Tensor:
    """What the result changes by with each row's loss."""
    one = torch.ones((), dtype=_SUMS.get(dtype, dtype), device=labels.device)
    if options.reduction == "sum":
        return one
    return one / (labels != options.ignore_index).sum().clamp(min=1)


def _zeros_for_sums(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=_SUMS.get(like.dtype, like.dtype))


_SUMS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
