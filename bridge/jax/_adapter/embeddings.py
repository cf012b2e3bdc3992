"""Embeddings in JAX: two primitives, each the derivative of the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge._private.jax import (
    Primitive,
    ShapedArray,
    Zero,
    lower_fun,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
    register_lowering,
)
from bridge.jax._adapter.avals import vary_alike
from bridge.jax._adapter.debug import define_eager
from bridge.jax._adapter.taylor import define_jet
from bridge.ops.embedding import workspace_bytes

_rows = Primitive("bridge_embedding")
_sums = Primitive("bridge_embedding_gradient")


def rows_of(weight: Any, ids: Any, marks: bool = True) -> Any:
    """Returns rows `[batch, count, d]` of `[batch, n, d]`.

    Args:
      ids: `[batch, count]`, int32 or int64.
      marks: an id that is no row gives NaN, else zeros.
    """
    return _rows.bind(*vary_alike([weight, ids]), marks=marks)


def sums_of(g: Any, ids: Any, rows: int) -> Any:
    """Returns `[batch, rows, d]`, the sums of the rows of g `[batch, count, d]` with equal ids."""
    return _sums.bind(*vary_alike([g, ids]), rows=rows)


def _rows_aval(weight: Any, ids: Any, *, marks: bool) -> Any:
    return weight.update(shape=(*ids.shape, weight.shape[2]), weak_type=False)


def _sums_aval(g: Any, ids: Any, *, rows: int) -> Any:
    return g.update(shape=(g.shape[0], rows, g.shape[2]), weak_type=False)


def _take(weight: Any, ids: Any, *, marks: bool) -> Any:
    rows = weight.shape[1]
    missing = jnp.array(np.nan if marks else 0.0, weight.dtype)
    if rows == 0:
        return jnp.full((*ids.shape, weight.shape[2]), missing)
    is_row = (ids >= 0) & (ids < rows)
    index = jnp.where(is_row, ids, 0)
    take = partial(jnp.take, axis=0, mode="clip")
    found = take(weight[0], index[0])[None] if ids.shape[0] == 1 else jax.vmap(take)(weight, index)
    return jnp.where(is_row[..., None], found, missing)


def _lower_on_cpu(context: Any, g: Any, ids: Any, *, rows: int) -> Any:
    return jax.ffi.ffi_lowering(_sums.name)(context, g, ids)


def _lower_on_cuda(context: Any, g: Any, ids: Any, *, rows: int) -> Any:
    """Emits XLA's own sort of the ids, and the call, with its workspace as the last result."""
    of_g, of_ids = context.avals_in

    def sorting(ids: Any) -> Any:
        places = jax.lax.broadcasted_iota(ids.dtype, ids.shape, 1)
        return jax.lax.sort(vary_alike([ids, places]), num_keys=1, is_stable=True)

    sort = lower_fun(sorting, multiple_results=True)
    found = sort(context.replace(avals_in=[of_ids], avals_out=[of_ids] * 2), ids)
    batch, count, cols = of_g.shape
    size = workspace_bytes(batch, count, rows, cols, of_g.dtype.name)
    avals_out = [*context.avals_out, ShapedArray((size,), np.dtype(np.uint8))]
    inner = context.replace(avals_in=[of_g, of_ids, of_ids], avals_out=avals_out)
    return list(jax.ffi.ffi_lowering(_sums.name)(inner, g, *found))[:1]


def _in_front(x: Any, dim: int | None, size: int) -> Any:
    """Returns x `[*shape]` as `[size, *shape]`."""
    return jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)


def _joined(x: Any) -> Any:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _size(operands: Any, dims: Any) -> int:
    return next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)


def _batch_rows(operands: Any, dims: Any, *, marks: bool) -> Any:
    (weight, ids), size = operands, _size(operands, dims)
    if dims[0] is None:  # other positions of the same table
        moved = jnp.moveaxis(ids, dims[1], 1)
        batch, _, count = moved.shape
        found = rows_of(weight, moved.reshape(batch, size * count), marks)
        return found.reshape(batch, size, count, weight.shape[2]), 1
    weight, ids = _in_front(weight, dims[0], size), _in_front(ids, dims[1], size)
    found = rows_of(_joined(weight), _joined(ids), marks)
    return found.reshape(*ids.shape, weight.shape[-1]), 0


def _batch_sums(operands: Any, dims: Any, *, rows: int) -> Any:
    size = _size(operands, dims)
    g, ids = (_in_front(x, dim, size) for x, dim in zip(operands, dims, strict=True))
    found = sums_of(_joined(g), _joined(ids), rows)
    return found.reshape(*g.shape[:2], rows, g.shape[-1]), 0


def _define(primitive: Any, aval: Any, transposed: Any, batch: Any) -> None:
    """Registers the rules of a primitive that is linear in its first operand, except lowering."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        result = primitive.bind(*primals, **params)
        if type(tangents[0]) is Zero:
            return result, Zero(jax.typeof(result).to_tangent_aval())
        # A row of NaN is constant.
        linear = {"marks": False} if "marks" in params else params
        return result, primitive.bind(*vary_alike([tangents[0], primals[1]]), **linear)

    def transpose(g: Any, x: Any, ids: Any, **params: Any) -> Any:
        return [Zero(x.aval) if type(g) is Zero else transposed(g, ids, x.aval), None]

    primitive.def_abstract_eval(aval)
    define_eager(primitive, ("marks", "rows"))
    primitive_jvps[primitive] = jvp
    primitive_transposes[primitive] = transpose
    primitive_batchers[primitive] = batch
    define_jet(primitive)


_define(_rows, _rows_aval, lambda g, ids, aval: sums_of(g, ids, aval.shape[1]), _batch_rows)
_define(_sums, _sums_aval, lambda g, ids, _: rows_of(g, ids, marks=False), _batch_sums)
register_lowering(_rows, lower_fun(_take, multiple_results=False))
register_lowering(_sums, _lower_on_cpu, platform="cpu")
register_lowering(_sums, _lower_on_cuda, platform="cuda")
