"""Losses of a linear layer's results, computed for a few rows at a time.

For a mean or a sum, the forward pass computes the gradients too, up to a factor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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
from bridge.ops.linear_losses import Losses, chunk_rows, step
from bridge.torch._adapter.autocast import without_autocast
from bridge.torch._adapter.autograd import forward_ad, is_recorded, is_traced, is_watched
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library
from bridge.torch._adapter.kernels import dense, is_unguarded
from bridge.torch._adapter.recomputed import recomputed

_SCHEMA_TYPES = {"str": "str", "int": "int", "float": "float"}
Wanted = Sequence[Any]


class LinearLosses:
    """A loss of rows of hidden @ weight.T + bias, with a dispatcher op of its own.

    The op serves torch.compile, which would otherwise unroll one graph over all chunks, and tools
    such as torch.export, which store a graph of ops and differentiate the ops.

    Args:
      name: the public function's name.
      options: the dataclass of options, whose first field is the reduction.
      losses: the loss of logits.
      entry_of: entry_of(options) is the entry of the declared op that computes the losses of rows.
      of_dtensors: of_dtensors(self, operands, chunk, options) computes losses of DTensors.
    """

    def __init__(
        self,
        name: str,
        options: type,
        losses: Losses,
        entry_of: Callable[[Any], Any],
        of_dtensors: Callable[..., Tensor],
    ) -> None:
        self.name, self.options, self.losses = name, options, losses
        self._entry_of, self._of_dtensors = entry_of, of_dtensors
        fields = dataclasses.fields(options)
        self.count = len(fields)
        numbers = ", ".join(f"{_SCHEMA_TYPES[str(field.type)]} {field.name}" for field in fields)
        library.define(
            f"{name}(Tensor hidden, Tensor weight, Tensor labels, Tensor? bias, Tensor? g, "
            f"SymInt? chunk, {numbers}, int[3] wanted) -> Tensor[]",
            tags=(torch.Tag.pt2_compliant_tag,),
        )
        for key in ("CPU", "CUDA"):
            library.impl(name, self._computed, key)
        torch.library.register_fake(f"bridge::{name}", self._empty, lib=library)
        library.impl(name, self._autograd, "Autograd", with_keyset=True)
        self._op = getattr(torch.ops.bridge, name)

    def run(self, operands: tuple[Any, ...], chunk: int | None, options: Any) -> Tensor:
        """Returns the loss of hidden, weight, labels and bias, which have been checked."""
        hidden, weight, labels, bias = operands
        if any(type(t).__name__ == "DTensor" for t in operands):
            return self._of_dtensors(self, operands, chunk, options)
        # Count rows by the labels: there may be 0 features.
        rows = hidden.reshape(labels.numel(), hidden.shape[-1])
        operands = (rows, weight, labels.flatten(), bias)
        is_plain = torch.compiler.is_compiling() or not is_watched(operands)
        is_transformed = functorch_active() or forward_ad._current_level >= 0
        is_any_count = is_unguarded(rows.shape[0]) and not is_transformed
        if is_exporting() or torch.jit.is_tracing() or is_any_count:
            # The first two record the ops that a Function calls, not the Function.
            made = self.computed(operands, None, chunk, options, [False] * 3)
            found = self.losses.reduced(
                options.reduction, *[each for each in made if each is not None]
            )
        elif is_plain and not is_transformed:
            is_wanted = [
                torch.is_grad_enabled() and t is not None and t.requires_grad
                for t in (rows, weight, bias)
            ]
            found = _InChunks.apply(self, *operands, chunk, options, is_wanted)
        else:
            found = self.again(operands, chunk, options)
        # Reshape only if needed: torch does not reshape a sparse gradient.
        is_flat = options.reduction != "none" or labels.ndim == 1
        return found if is_flat else found.reshape(labels.shape)  # type: ignore[no-any-return]

    def again(self, operands: Sequence[Any], chunk: int | None, options: Any) -> Tensor:
        """Computes losses; the backward pass recomputes each chunk's logits."""
        hidden, weight, labels, bias = operands
        if is_unguarded(hidden.shape[0]):
            parts: Any = [(hidden, labels)]
        else:
            count = chunk_rows(chunk, hidden.shape[0], *reversed(weight.shape))
            parts = _parts(count, hidden, labels)
        first, *others = self.recomputed(parts, weight, bias, options)
        if others:  # torch.cat fails if the batch has no rows
            first = tuple([torch.cat(each) for each in zip(first, *others, strict=True)])
        return self.losses.reduced(options.reduction, *first)  # type: ignore[no-any-return]

    def recomputed(self, parts: Any, weight: Tensor, bias: Any, options: Any) -> list[Any]:
        """Returns the losses of each part; the backward pass recomputes its logits."""

        def losses(hidden: Tensor, labels: Tensor) -> Any:
            return self.losses.of_rows((linear(hidden, weight, bias), labels), options)

        return [recomputed(losses, part, weight, bias) for part in parts]

    def computed(
        self,
        operands: Sequence[Any],
        g: Tensor | None,
        chunk: int | None,
        options: Any,
        wanted: Wanted,
    ) -> list[Tensor | None]:
        """Runs one pass over the chunks.

        Args:
          g: cotangents of the losses, `[rows]`, or one number for all rows.
          wanted: three flags: compute the gradient of hidden, of weight, of bias.

        Returns:
          The loss of each row; for a mean, 1 for each row that counts; and the three gradients or
          None. Gradients of weight and bias have the dtype of sums (`_sums`).
        """
        numbers = (options.reduction, *options.static)
        given = (*operands, g, chunk, *numbers, [int(i) for i in wanted])
        if torch.compiler.is_compiling() or is_traced(operands):
            found = self._op(*given)
        else:
            found = self._computed(*given)
        made = [each if i else None for each, i in zip(found[2:], wanted, strict=True)]
        return [*found[: 1 + options.is_mean], *made]

    def _computed(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None,
        g: Tensor | None,
        chunk: int | None,
        *others: Any,
    ) -> list[Tensor]:
        """Returns losses, counts and three gradients; results that are not wanted are empty."""
        *numbers, wanted = others
        options = self.options(*numbers)
        results = self._empty(hidden, weight, labels, bias, g, chunk, *others)
        if hidden.is_meta:
            return results
        found, counts, dh, dw, db = results
        for gradient in (dw, db):
            gradient.zero_()
        g = None if g is None else g.expand(len(hidden))
        count = chunk_rows(chunk, hidden.shape[0], *reversed(weight.shape))
        room = hidden.new_empty((count, len(weight)))
        entry = self._entry_of(options)
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), count):
                rows = slice(start, start + count)
                h = hidden[rows]
                cotangent = g[rows] if g is not None and any(wanted) else None

                def pull(logits: Tensor, rows: Any = rows, cotangent: Any = cotangent) -> Any:
                    return entry.with_gradient((logits, labels[rows]), cotangent, *options.static)

                products = _Products(room[: len(h)], dh[rows] if wanted[0] else None)
                of_rows = step(products, pull, (dw, db), (h, weight, bias), wanted)[1]
                for to, made in zip((found, counts), of_rows, strict=False):
                    to[rows] = made
        return results

    def _empty(self, hidden: Tensor, weight: Tensor, *others: Any) -> list[Tensor]:
        """Returns uninitialised tensors of the shapes and dtypes of the results."""
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

    def gradients_again(
        self, operands: Sequence[Any], g: Tensor, chunk: int | None, options: Any, wanted: Wanted
    ) -> list[Tensor | None]:
        """Returns the gradients of hidden, weight and bias, computed by autograd.

        For gradients that will be differentiated again, or that come in batches.
        """
        is_again = torch.is_grad_enabled()
        hidden, weight, labels, bias = operands
        # A backward pass may run under autocast although the forward pass did not.
        with torch.enable_grad(), without_autocast(hidden.device.type):
            # Views stop autograd at the operands. Behind an operand it would go on to another
            # operand that it was computed from, and call hooks, which it does anyway behind this
            # Function.
            views = [
                t if not i else t.view_as(t) if is_again else t.detach().requires_grad_()
                for t, i in zip((hidden, weight, bias), wanted, strict=True)
            ]
            loss = self.again((views[0], views[1], labels, views[2]), chunk, options)
            smooth = [view for view, i in zip(views, wanted, strict=True) if i]
            found = iter(torch.autograd.grad(loss, smooth, g, create_graph=is_again))
        return [next(found) if i else None for i in wanted]

    def _autograd(self, keys: Any, *given: Any) -> list[Tensor]:
        operands = given[:4]
        if forward_ad._current_level >= 0 and any(
            t is not None and forward_ad.unpack_dual(t).tangent is not None for t in operands
        ):
            raise NotImplementedError(
                f"{self.name}: a graph of torch.export, torch.jit.trace or make_fx calls it in "
                "forward mode, expected reverse mode: differentiate the function that was traced"
            )
        below = BelowAutograd(self._op.default, keys)
        return list(_record(self, below, *given) if is_recorded(operands) else below(*given))


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
        loss: LinearLosses,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Any,
        chunk: int | None,
        options: Any,
        is_wanted: list[bool],
    ) -> Tensor:
        operands = (hidden, weight, labels, bias)
        share, asked = None, [False] * 3
        if options.reduction != "none":
            share = _share(weight)
            asked = is_wanted
        *found, dh, dw, db = loss.computed(operands, share, chunk, options, asked)
        ctx.loss, ctx.chunk, ctx.options, ctx.is_wanted = loss, chunk, options, is_wanted
        if share is not None:
            share = 1 / share
            if options.is_mean:
                share = share / found[1].sum().clamp(min=1)  # type: ignore[union-attr]
        ctx.save_for_backward(*operands, share, dh, dw, db)
        return loss.losses.reduced(options.reduction, *found)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        g = dense(g)
        *operands, share, dh, dw, db = ctx.saved_tensors
        hidden, weight, _, bias = operands
        is_wanted = ctx.is_wanted
        if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or is_old_batched(g)):
            dh, dw, db = ctx.loss.gradients_again(operands, g, ctx.chunk, ctx.options, is_wanted)
        else:
            if share is None:
                *_, dh, dw, db = ctx.loss.computed(operands, g, ctx.chunk, ctx.options, is_wanted)
            factor = None if share is None else share * g
            made = zip((dh, dw, db), (hidden, weight, bias), is_wanted, strict=True)
            dh, dw, db = (_times(d, factor, like.dtype) if i else None for d, like, i in made)
        return None, dh, dw, None, db, None, None, None


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


