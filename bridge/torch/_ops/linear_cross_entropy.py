"""Cross-entropy of a linear layer's logits, computed for a few rows at a time, for PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from bridge._private.torch import (
    SingleLevelFunction,
    functorch_active,
    is_exporting,
    is_old_batched,
)
from bridge.catalogue.cross_entropy import Options, options_of
from bridge.catalogue.linear_cross_entropy import check_dtypes, check_shapes, chunk_rows
from bridge.ops.scalars import whole_number
from bridge.torch._adapter.autocast import cast
from bridge.torch._adapter.autograd import forward_ad, is_recorded, is_traced, is_watched
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.dispatcher import library
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import dtype_word, is_unguarded
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._adapter.recomputed import recomputed
from bridge.torch._ops.cross_entropy import cross_entropies
from bridge.torch._ops.labels import check_labels, readable

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

    The logits of `chunk` rows exist at a time. For a mean or a sum, the gradients of hidden, weight
    and bias are computed from them in the forward pass. For `"none"`, and for derivatives of
    gradients, the logits are computed again. Torch computes the matrix products, so the bits of the
    result differ from `bridge.jax`.

    Args:
      hidden: `[..., features]`. Under autocast, hidden, weight and bias are converted to its dtype,
        except float64 tensors.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      chunk: number of rows whose logits exist at a time. None: so many that their logits take about
        the memory of `hidden`, at least 256, and at least 512 if there are 4096 rows or more.
      reduction, ignore_index, label_smoothing, z_loss, softcap: as for `cross_entropy`.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64.

    Raises:
      TypeError, ValueError: as for `cross_entropy`; dtypes that differ; shapes that do not fit; a
        chunk that is not a positive integer.

    Example:
      >>> linear_cross_entropy(torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0, 1]))
      tensor(1.3863)

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
    gradients in the forward pass: Hsu et al., "Liger Kernel", arXiv:2410.10989.
    """
    if is_overridden(given := (hidden, weight, labels, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    numbers = map(fixed, (ignore_index, label_smoothing, z_loss, softcap))
    options = options_of(_NAME, reduction, *numbers)
    hidden, weight, bias = check_linear(_NAME, hidden, weight, labels, bias, options.ignore_index)
    labels = readable(_NAME, labels, options.ignore_index)
    if chunk is not None:
        chunk = whole_number(_NAME, "chunk", fixed(chunk), 1)
    if any(type(t).__name__ == "DTensor" for t in (hidden, weight, labels, bias)):
        return _of_dtensors(hidden, weight, labels, bias, chunk, options)
    # Count rows by the labels: there may be 0 features.
    rows = hidden.reshape(labels.numel(), hidden.shape[-1])
    operands = (rows, weight, labels.flatten(), bias)
    is_plain = torch.compiler.is_compiling() or not is_watched(operands)
    is_transformed = functorch_active() or forward_ad._current_level >= 0
    is_any_count = is_unguarded(rows.shape[0]) and not is_transformed
    if is_exporting() or torch.jit.is_tracing() or is_any_count:
        # The first two record the ops that a Function calls, not the Function.
        made = _pass(operands, None, chunk, options, [False] * 3)
        found = cross_entropies.reduced(
            options.reduction, *[each for each in made if each is not None]
        )
    elif is_plain and not is_transformed:
        is_wanted = [
            torch.is_grad_enabled() and t is not None and t.requires_grad
            for t in (rows, weight, bias)
        ]
        found = _InChunks.apply(*operands, chunk, options, is_wanted)
    else:
        found = _again(*operands, chunk, options)
    # Reshape only if needed: torch does not reshape a sparse gradient.
    is_flat = options.reduction != "none" or labels.ndim == 1
    return found if is_flat else found.reshape(labels.shape)  # type: ignore[no-any-return]


def check_linear(
    function: str,
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    ranks: int = 1,
) -> Any:
    """Checks the tensors and returns hidden, weight and bias, cast to autocast's dtype if it is on.

    The weight is one rank's part of `ranks` equal parts.

    Raises:
      TypeError, ValueError: as `linear_cross_entropy`.
    """
    check_tensors(function, 3, hidden=hidden, weight=weight, labels=labels, bias=bias)
    hidden, weight, bias = cast(hidden, weight, bias)
    shapes = {"hidden": hidden, "weight": weight, "labels": labels, "bias": bias}
    check_shapes(function, {n: None if t is None else tuple(t.shape) for n, t in shapes.items()})
    floating = {"hidden": hidden, "weight": weight, "bias": bias}
    check_dtypes(
        function,
        {name: dtype_word(t.dtype) for name, t in floating.items() if t is not None},
        dtype_word(labels.dtype),
    )
    check_labels(function, labels, hidden, weight.shape[0] * ranks, ignore_index)
    return hidden, weight, bias


def _again(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Any, chunk: Any, options: Options
) -> Tensor:
    """Computes losses of `[rows, features]`; the backward pass recomputes each chunk's logits."""
    if is_unguarded(hidden.shape[0]):
        parts: Any = [(hidden, labels)]
    else:
        count = chunk_rows(chunk, hidden.shape[0], *reversed(weight.shape))
        parts = _parts(count, hidden, labels)
    first, *others = _recomputed_losses(parts, weight, bias, options)
    if others:  # torch.cat fails if the batch has no rows
        first = [torch.cat(each) for each in zip(first, *others, strict=True)]
    return cross_entropies.reduced(options.reduction, *first)


def _recomputed_losses(parts: Any, weight: Tensor, bias: Any, options: Options) -> list[Any]:
    def losses(hidden: Tensor, labels: Tensor) -> Any:
        logits = linear(hidden, weight, bias)
        return cross_entropies.of_rows((logits, labels), options)

    return [recomputed(losses, part, weight, bias) for part in parts]


def _of_dtensors(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Any, chunk: Any, options: Options
) -> Tensor:
    """Computes losses of DTensors: a chunk has rows of every process, which stay where they are."""
    # These need torch.distributed.
    from bridge.torch._sharded.rows import Rows, on_mesh, one_mesh, refuse_plain

    operands = (hidden, weight, labels, bias)
    mesh = one_mesh(_NAME, operands)
    refuse_plain(_NAME, ("hidden", "weight", "labels", "bias"), operands)
    rows = Rows.of(hidden, labels, mesh)
    weight, bias = (None if t is None else on_mesh(t, mesh) for t in (weight, bias))  # type: ignore[assignment]
    count = chunk_rows(chunk, labels.numel(), *reversed(weight.shape))
    found = _recomputed_losses(rows.chunks(count, hidden, labels), weight, bias, options)
    losses = [rows.joined(parts) for parts in zip(*found, strict=True)]
    return cross_entropies.reduced(options.reduction, *losses)  # type: ignore[no-any-return]


def _parts(count: int, *arrays: Tensor) -> Any:
    """Returns chunks of at most `count` rows; at least one chunk."""
    return zip(*[array.split(count) for array in arrays], strict=True)


class _InChunks(torch.autograd.Function):
    """The loss of an ordinary call, computed chunk by chunk.

    For a mean or a sum, forward computes the gradients too, up to a factor. For losses of rows, the
    backward pass computes the logits again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Any,
        chunk: int | None,
        options: Options,
        is_wanted: list[bool],
    ) -> Tensor:
        operands = (hidden, weight, labels, bias)
        share, asked = None, [False] * 3
        if options.reduction != "none":
            share = _share(weight)
            asked = is_wanted
        *found, dh, dw, db = _pass(operands, share, chunk, options, asked)
        ctx.chunk, ctx.options, ctx.is_wanted = chunk, options, is_wanted
        if share is not None:
            share = 1 / share
            if options.reduction == "mean":
                share = share / found[1].sum().clamp(min=1)  # type: ignore[union-attr]
        ctx.save_for_backward(*operands, share, dh, dw, db)
        return cross_entropies.reduced(options.reduction, *found)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        g = g.to_dense() if g.is_sparse else g
        *operands, share, dh, dw, db = ctx.saved_tensors
        hidden, weight, _, bias = operands
        is_wanted = ctx.is_wanted
        if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or is_old_batched(g)):
            dh, dw, db = _gradients_again(operands, g, ctx.chunk, ctx.options, is_wanted)
        else:
            if share is None:
                *_, dh, dw, db = _pass(operands, g, ctx.chunk, ctx.options, is_wanted)
            factor = None if share is None else share * g
            made = zip((dh, dw, db), (hidden, weight, bias), is_wanted, strict=True)
            dh, dw, db = (_times(d, factor, like.dtype) if i else None for d, like, i in made)
        return dh, dw, None, db, None, None, None


def _gradients_again(
    operands: Sequence[Any], g: Tensor, chunk: int | None, options: Options, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Returns the gradients of hidden, weight and bias, computed by autograd.

    For gradients that will be differentiated again, or that come in batches.
    """
    is_again = torch.is_grad_enabled()
    hidden, weight, labels, bias = operands
    with torch.enable_grad():
        # Views stop autograd at the operands. Behind an operand it would go on to another operand
        # that it was computed from, and call hooks, which it does anyway behind this Function.
        views = [
            t if not i else t.view_as(t) if is_again else t.detach().requires_grad_()
            for t, i in zip((hidden, weight, bias), wanted, strict=True)
        ]
        loss = _again(views[0], views[1], labels, views[2], chunk, options)
        smooth = [view for view, i in zip(views, wanted, strict=True) if i]
        found = iter(torch.autograd.grad(loss, smooth, g, create_graph=is_again))
    return [next(found) if i else None for i in wanted]


def _times(gradient: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns gradient·factor, rounded once: a loss scale may exceed the range of 16 bits."""
    if factor is None:
        return gradient.to(dtype)
    if gradient.dtype == dtype == factor.dtype:
        return gradient * factor
    factor = factor.reshape([1] * gradient.ndim)  # torch would round a 0-dimensional factor first
    if torch.compiler.is_compiling():
        return (gradient * factor).to(dtype)
    found = torch.empty_like(gradient, dtype=dtype)
    # In parts: torch converts the whole operand before it multiplies.
    for part, written in _parts(1024, gradient, found):
        torch.mul(part, factor, out=written)
    return found


def _pass(
    operands: Sequence[Any], g: Tensor | None, chunk: int | None, options: Options, wanted: Any
) -> list[Tensor | None]:
    """Runs one pass over the chunks.

    Args:
      g: cotangents of the losses, `[rows]`, or one number for all rows.
      wanted: three flags: compute the gradient of hidden, of weight, of bias.

    Returns:
      The loss of each row; for a mean, 1 for each row that counts; and the three gradients or None.
      Gradients of weight and bias have the dtype of sums (`_sums`).
    """
    given = (*operands, g, chunk, options.reduction, *options.static, [int(i) for i in wanted])
    if torch.compiler.is_compiling() or is_traced(operands):
        found = torch.ops.bridge.linear_cross_entropy(*given)
    else:
        found = _run(*given)
    is_mean = options.reduction == "mean"
    made = [each if i else None for each, i in zip(found[2:], wanted, strict=True)]
    return [*found[: 1 + is_mean], *made]


def _run(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    g: Tensor | None,
    chunk: int | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    wanted: Sequence[int],
) -> list[Tensor]:
    """Returns losses, counts and three gradients; results that are not wanted are empty."""
    options = Options(reduction, ignore_index, label_smoothing, z_loss, softcap)
    of = (hidden, weight, labels, bias, g, chunk, options.reduction, *options.static, wanted)
    found, counts, dh, dw, db = _empty(*of)
    if hidden.is_meta:
        return [found, counts, dh, dw, db]
    for gradient in (dw, db):
        gradient.zero_()
    g = None if g is None else g.expand(len(hidden))
    count = chunk_rows(chunk, hidden.shape[0], *reversed(weight.shape))
    room = hidden.new_empty((count, len(weight)))
    entry = cross_entropies.entries[options.is_mean]
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), count):
            rows = slice(start, start + count)
            h = hidden[rows]
            logits = _logits(h, weight, bias, out=room[: len(h)])
            cotangent = g[rows] if g is not None and any(wanted) else None
            of_rows, d = entry.with_gradient((logits, labels[rows]), cotangent, *options.static)
            for to, made in zip((found, counts), of_rows, strict=False):
                to[rows] = made
            if wanted[0]:
                torch.mm(d, weight, out=dh[rows])
            if wanted[1]:
                _add_product(dw, d, h)
            if wanted[2]:
                db += d.sum(0, dtype=db.dtype)
    return [found, counts, dh, dw, db]


def _logits(h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    if bias is None:
        return torch.mm(h, weight.t(), out=out)
    return torch.addmm(bias, h, weight.t(), out=out)


def _add_product(dw: Tensor, d: Tensor, h: Tensor) -> None:
    """Computes dw += dᵀ h; dw has the dtype of sums."""
    if h.dtype == dw.dtype:
        dw.addmm_(d.t(), h)
        return
    if h.dtype != torch.float16 or d.numel() == 0 or h.numel() == 0:
        dw.add_(d.t() @ h)
        return
    # The product sums so many terms that it may overflow in float16 even if their mean does not.
    # Smaller terms may underflow. So scale h by a power of two that uses the whole range.
    most = _largest(d).mul_(len(d)).clamp_(min=1).mul_(_largest(h))
    scale = torch.exp2(torch.floor(torch.log2(_HALF_OF_FLOAT16 / most)))
    scale = torch.where(torch.isfinite(scale) & (scale > 0), scale, 1.0)
    dw.addcmul_(d.t() @ (h * scale), 1 / scale)


def _share(weight: Tensor) -> Tensor:
    """Returns the cotangent with which the forward pass computes gradients, before the real one.

    It is 1. In float16 it is 1/2 if weight is so large that gradients of hidden, at most twice the
    largest weight, would overflow. The backward pass divides by it.
    """
    one = torch.ones((), dtype=_sums(weight.dtype), device=weight.device)
    if weight.dtype != torch.float16 or weight.numel() == 0:
        return one
    return torch.where(_largest(weight) > _HALF_OF_FLOAT16, 0.5, one)


_HALF_OF_FLOAT16 = 32752.0


def _largest(x: Tensor) -> Tensor:
    """Returns the largest |x|, in float32."""
    least, largest = torch.aminmax(x)
    return torch.maximum(-least, largest).float()


def _empty(hidden: Tensor, weight: Tensor, *others: Any) -> list[Tensor]:
    """Returns uninitialised tensors of the shapes and dtypes of `_run`'s results."""
    reduction, wanted = others[4], others[-1]
    rows, (columns, features) = hidden.shape[0], weight.shape
    sums = _sums(hidden.dtype)
    shapes = [
        ((rows,), sums, True),
        ((rows,), sums, reduction == "mean"),
        ((rows, features), hidden.dtype, wanted[0]),
        ((columns, features), sums, wanted[1]),
        ((columns,), sums, wanted[2]),
    ]
    return [hidden.new_empty(shape if i else (0,), dtype=dtype) for shape, dtype, i in shapes]


def _sums(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


class _Recorded(SingleLevelFunction):
    """The op for autograd: only the losses of rows have a derivative."""

    @staticmethod
    def forward(ctx: Any, below: BelowAutograd, *given: Any) -> tuple[Tensor, ...]:
        *operands, _, ctx.chunk, _, ignore_index, smoothing, z_loss, softcap, _ = given
        ctx.options = Options("none", ignore_index, smoothing, z_loss, softcap)
        found = below(*given)
        ctx.save_for_backward(*operands)
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        wanted = [ctx.needs_input_grad[place] for place in (1, 2, 4)]
        operands = ctx.saved_tensors
        if torch.is_grad_enabled():
            dh, dw, db = _gradients_again(operands, g, ctx.chunk, ctx.options, wanted)
        else:
            found = _pass(operands, g, ctx.chunk, ctx.options, wanted)[-3:]
            dh, dw, db = [None if d is None else d.to(operands[0].dtype) for d in found]
        return None, dh, dw, None, db, *[None] * 8


_record = recorder(_Recorded)


def _autograd(keys: Any, *given: Any) -> list[Tensor]:
    operands = given[:4]
    if forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in operands
    ):
        raise NotImplementedError(
            f"{_NAME}: a graph of torch.export, torch.jit.trace or make_fx calls it in forward "
            "mode, expected reverse mode: differentiate the function that was traced"
        )
    below = BelowAutograd(torch.ops.bridge.linear_cross_entropy.default, keys)
    return list(_record(below, *given) if is_recorded(operands) else below(*given))


# This op serves torch.compile, which would otherwise unroll one graph over all chunks, and tools
# such as torch.export, which store a graph of ops and differentiate the ops.
library.define(
    f"{_NAME}(Tensor hidden, Tensor weight, Tensor labels, Tensor? bias, Tensor? g, SymInt? chunk, "
    "str reduction, int ignore_index, float label_smoothing, float z_loss, float softcap, "
    "int[3] wanted) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _key in ("CPU", "CUDA"):
    library.impl(_NAME, _run, _key)
torch.library.register_fake(f"bridge::{_NAME}", _empty, lib=library)
library.impl(_NAME, _autograd, "Autograd", with_keyset=True)
