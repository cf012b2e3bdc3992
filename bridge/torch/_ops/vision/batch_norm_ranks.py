"""Batch norm over the images of all ranks of a process group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import forward_ad, functorch_active
from bridge.catalogue.vision.batch_norm import NAME, BatchNorm, Options
from bridge.collectives import Signature
from bridge.torch._collectives.all_gather import all_gather
from bridge.torch._collectives.groups import Ranks, agree, check_by_default, place_of, ranks_of
from bridge.torch._compositions import functions


def over_ranks(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, last: bool, group: Any
) -> tuple[Tensor, Tensor, int]:
    """Returns this rank's values, the statistics of all ranks and the number of ranks.

    Raises:
      TypeError, ValueError: group is none; on every rank, if shapes or dtypes differ.
    """
    ranks = ranks_of(NAME, group)
    if not torch.compiler.is_compiling():
        _agree(x, ranks, last)
    options = Options(eps, x.ndim - 1, last, ranks.size)
    rules = BatchNorm(functions, lambda sums: all_gather(sums, group=group, tiled=False))
    if functorch_active() or forward_ad._current_level >= 0:
        pair = rules.statistics.forward((x,), options)
        return rules.forward((x, weight, bias, pair), options), pair, ranks.size
    y, pair = _OverRanks.apply(rules, options, x, weight, bias)
    return y, pair, ranks.size


def _agree(x: Tensor, ranks: Ranks, last: bool) -> None:
    kind, shape = str(x.dtype).removeprefix("torch."), tuple(x.shape)
    shown = (shape[0], shape[-1], *shape[1:-1]) if last else shape
    others = place_of(x)
    signature = Signature.of(kind, shape, 0, True, "sum", False, 0, others)
    found = f"input of dtype {kind} and shape {list(shown)}"
    agree(
        NAME,
        ranks,
        signature,
        lambda: (found,),
        check_by_default(),
        array="input",
        advice="all ranks must have equal numbers of images",
        others=others,
    )


class _OverRanks(torch.autograd.Function):
    """The values and the statistics, which have no gradient here."""

    @staticmethod
    def forward(
        ctx: Any, rules: BatchNorm, options: Options, x: Any, weight: Any, bias: Any
    ) -> Any:
        pair = rules.statistics.forward((x,), options)
        ctx.rules, ctx.options = rules, options
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, pair)
        ctx.mark_non_differentiable(pair)
        return rules.forward((x, weight, bias, pair), options), pair

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        if g is None:
            return (None,) * 5
        *operands, pair = ctx.saved_tensors
        # Derivatives of gradients follow the statistics as functions of x.
        known = None if torch.is_grad_enabled() else pair
        wanted = ctx.needs_input_grad[2:]
        found = ctx.rules.gradients(g, (*operands, known), ctx.options, wanted)
        return None, None, *found
