"""Numbers of rows moved to other places, in JAX: a primitive that is its own derivative backwards.

    move    x `[batch, rows, m]`, to `[batch, k]`, back `[batch, m]` -> `[batch, rows, k]`

Place i of the result has the number at `to[i]` of x, and number j of x goes to `back[j]`; -1 means
nowhere. So a gradient is a move in the other direction, in which nothing is added.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge._private.jax import (
    Primitive,
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

_move = Primitive("bridge_move")


def moved(x: jax.Array, to: jax.Array, back: jax.Array, marks: bool) -> jax.Array:
    """Returns `[..., k]`, the numbers of x `[..., m]` at the places `to`.

    Args:
      to, back: integers `[k]` and `[m]`.
      marks: a place of -1 gives NaN, else 0.
    """
    *rows, size = x.shape
    found = _bind(x.reshape(1, math.prod(rows), size), to[None], back[None], marks)
    return found.reshape(*rows, to.shape[0])  # type: ignore[no-any-return]


def _bind(x: Any, to: Any, back: Any, marks: bool) -> Any:
    return _move.bind(*vary_alike([x, to, back]), marks=marks)


def _aval(x: Any, to: Any, back: Any, *, marks: bool) -> Any:
    return x.update(shape=(*x.shape[:2], to.shape[1]), weak_type=False)


def _take(x: Any, to: Any, back: Any, *, marks: bool) -> Any:
    missing = jnp.array(np.nan if marks else 0.0, x.dtype)
    if x.shape[2] == 0:
        return jnp.full((*x.shape[:2], to.shape[1]), missing)
    take = partial(jnp.take, axis=-1, mode="clip")
    index = jnp.maximum(to, 0)
    found = take(x[0], index[0])[None] if x.shape[0] == 1 else jax.vmap(take)(x, index)
    return jnp.where((to < 0)[:, None, :], missing, found)


def _jvp(primals: Any, tangents: Any, *, marks: bool) -> Any:
    result = _move.bind(*primals, marks=marks)
    if type(tangents[0]) is Zero:
        return result, Zero(jax.typeof(result).to_tangent_aval())
    _, to, back = primals
    return result, _bind(tangents[0], to, back, False)


def _transpose(g: Any, x: Any, to: Any, back: Any, *, marks: bool) -> Any:
    return [Zero(x.aval) if type(g) is Zero else _bind(g, back, to, False), None, None]


def _batch(operands: Any, dims: Any, *, marks: bool) -> Any:
    x, to, back = operands
    if dims[1] is None and dims[2] is None:  # more rows with the same places
        front = jnp.moveaxis(x, dims[0], 1)
        batch, size, rows, own = front.shape
        found = _bind(front.reshape(batch, size * rows, own), to, back, marks)
        return found.reshape(batch, size, rows, to.shape[1]), 1
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    fronts = [
        jnp.broadcast_to(each, (size, *each.shape)) if d is None else jnp.moveaxis(each, d, 0)
        for each, d in zip(operands, dims, strict=True)
    ]
    x, to, back = (each.reshape(size * each.shape[1], *each.shape[2:]) for each in fronts)
    found = _bind(x, to, back, marks)
    return found.reshape(*fronts[0].shape[:3], found.shape[-1]), 0


_move.def_abstract_eval(_aval)
define_eager(_move, ("marks",))
primitive_jvps[_move] = _jvp
primitive_transposes[_move] = _transpose
primitive_batchers[_move] = _batch
define_jet(_move)
register_lowering(_move, lower_fun(_take, multiple_results=False))
