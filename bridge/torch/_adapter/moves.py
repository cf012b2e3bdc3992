"""Numbers of rows moved to other places, in torch: an op that is its own derivative backwards.

    move    x `[batch, rows, m]`, to `[batch, k]`, back `[batch, m]` -> `[batch, rows, k]`

Place i of the result has the number at `to[i]` of x, and number j of x goes to `back[j]`; -1 means
nowhere. So a gradient is a move in the other direction, in which nothing is added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import SingleLevelFunction, set_fwd_grad_enabled
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library


def moved(x: Tensor, to: Tensor, back: Tensor, marks: bool) -> Tensor:
    """Returns `[..., k]`, the numbers of x `[..., m]` at the places `to`.

    Args:
      to, back: int64 `[k]` and `[m]`.
      marks: a place of -1 gives NaN, else 0.
    """
    rows = x.reshape(1, _count(x), x.shape[-1])
    found = torch.ops.bridge.move.default(rows, to[None], back[None], marks)
    return found.reshape(*x.shape[:-1], to.shape[0])  # type: ignore[no-any-return]


def _count(x: Tensor) -> Any:
    count = 1
    for size in x.shape[:-1]:
        count = count * size
    return count


def _empty(x: Tensor, to: Tensor, back: Tensor, marks: bool) -> Tensor:
    return x.new_empty((*x.shape[:2], to.shape[1]))


def _take(x: Tensor, to: Tensor, back: Tensor, marks: bool) -> Tensor:
    missing = float("nan") if marks else 0.0
    batch, rows, size = x.shape
    if size == 0:
        return _empty(x, to, back, marks).fill_(missing)
    is_nowhere, index = to < 0, to.clamp(0, size - 1)
    if batch == 1:
        found = x.index_select(2, index[0])  # no view: the caller may write into the result
    else:
        found = x.gather(2, index[:, None, :].expand(batch, rows, -1))
    return found.masked_fill_(is_nowhere[:, None, :], missing)


class _Move(SingleLevelFunction):
    """The autograd Function that records the op."""

    @staticmethod
    def forward(
        ctx: Any, below: BelowAutograd, x: Tensor, to: Tensor, back: Tensor, marks: bool
    ) -> Any:
        ctx.forward_enabled = below.forward_enabled
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(to, back)
        ctx.save_for_forward(to, back)
        return below(x, to, back, marks)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        to, back = ctx.saved_tensors
        return None, None if g is None else _moved(g, back, to), None, None, None

    @staticmethod
    def jvp(ctx: Any, _: Any, tangent: Any, *others: Any) -> Any:
        if tangent is None:
            return None
        to, back = ctx.saved_tensors
        with set_fwd_grad_enabled(ctx.forward_enabled):
            return _moved(tangent, to, back)


def _moved(x: Tensor, to: Tensor, back: Tensor) -> Tensor:
    return torch.ops.bridge.move.default(x, to, back, False)  # type: ignore[no-any-return]


def _vmap(info: Any, in_dims: Any, x: Tensor, to: Tensor, back: Tensor, marks: bool) -> Any:
    size = info.batch_size
    if in_dims[1] is None and in_dims[2] is None:  # more rows with the same places
        front = x.movedim(in_dims[0], 1)
        batch, _, rows, own = front.shape
        found = torch.ops.bridge.move.default(
            front.reshape(batch, size * rows, own), to, back, marks
        )
        return found.reshape(batch, size, rows, to.shape[1]), 1
    front, *places = (
        each.expand(size, *each.shape) if dim is None else each.movedim(dim, 0)
        for each, dim in zip((x, to, back), in_dims, strict=False)
    )
    joined = [each.reshape(size * each.shape[1], *each.shape[2:]) for each in (front, *places)]
    found = torch.ops.bridge.move.default(*joined, marks)
    return found.reshape(*front.shape[:3], places[0].shape[-1]), 0


library.define(
    "move(Tensor x, Tensor to, Tensor back, bool marks) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _platform in ("CPU", "CUDA"):
    library.impl("move", _take, _platform)
torch.library.register_fake("bridge::move", _empty, lib=library)
torch.library.register_vmap("bridge::move", _vmap, lib=library)
_overload, _record = torch.ops.bridge.move.default, recorder(named(_Move, "move", False))


def _autograd(keys: Any, *arguments: Any) -> Any:
    return _record(BelowAutograd(_overload, keys), *arguments)


library.impl("move", _autograd, "Autograd", with_keyset=True)
