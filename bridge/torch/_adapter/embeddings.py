"""Embeddings in torch: two ops of the dispatcher, each the derivative of the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import SingleLevelFunction, set_fwd_grad_enabled
from bridge.ops import Role
from bridge.ops.embedding import workspace_bytes
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library
from bridge.torch._adapter.kernels import allocate, dtype_word, in_memory, new_memory


def rows_of(weight: Tensor, ids: Tensor, marks: bool = True) -> Tensor:
    """Returns rows `[batch, count, d]` of `[batch, n, d]`.

    Args:
      ids: `[batch, count]`, int32 or int64.
      marks: an id that is no row gives NaN, else zeros.
    """
    return torch.ops.bridge.embedding.default(weight, ids, marks)  # type: ignore[no-any-return]


def sums_of(g: Tensor, ids: Tensor, rows: int) -> Tensor:
    """Returns `[batch, rows, d]`, the sums of the rows of g `[batch, count, d]` with equal ids."""
    return torch.ops.bridge.embedding_gradient.default(  # type: ignore[no-any-return]
        g, ids, rows
    )


def _empty_rows(weight: Tensor, ids: Tensor, marks: bool) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[2]))


def _empty_sums(g: Tensor, ids: Tensor, rows: int) -> Tensor:
    return g.new_empty((g.shape[0], rows, g.shape[2]))


def _take(weight: Tensor, ids: Tensor, marks: bool) -> Tensor:
    batch, rows, _ = weight.shape
    missing = float("nan") if marks else 0.0
    if rows == 0:
        return _empty_rows(weight, ids, marks).fill_(missing)
    are_rows = ids.is_cpu and _native.are_columns(ids, rows, None)  # never waits for a device
    is_row = None if are_rows else (ids >= 0) & (ids < rows)
    index = ids if is_row is None else torch.where(is_row, ids, 0)
    if batch == 1:
        found = weight.index_select(1, index[0])  # no view: the caller may write into the result
    else:
        found = weight[torch.arange(batch, device=ids.device)[:, None], index.long()]
    return found if is_row is None else found.masked_fill_(~is_row[..., None], missing)


def _add(g: Tensor, ids: Tensor, rows: int) -> Tensor:
    batch, count, cols = g.shape
    dtype = dtype_word(g.dtype)
    result = new_memory((batch, rows, cols), dtype, g)
    ids = in_memory(ids, Role.LABEL).contiguous()
    order = workspace = None
    if g.is_cuda:
        ids, order = torch.sort(ids.long(), stable=True)
        workspace = allocate(workspace_bytes(batch, count, rows, cols, dtype), g)
    terms, threads = in_memory(g, Role.FULL).contiguous(), torch.get_num_threads()
    _native.run_embedding_gradient(terms, ids, order, result, workspace, threads)
    return result


class _Linear(SingleLevelFunction):
    """The autograd Function that records an op; both are linear in their first operand."""

    @staticmethod
    def forward(
        ctx: Any, below: BelowAutograd, is_sum: bool, x: Tensor, ids: Tensor, field: Any
    ) -> Any:
        ctx.is_sum, ctx.rows = is_sum, field if is_sum else x.shape[1]
        ctx.forward_enabled = below.forward_enabled
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(ids)
        ctx.save_for_forward(ids)
        return below(x, ids, field)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return None, None, _linear(ctx, g, not ctx.is_sum), None, None

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, tangent: Any, *others: Any) -> Any:
        with set_fwd_grad_enabled(ctx.forward_enabled):
            return _linear(ctx, tangent, ctx.is_sum)


def _linear(ctx: Any, x: Any, is_sum: bool) -> Any:
    if x is None:
        return None
    (ids,) = ctx.saved_tensors
    return sums_of(x, ids, ctx.rows) if is_sum else rows_of(x, ids, marks=False)


def _in_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    """Returns x `[*shape]` as `[size, *shape]`."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _joined(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _vmap_rows(info: Any, in_dims: Any, weight: Tensor, ids: Tensor, marks: bool) -> Any:
    size = info.batch_size
    if in_dims[0] is None:  # other positions of the same table
        moved = ids.movedim(in_dims[1], 1)
        batch, _, count = moved.shape
        found = rows_of(weight, moved.reshape(batch, size * count), marks)
        return found.reshape(batch, size, count, weight.shape[2]), 1
    weight, ids = _in_front(weight, in_dims[0], size), _in_front(ids, in_dims[1], size)
    found = rows_of(_joined(weight), _joined(ids), marks)
    return found.reshape(*ids.shape, weight.shape[-1]), 0


def _vmap_sums(info: Any, in_dims: Any, g: Tensor, ids: Tensor, rows: int) -> Any:
    g, ids = (_in_front(x, dim, info.batch_size) for x, dim in zip((g, ids), in_dims, strict=False))
    found = sums_of(_joined(g), _joined(ids), rows)
    return found.reshape(*g.shape[:2], rows, g.shape[-1]), 0


def _define(name: str, schema: str, run: Any, empty: Any, vmap: Any) -> None:
    library.define(f"{name}{schema} -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    for platform in ("CPU", "CUDA"):
        library.impl(name, run, platform)
    torch.library.register_fake(f"bridge::{name}", empty, lib=library)
    torch.library.register_vmap(f"bridge::{name}", vmap, lib=library)
    overload = getattr(torch.ops.bridge, name).default
    record = recorder(named(_Linear, name, False))

    def autograd(keys: Any, *arguments: Any) -> Any:
        return record(BelowAutograd(overload, keys), run is _add, *arguments)

    library.impl(name, autograd, "Autograd", with_keyset=True)


_define("embedding", "(Tensor weight, Tensor ids, bool marks)", _take, _empty_rows, _vmap_rows)
_define("embedding_gradient", "(Tensor g, Tensor ids, SymInt rows)", _add, _empty_sums, _vmap_sums)
