"""all_gather for torch, differentiable to any order and in every mode.

Everything is built from two linear maps: `gather` concatenates the ranks' arrays, `reduce` sums
arrays over the ranks and gives each rank its part. They are each other's transpose. The public
function is `gather`, with the caller's choice of a gradient rule in place of the transpose (see
`bridge.collectives`).
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import Function

from bridge._private.torch import (
    dispatch_modes,
    forward_ad,
    functorch_active,
    is_fake,
    is_old_batched,
    set_fwd_grad_enabled,
)
from bridge.collectives import Signature, normalised_dim
from bridge.torch._adapter.checks import check_flags
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._collectives.dispatcher import Rule, define
from bridge.torch._collectives.groups import Ranks, agree, check_by_default, place_of, ranks_of
from bridge.torch._collectives.transport import (
    Exchange,
    Started,
    finish_gather,
    gather,
    gathered_shape,
    part_shape,
    reduce,
    start_gather,
)

_NAME = "all_gather"

# A tuple hides the tensor from the Function: it must not see an input that it will return.
Held = tuple[Started]

_is_compiling = torch.compiler.is_compiling


def gather_backward(g: Tensor, exchange: Exchange) -> Tensor:
    """Returns the cotangent of the gathered operand from the result's cotangent."""
    return _pulled_gather(g, exchange, differentiable_reduce)


def _gather_backward(ctx: Any, g: Tensor | None) -> Any:
    return None if g is None else gather_backward(g, ctx.exchange), None, None


def _reduce_backward(ctx: Any, g: Tensor | None) -> Any:
    return None if g is None else differentiable_gather(g, ctx.exchange), None


def local_part(g: Tensor, exchange: Exchange) -> Tensor:
    """Returns a copy of this rank's part of g: a slice would hold the memory of all of g."""
    ranks, dim = exchange.ranks, exchange.dim
    if exchange.tiled:
        size = g.shape[dim] // ranks.size
        part = g.narrow(dim, ranks.rank * size, size)
    else:
        part = g.select(dim, ranks.rank)
    return part.clone(memory_format=torch.contiguous_format)


