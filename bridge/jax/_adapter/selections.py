"""Choices of columns in JAX: a primitive whose result has no derivative, and reads by column."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import (
    Primitive,
    Zero,
    lower_fun,
    primitive_batchers,
    primitive_jvps,
    register_lowering,
    with_devices,
)
from bridge.jax._adapter.avals import unsplit, vary_alike
from bridge.jax._adapter.debug import define_eager
from bridge.jax._adapter.ffi import PLATFORMS, on_its_platform
from bridge.jax._adapter.taylor import define_jet
from bridge.jax._sharded.partitioning import has_explicit_axes, name_in_cache_key, place_of
from bridge.jax._sharded.selections import (
    SelectionSite,
    axes_of_rows,
    on_automatic_axes,
    on_explicit_axes,
)
from bridge.ops.selection import NAME, Selection

_primitive = Primitive(f"bridge_{NAME}")


def columns_of(x: Any, words: Any, params: Selection) -> Any:
    """Returns int32 `[..., count]`, columns of the rows of x `[..., cols]`.

    Args:
      words: uint32 `[..., 4]`, the seed and the offset of each row, low words first, for a draw.
    """
    operands = vary_alike([x] if words is None else [x, words])
    return _primitive.bind(*operands, params=params)


def taken(x: Any, columns: Any) -> Any:
    """Returns the numbers of each row of x `[..., cols]` in distinct columns `[..., count]`."""
    last = x.ndim - 1
    rows = tuple(range(last))
    dims = jax.lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(last,),
        start_index_map=(last,),
        operand_batching_dims=rows,
        start_indices_batching_dims=rows,
    )
    x, columns = vary_alike([unsplit(x, slice(last, None)), columns])
    return jax.lax.gather(
        x,
        columns[..., None],
        dims,
        slice_sizes=(1,) * x.ndim,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )


def _abstract(x: Any, words: Any = None, *, params: Selection) -> Any:
    changed: dict[str, Any] = {}
    if has_explicit_axes(x):
        spec = PartitionSpec(*axes_of_rows(x), None)
        changed["sharding"] = NamedSharding(x.sharding.mesh, spec)
    shape = (*x.shape[:-1], params.count)
    return x.update(shape=shape, dtype=jnp.dtype(np.int32), weak_type=False, **changed)


def _jvp(primals: Any, directions: Any, *, params: Selection) -> Any:
    result = _primitive.bind(*primals, params=params)
    return result, Zero(jax.typeof(result).to_tangent_aval())


def _batch(operands: Any, dims: Any, *, params: Selection) -> Any:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    ]
    return _primitive.bind(*moved, params=params), 0


def _lower(context: Any, *operands: Any, params: Selection) -> Any:
    where = place_of(context, context.avals_in[:1], on_explicit_axes, on_automatic_axes)
    if where is not None:
        site = SelectionSite(
            partial(_primitive.bind, params=params),
            tuple(context.avals_in[0].shape),
            len(operands),
            jax.config.jax_enable_x64,  # type: ignore[attr-defined]
        )
        results = lower_fun(partial(where, site), multiple_results=False)(
            with_devices(context), *operands
        )
        name_in_cache_key(f"{NAME} {params}", results)
        return results
    return on_its_platform(context, NAME, _any_platform, _emit, operands, params=params)


def _emit(_: str, context: Any, *operands: Any, params: Selection) -> Any:
    return jax.ffi.ffi_lowering(_primitive.name)(
        context,
        *operands,
        temperature=np.float64(params.temperature),
        top_k=np.int64(params.top_k),
        top_p=np.float64(params.top_p),
        min_p=np.float64(params.min_p),
    )


_any_platform = Primitive(f"bridge_{NAME}")
for _each in (_primitive, _any_platform):
    _each.def_abstract_eval(_abstract)
define_eager(_primitive, ("params",))
primitive_jvps[_primitive] = _jvp
primitive_batchers[_primitive] = _batch
define_jet(_primitive)
register_lowering(_primitive, _lower, cacheable=False)
for _platform in PLATFORMS:
    register_lowering(_any_platform, partial(_emit, _platform), platform=_platform)
