"""The public all_gather of JAX."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge._private.jax import (
    Primitive,
    Zero,
    aval_of_result,
    fancy_primitive_batchers,
    lower_fun,
    primitive_jvps,
    primitive_transposes,
    register_lowering,
    varying_axes_of,
)
from bridge.collectives import Signature, check_grad_rule, fault_of, normalised_dim
from bridge.jax._adapter.arguments import as_any_array, as_flag
from bridge.jax._adapter.taylor import define_jet
from bridge.jax._collectives.agreement import Agreement, Judge, where_agreed


@jax.named_scope("bridge.all_gather")
def all_gather(
    x: jax.typing.ArrayLike,
    axis_name: Any,
    *,
    axis: int = 0,
    tiled: bool = True,
    grad: str = "sum",
    check: bool | None = None,
) -> jax.Array:
    r"""Gathers the x of every shard, in the order of the shards; for use inside `jax.shard_map`.

    With tiled=True the shards are concatenated along `axis`, `[n, ...]` to `[shards·n, ...]`. With
    tiled=False they are stacked along a new dimension at `axis`. Over several mesh axes the last
    one named varies fastest, as in `jax.lax.all_gather`.

    Every shard has its own cotangent for the gathered array. `grad` chooses the gradient of a
    shard's x, as in `bridge.torch.all_gather`:

    - `"sum"`: the cotangent of this shard's part, summed over all shards by one reduce-scatter. It
      is the true gradient of the sum of the shards' results.
    - `"local"`: this shard's part of its own cotangent; nothing is sent. It is the true gradient
      divided by the number of shards, if every shard computes the same function of the gathered
      array.
    - `"mean"`: `"sum"` divided by the number of shards.

    If the gradients of the parameters are averaged over the shards afterwards (`jax.lax.pmean`, as
    torch's DDP does), `"sum"` gives the gradient of the mean of the shards' losses. If all shards
    compute the same loss, `"local"` and `"mean"` give that gradient divided by the number of
    shards.

    The tangent of the result is the gathered tangent under every rule. Derivatives of any order,
    `jax.vmap`, `jax.lax.scan`, `jax.jit` and `jax.pmap` are supported; several processes gather
    through `jax.distributed`. Integers and booleans have no gradient. 8-bit floats are sent as
    bytes, and their cotangents are added in float32.

    With `check_vma=True` the type of the result varies over the mesh axes: the values are the same
    on every shard, but each shard has its own cotangent. So the result cannot be returned with
    `out_specs=P()`. With `check_vma=False` it can, but then JAX gives every shard the cotangent
    divided by the number of shards. `"sum"` corrects for this, the other rules do not: take the
    gradient inside `shard_map`, or return one result per shard.

    Each process compiles a program for its own shapes, and JAX assumes that these are the same. If
    they differ (for example, the last batch of one process is smaller), transports fail, hang, or
    mix up numbers. With `check` the shards first compare shape, dtype and the other arguments each
    time the program runs, and all of them raise the same error. A program with this check cannot be
    exported, and JAX's cache on disk does not store it.

    Args:
      x: `[...]`, at least one dimension: bool, integers, floats of 8 to 64 bits or complex.
      axis_name: the name of a mesh axis of the enclosing `shard_map` (or `pmap`), or several.
      axis: the dimension, from −ndim on; if stacked, the position of the new dimension.
      tiled: True to concatenate, False to stack.
      grad: `"sum"`, `"local"` or `"mean"`.
      check: True to compare the arguments of the shards before anything is sent, by an exchange of
        128 bytes each and a call from the program into Python. None: only between processes, if the
        environment variable BRIDGE_CHECK_COLLECTIVES is 1. Its default is 1 on CPUs and 0 on GPUs,
        which would wait for the host.

    Returns:
      An array of the dtype of x.

    Raises:
      TypeError: for another dtype, an `axis` that is no integer, an axis name of another type, or a
        `tiled` or `check` that is no bool.
      ValueError: for a 0-dimensional x, an axis out of range, an unknown rule, or an axis name that
        is not bound at the call. With `"local"` or `"mean"` also for an axis of `jax.vmap`, and if
        x is differentiated and is the same on all shards (`check_vma=True`), because no shard has a
        part of its own. A ValueError that shards find while the program runs leaves jitted code as
        a `jax.errors.JaxRuntimeError` with the same message.

    Example:
      >>> mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,))
      >>> spec = jax.sharding.PartitionSpec("data")
      >>> gather = lambda x: all_gather(x, "data", grad="local")
      >>> jax.shard_map(gather, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones((2, 3))).shape
      (2, 3)
    """
    if jnp.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key):
        raise TypeError("all_gather: x is an array of keys: gather its jax.random.key_data")
    x = as_any_array("all_gather", "x", x)
    tiled = as_flag("all_gather", "tiled", tiled)
    check = None if check is None else as_flag("all_gather", "check", check)
    axis = _check(x, axis, tiled, grad)
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    size = _size_of(names)
    if check is None:
        check = _check_by_default(names)
    agreement = Agreement(_signature(x, axis, tiled, grad), _judge_of(x, axis)) if check else None
    is_bool = x.dtype == np.bool_
    if is_bool:  # every transport sends bytes
        x = x.astype(np.uint8)
    is_own_rule = grad != "sum" and jnp.issubdtype(x.dtype, jnp.inexact)
    if agreement is None and not is_own_rule and not _is_8_bit_float(x.dtype):
        y = lax.all_gather(x, names, axis=axis, tiled=tiled)
    else:
        y = _primitive.bind(
            x, names=names, size=size, axis=axis, tiled=tiled, grad=grad, agreement=agreement
        )
    return y.astype(np.bool_) if is_bool else y


def _check_by_default(names: tuple[Any, ...]) -> bool:
    is_cheap = jax.default_backend() == "cpu"
    wish = os.environ.get("BRIDGE_CHECK_COLLECTIVES", "1" if is_cheap else "0")
    between_devices = set(names) <= set(jax.sharding.get_abstract_mesh().manual_axes)
    return jax.process_count() > 1 and wish != "0" and between_devices


def _check(x: jax.Array, axis: Any, tiled: Any, grad: Any) -> int:
    """Returns `axis` counted from the front."""
    check_grad_rule("all_gather", grad)
    fault = _judge_of(x, axis)([_signature(x, axis, tiled, grad)])
    if fault is not None:
        raise fault
    return normalised_dim(axis, x.ndim, tiled)


def _signature(x: Any, axis: Any, tiled: Any, grad: Any) -> Signature:
    # It is not known here if there will be a backward pass.
    return Signature.of(x.dtype.name, x.shape, axis, tiled, grad, needs_grad=False)


def _judge_of(x: Any, axis: Any) -> Judge:
    found = [f"x {x.dtype.name}{list(x.shape)}", f"axis {axis!r}"]
    return lambda signatures: fault_of("all_gather", signatures, lambda: found, dim="axis")


def _is_8_bit_float(dtype: Any) -> bool:
    """True for dtypes that are sent as bytes and added in float32."""
    return dtype.name.startswith("float8_")


def _size_of(names: tuple[Any, ...]) -> int:
    """Returns the number of shards along these axes.

    Raises:
      TypeError: if a name has a type that no axis name can have.
      ValueError: if there is no name, a name occurs twice, or a name is not bound here.
    """
    for name in names:
        if name is None or isinstance(name, int) or not isinstance(name, Hashable):
            raise TypeError(
                f"all_gather: axis_name has type {type(name).__name__}, expected the name of a "
                f"mesh axis, or several names; the dimension of x is `axis`"
            )
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"all_gather: axis_name is {names!r}, expected at least one name and each once"
        )
    size = 1
    for name in names:
        try:
            size *= lax.axis_size(name)
        except (NameError, TypeError) as error:
            mesh = jax.sharding.get_abstract_mesh()
            bound = ", ".join(map(repr, mesh.manual_axes)) or "none"
            raise ValueError(
                f"all_gather: axis_name {name!r} is not bound here; axes of the enclosing "
                f"shard_map: {bound}. Call it inside jax.shard_map over a mesh with this axis"
            ) from error
    return size


def _abstract(x: Any, *, names: Any, axis: int, tiled: bool, **_: Any) -> Any:
    return aval_of_result(lambda x: lax.all_gather(x, names, axis=axis, tiled=tiled), x)


def _gather(
    x: Any, *, names: Any, axis: int, tiled: bool, agreement: Agreement | None, **_: Any
) -> Any:
    if agreement is not None:
        gather = partial(_gather, names=names, axis=axis, tiled=tiled, agreement=None)
        return where_agreed(gather, x, names, agreement)
    if not _is_8_bit_float(x.dtype):
        return lax.all_gather(x, names, axis=axis, tiled=tiled)
    sent = lax.bitcast_convert_type(x, np.uint8)
    return lax.bitcast_convert_type(lax.all_gather(sent, names, axis=axis, tiled=tiled), x.dtype)


def _jvp(primals: Any, tangents: Any, **parameters: Any) -> tuple[Any, Any]:
    y = _primitive.bind(*primals, **parameters)
    (tangent,) = tangents
    if type(tangent) is Zero:
        return y, Zero(jax.typeof(y).to_tangent_aval())
    # Tangents of arrays that agree have the same shapes and dtypes: no second check is needed.
    return y, _primitive.bind(tangent, **{**parameters, "agreement": None})


def _transpose(
    cotangent: Any,
    x: Any,
    *,
    names: Any,
    size: int,
    axis: int,
    tiled: bool,
    grad: str,
    agreement: Agreement | None,
) -> list[Any]:
    if type(cotangent) is Zero:
        return [Zero(x.aval)]
    _check_own_part(x.aval, cotangent, names, grad)
    if grad == "local":
        own = lax.axis_index(names)
        if tiled:
            own, count = own * x.aval.shape[axis], x.aval.shape[axis]
            return [lax.dynamic_slice_in_dim(cotangent, own, count, axis)]
        return [lax.dynamic_index_in_dim(cotangent, own, axis, keepdims=False)]
    wide = cotangent.astype(np.float32) if _is_8_bit_float(cotangent.dtype) else cotangent
    total = lax.psum_scatter(wide, names, scatter_dimension=axis, tiled=tiled)
    return [(total / size if grad == "mean" else total).astype(cotangent.dtype)]


def _check_own_part(x: Any, cotangent: Any, names: tuple[Any, ...], grad: str) -> None:
    """Raises ValueError if x is the same on all shards, as far as its type shows."""
    unlike = varying_axes_of(jax.typeof(cotangent)) - varying_axes_of(x)
    shared = [name for name in names if name in unlike]
    if shared and grad != "sum":
        raise ValueError(
            f"all_gather: x is the same on all shards of the axis {shared[0]!r}, expected it to "
            f"vary where grad is {grad!r} and x is differentiated: a shard has no part of its own "
            f"in it. Gather a value that differs between shards, or take grad='sum'"
        )


def _batch(axis_data: Any, arguments: Any, dims: Any, *, axis: int, **parameters: Any) -> Any:
    (x,), (dim,) = arguments, dims
    names, tiled, grad, agreement = (
        parameters[key] for key in ("names", "tiled", "grad", "agreement")
    )
    if axis_data.name in names:
        raise ValueError(
            f"all_gather: axis_name {axis_data.name!r} is an axis of jax.vmap, over which grad is "
            f"{grad!r} for a dtype {x.dtype.name}, and check {agreement is not None}; expected "
            f"'sum', a dtype that is no 8-bit float and no check, or an axis of jax.shard_map"
        )
    if dim is not None:
        if dim <= axis:
            axis += 1
        elif not tiled:
            dim += 1
    return _primitive.bind(x, axis=axis, **parameters), dim


def _define() -> Any:
    primitive = Primitive("bridge_all_gather")
    primitive.def_abstract_eval(_abstract)
    primitive_transposes[primitive] = _transpose
    primitive_jvps[primitive] = _jvp
    fancy_primitive_batchers[primitive] = _batch
    define_jet(primitive)
    register_lowering(primitive, lower_fun(_gather, multiple_results=False))
    return primitive


_primitive = _define()