class _Products:
    """The matrix products of one chunk, written into memory of the pass where that is given."""

    def __init__(self, logits: Tensor, of_hidden: Tensor | None) -> None:
        self._logits, self._of_hidden = logits, of_hidden

    def linear(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return torch.mm(hidden, weight.t(), out=self._logits)
        return torch.addmm(bias, hidden, weight.t(), out=self._logits)

    def times(self, d: Tensor, weight: Tensor) -> Tensor:
        return torch.mm(d, weight, out=self._of_hidden)

    def added(self, total: Tensor, d: Tensor, hidden: Tensor) -> Tensor:
        if hidden.dtype == total.dtype:
            return total.addmm_(d.t(), hidden)
        if hidden.dtype != torch.float16 or d.numel() == 0 or hidden.numel() == 0:
            return total.add_(d.t() @ hidden)
        # The product sums so many terms that it may overflow in float16 even if their mean does
        # not. Smaller terms may underflow. So scale hidden by a power of two that uses the whole
        # range.
        most = _largest(d).mul_(len(d)).clamp_(min=1).mul_(_largest(hidden))
        scale = torch.exp2(torch.floor(torch.log2(_HALF_OF_FLOAT16 / most)))
        scale = torch.where(torch.isfinite(scale) & (scale > 0), scale, 1.0)
        return total.addcmul_(d.t() @ (hidden * scale), 1 / scale)

    def added_rows(self, total: Tensor, d: Tensor) -> Tensor:
        return total.add_(d.sum(0, dtype=total.dtype))


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


def _sums(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


class _Recorded(SingleLevelFunction):
    """The op for autograd: only the losses of rows have a derivative."""

    @staticmethod
    def forward(
        ctx: Any, loss: LinearLosses, below: BelowAutograd, *given: Any
    ) -> tuple[Tensor, ...]:
        *operands, _, ctx.chunk = given[:6]
        _, *numbers, _ = given[6:]
        ctx.loss, ctx.options = loss, loss.options("none", *numbers)
        found = below(*given)
        ctx.save_for_backward(*operands)
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        g, wanted = dense(g), [ctx.needs_input_grad[place] for place in (2, 3, 5)]
        operands = ctx.saved_tensors
        if torch.is_grad_enabled():
            dh, dw, db = ctx.loss.gradients_again(operands, g, ctx.chunk, ctx.options, wanted)
        else:
            found = ctx.loss.computed(operands, g, ctx.chunk, ctx.options, wanted)[-3:]
            dh, dw, db = [None if d is None else d.to(operands[0].dtype) for d in found]
        return None, None, dh, dw, None, db, *[None] * (3 + ctx.loss.count)


_record = recorder(_Recorded)
