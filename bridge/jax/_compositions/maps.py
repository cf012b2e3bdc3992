"""Maps between places of arrays, for compositions (`bridge.catalogue.vision.taps`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge._private.jax import (
    Primitive,
    axes_in_shard_map,
    device_count,
    lower_fun,
    platforms_of,
    primitive_batchers,
    register_lowering,
)
from bridge.jax._adapter.avals import vary_alike
from bridge.jax._adapter.debug import define_eager
from bridge.ops.compositions import MAPS

_primitive = Primitive("bridge_taps")


def mapped(
    kind: str,
    x: jax.Array,
    others: tuple[jax.Array, ...],
    shape: tuple[int, ...],
    inner: bool,
    by_gathers: Callable[..., jax.Array],
) -> jax.Array:
    if kind in ("chosen", "of_chosen"):
        along = len(shape) - 1 - inner
        like = list(x.shape)
        like[along] = others[0].shape[along]
        others = (jnp.broadcast_to(others[0], like).astype(np.int32),)

    def bind(x: Any, others: Any) -> Any:
        given = vary_alike([x, *others])
        return _primitive.bind(*given, kind=kind, shape=shape, inner=inner, by_gathers=by_gathers)

    if kind == "largest":  # integers have no derivative
        return bind(x, others)  # type: ignore[no-any-return]
    run = jax.custom_jvp(bind)

    def jvp(primals: Any, tangents: Any) -> Any:
        x, others = primals
        _, tangent = jax.jvp(lambda x: by_gathers(x, *others), (x,), (tangents[0],))
        return run(x, others), tangent

    run.defjvp(jvp)
    return run(x, others)  # type: ignore[no-any-return]


def _abstract(x: Any, *others: Any, kind: str, shape: Any, **_: Any) -> Any:
    dtype = np.dtype(np.int32) if kind == "largest" else x.dtype
    return x.update(shape=shape, dtype=dtype, weak_type=False)


def _batch(operands: Any, dims: Any, *, kind: str, shape: Any, **params: Any) -> Any:
    (x, *others), (dim, *places) = operands, dims
    size = next(o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None)
    x = jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)
    if kind in ("chosen", "of_chosen"):
        (own,), (place,) = others, places
        if place is None:
            others = [jnp.broadcast_to(own, (size, *own.shape))]
        else:
            others = [jnp.moveaxis(own, place, 0)]
    return _primitive.bind(x, *others, kind=kind, shape=(size, *shape), **params), 0


def _lower(
    context: Any, *operands: Any, kind: str, shape: Any, inner: bool, by_gathers: Any
) -> Any:
    # XLA splits gathers over devices, and no call of a kernel.
    axes = axes_in_shard_map(context)
    is_alone = device_count(context) == 1 if axes is None else not axes[1]
    if platforms_of(context) != ("cpu",) or not is_alone:
        return lower_fun(by_gathers, multiple_results=False)(context, *operands)
    lower = jax.ffi.ffi_lowering("bridge_taps")
    return lower(context, *operands, kind=np.int32(MAPS.index(kind)), has_inner=np.bool_(inner))


_primitive.def_abstract_eval(_abstract)
define_eager(_primitive, ("kind", "shape", "inner", "by_gathers"))
primitive_batchers[_primitive] = _batch
register_lowering(_primitive, _lower)