class _Gather(Function):
    """The gather for eager autograd and dynamo (dynamo refuses a Function with a jvp)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, started: Held | None) -> Tensor:
        ctx.exchange = exchange
        ctx.set_materialize_grads(False)
        return gather(x, exchange) if started is None else finish_gather(started[0], x, exchange)

    backward = staticmethod(_gather_backward)


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        ctx.set_materialize_grads(False)
        return reduce(g, exchange)

    backward = staticmethod(_reduce_backward)


class _TransformedGather(Function):
    """The gather for forward mode and torch.func."""

    @staticmethod
    def forward(x: Tensor, exchange: Exchange, started: Held | None) -> Tensor:
        return gather(x, exchange) if started is None else finish_gather(started[0], x, exchange)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.exchange = inputs[1]
        ctx.set_materialize_grads(False)

    backward = staticmethod(_gather_backward)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> Tensor | None:
        if tangent is None:
            return None
        # Autograd calls jvp with forward mode off; the outer levels must see it on.
        with set_fwd_grad_enabled(True):
            return differentiable_gather(tangent, ctx.exchange)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, exchange: Exchange, _: None) -> Any:
        return differentiable_gather(x.movedim(in_dims[0], 0), exchange.batched()), 0


class _TransformedReduce(Function):
    @staticmethod
    def forward(g: Tensor, exchange: Exchange) -> Tensor:
        return reduce(g, exchange)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.exchange = inputs[1]
        ctx.set_materialize_grads(False)

    backward = staticmethod(_reduce_backward)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: None) -> Tensor | None:
        if tangent is None:
            return None
        with set_fwd_grad_enabled(True):
            return differentiable_reduce(tangent, ctx.exchange)

    @staticmethod
    def vmap(info: Any, in_dims: Any, g: Tensor, exchange: Exchange) -> Any:
        return differentiable_reduce(g.movedim(in_dims[0], 0), exchange.batched()), 0


def _is_transformed() -> bool:
    return functorch_active() or (not _is_compiling() and forward_ad._current_level >= 0)


def _needs_dispatcher(x: Tensor) -> bool:
    if _is_compiling():
        return functorch_active()
    return is_old_batched(x)


def differentiable_gather(x: Tensor, exchange: Exchange, started: Held | None = None) -> Tensor:
    """Computes `gather` with the gradient rule of `exchange`; `started` if x has been sent."""
    if started is None and _needs_dispatcher(x):
        return _dispatched_gather(x, exchange)
    if _is_transformed():
        return _TransformedGather.apply(x, exchange, started)
    if not _is_compiling() and not (x.requires_grad and torch.is_grad_enabled()):
        return gather(x, exchange) if started is None else finish_gather(started[0], x, exchange)
    return _Gather.apply(x, exchange, started)


def differentiable_reduce(g: Tensor, exchange: Exchange) -> Tensor:
    """Computes `reduce`; its gradient is a gather."""
    if _needs_dispatcher(g):
        return _dispatched_reduce(g, exchange)
    form = _TransformedReduce if _is_transformed() else _Reduce
    return form.apply(g, exchange)


def _pulled_gather(g: Tensor, exchange: Exchange, reduce: Rule) -> Tensor:
    """Returns the cotangent of the gathered operand under the rule of `exchange`."""
    if exchange.rule == "local":
        return local_part(g, exchange)
    part = reduce(g, exchange.with_rule("sum"))
    return part / exchange.ranks.size if exchange.rule == "mean" else part


# The derivatives of the dispatched ops are dispatched ops again, in every mode.
_dispatched_gather: Rule = define(
    "all_gather",
    gather,
    gathered_shape,
    lambda g, exchange: _pulled_gather(g, exchange, _dispatched_reduce),
    lambda tangent, exchange: _dispatched_gather(tangent, exchange),
)
_dispatched_reduce: Rule = define(
    "reduce_parts",
    reduce,
    part_shape,
    lambda g, exchange: _dispatched_gather(g, exchange),
    lambda tangent, exchange: _dispatched_reduce(tangent, exchange),
)


class Gathering:
    """An all-gather under way: the result of `all_gather(..., async_op=True)`.

    The operand must not be written before `wait()` has returned.
    """

    def __init__(self, x: Tensor, exchange: Exchange) -> None:
        self._x, self._exchange = x, exchange
        self._result: Tensor | None = None
        self._started: Held | None = None
        if _is_transformed():  # transforms cannot follow a started collective
            self._result = differentiable_gather(x, exchange)
        else:
            with torch.no_grad():
                self._started = (start_gather(x.detach(), exchange),)

    def wait(self) -> Tensor:
        """Waits, and returns the gathered tensor; the same object on every call."""
        if self._result is None:
            self._result = differentiable_gather(self._x, self._exchange, self._started)
            self._started = None
        return self._result


@overload
def all_gather(
    x: Tensor,
    *,
    dim: int = 0,
    group: Any = None,
    tiled: bool = True,
    grad: str = "sum",
    async_op: Literal[False] = False,
    check: bool | None = None,
) -> Tensor: ...
@overload
def all_gather(
    x: Tensor,
    *,
    dim: int = 0,
    group: Any = None,
    tiled: bool = True,
    grad: str = "sum",
    async_op: Literal[True],
    check: bool | None = None,
) -> Gathering: ...
def all_gather(
    x: Tensor,
    *,
    dim: int = 0,
    group: Any = None,
    tiled: bool = True,
    grad: str = "sum",
    async_op: bool = False,
    check: bool | None = None,
) -> Tensor | Gathering:
    r"""Concatenates the arrays of all ranks of a group, on every rank; differentiable.

    With W ranks, rank r's array x_r and the cotangents g_q of the result on each rank q, the
    gradient is

        grad="sum"    dx_r = Σ_q g_q[part r]        one reduce-scatter
        grad="local"  dx_r = g_r[part r]            nothing is sent
        grad="mean"   dx_r = Σ_q g_q[part r] ÷ W    one reduce-scatter

    "sum" is the true gradient of the sum of the ranks' losses. DistributedDataParallel and FSDP
    divide gradients of parameters by W after summing them, so under them:

    - each rank's loss is its share of a loss over all ranks (a mean over its own rows against all
      gathered ones): "sum" gives exactly the gradient of the mean of the ranks' losses;
    - every rank computes the same loss from the gathered arrays alone: "sum" counts it W times and
      DDP divides by W, so "sum" is right again; "mean" gives 1 ÷ W of it, and so does "local";
    - "local" drops the gradients of other ranks' losses with respect to this rank's array. If every
      rank computes the same full loss and gradients are not averaged afterwards, it is the exact
      gradient of that one loss.

    In forward mode the tangent is the gathered tangents under every rule. A backward pass under
    "sum" or "mean" is an exchange too: all ranks of the group must run it. Works under autograd to
    any order, `torch.func` (grad, vjp, jvp, vmap), `torch.compile(fullgraph=True)`, DDP and FSDP2.

    Args:
      x: `[..., n, ...]`, of the same shape and dtype on every rank; any strides. bool, integers to
        64 bits, floats from 8 to 64 bits, complex numbers; integers and bool have no gradient.
      dim: the dimension along which arrays are concatenated. A negative one counts from the back;
        if not tiled, among the result's dimensions.
      group: a ProcessGroup, a DeviceMesh of one dimension, (DeviceMesh, dimension number or name),
        or None for the default group. Without a process group this process is alone: W = 1.
      tiled: True concatenates along `dim`, False stacks along a new dimension `dim`.
      grad: the gradient rule.
      async_op: return at once an object whose method `wait()` returns the result.
      check: let ranks first compare their arguments, in one exchange of 128 bytes each, so that all
        raise the same error. Without it a rank whose arguments differ leaves the others waiting or
        with wrong numbers. None: True unless the environment variable BRIDGE_CHECK_COLLECTIVES is
        0. Under `torch.compile` nothing is compared.

    Returns:
      `[..., W·n, ...]` if tiled, else with a new dimension of W; in the order of the group, the
      same bits on every rank. A new tensor, also for W = 1. For W > 1 its memory has `dim`
      outermost: `result.movedim(dim, 0)` is contiguous.

    Raises:
      TypeError: on every rank: x is not a dense tensor of such a dtype, or dim is not an integer.
        On this rank: group has another type.
      ValueError: on every rank: x is 0-dimensional, dim is out of range, or x, its device, its
        requires_grad, dim, tiled or grad differ between ranks. On this rank: the process is not in
        the group, the group does not exist, or there is none although WORLD_SIZE is more than 1.
      RuntimeError: a rank ended, or did not call within the group's timeout.

    Example:
      >>> all_gather(torch.ones(2, 3), tiled=False).shape  # in one process
      torch.Size([1, 2, 3])
    """
    if is_overridden((x,)):
        return hand_over((x,))  # type: ignore[no-any-return]
    check_flags(_NAME, tiled=tiled, async_op=async_op, check=check)
    exchange = agreed_exchange(x, dim, ranks_of(_NAME, group), tiled, grad, check)
    if async_op:
        return Gathering(x, exchange)
    return differentiable_gather(x, exchange)


def agreed_exchange(
    x: Any,
    dim: Any,
    ranks: Ranks,
    tiled: Any,
    grad: Any,
    check: bool | None,
    *,
    function: str = _NAME,
    claim: int = 0,
) -> Exchange:
    """Returns the exchange that all ranks ask for, or raises the same error on all of them.

    `claim` is a position in `bridge.collectives.CLAIMS`.
    """
    if _is_compiling():
        check = False
    elif check is None:
        check = check_by_default()
    key = None
    kinds = type(dim), type(tiled), type(grad)
    if not check and type(x) is Tensor and kinds == (int, bool, str) and not claim:
        # Kinds of calls that have passed the checks on this rank are not checked again.
        key = ranks, x.dtype, x.layout, x.is_nested, x.ndim, dim, tiled, grad
        if (known := _known.get(key)) is not None:
            return known
    if check and dispatch_modes() and is_fake():
        check = False
    dtype, shape, needs_grad, place = None, (), False, ""
    if _is_dense(x):
        dtype = str(x.dtype).removeprefix("torch.")
        shape = x.shape
        needs_grad = x.requires_grad and torch.is_grad_enabled()
        place = place_of(x) if check else ""
    signature = Signature.of(dtype, shape, dim, tiled, grad, needs_grad, claim, place)
    agree(function, ranks, signature, lambda: _found(x, dim, grad), check, others=place)
    exchange = Exchange(ranks, normalised_dim(dim, x.ndim, bool(tiled)), bool(tiled), grad)
    if key is not None and not _is_compiling():
        if len(_known) == _MOST_KINDS:
            _known.clear()
        _known[key] = exchange
    return exchange


_MOST_KINDS = 256
_known: dict[Any, Exchange] = {}


def _is_dense(x: Any) -> bool:
    # A DTensor is refused: it is distributed already.
    return (
        isinstance(x, Tensor)
        and x.layout is torch.strided
        and not x.is_quantized
        and not x.is_nested
        and type(x).__name__ != "DTensor"
    )


def _found(x: Any, dim: Any, grad: Any) -> tuple[str, ...]:
    if not isinstance(x, Tensor):
        kind = f"x of type {type(x).__name__}"
    elif x.is_nested:
        kind = "x nested"
    elif type(x).__name__ == "DTensor":
        kind = "x of type DTensor: call its redistribute, or to_local first"
    else:
        kind = f"x of dtype {x.dtype}, layout {x.layout} and shape {list(x.shape)}"
    return kind, f"dim {dim!r}", f"grad {grad!r}"
