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
    r"""Every shard's x, in the order of the shards, on every shard; inside `jax.shard_map`.

    With tiled=True the shards are concatenated along `axis`, `[n, ...]` to `[shards·n, ...]`; with
    tiled=False they are stacked on a new dimension there. Over several mesh axes the last one named
    counts fastest, as in `jax.lax.all_gather`.

    Every shard has a cotangent of its own for the gathered array. `grad` says what the gradient of
    a shard's x is, in the words of `bridge.torch.all_gather`:

    - `"sum"`: the part that belongs to this shard, summed over all shards: one reduce-scatter. The
      true gradient of the sum of what the shards compute.
    - `"local"`: the part that belongs to this shard of its own cotangent; nothing is sent. Right,
      up to the number of shards, where every shard computes the same of the gathered array.
    - `"mean"`: `"sum"` divided by the number of shards.

    Averaging the gradients of the parameters over the shards afterwards (`jax.lax.pmean`, as
    torch's DDP does) makes of `"sum"` the gradient of the mean of the shards' losses, and of
    `"local"` and `"mean"` a number of shards less than that where all shards compute the same loss.

    The tangent of the result is the gathered tangent under every rule. Derivatives of any order,
    `jax.vmap`, `jax.lax.scan` and `jax.jit` apply, `jax.pmap` too; several processes gather through
    `jax.distributed`. Integers and booleans have no gradient. 8-bit floats are sent as bytes, and
    their cotangents added in float32.

    With `check_vma=True` the result varies over the mesh axes: it is the same on every shard, but
    each has its own cotangent, so that it cannot be returned with `out_specs=P()` as it is. With
    `check_vma=False` it can, but then JAX hands every shard the cotangent divided by the number of
    shards, which `"sum"` makes good and the other rules do not: take the gradient inside of
    `shard_map`, or return what the shards compute one by one.

    Each process compiles a program of its own, of the shapes that it has. JAX takes it that they
    are the same; where they are not (one process's last batch is smaller, say), transports fail,
    hang, or mix up numbers. With `check` the shards first compare shape, dtype and the other
    arguments, each time the program runs, and all of them fail with the same words. A program with
    this in it cannot be exported, and JAX's cache on disk does not keep it.

    Args:
      x: `[...]`, at least one dimension: bool, integers, floats of 8 to 64 bits or complex.
      axis_name: the name of a mesh axis of the enclosing `shard_map` (or `pmap`), or several.
      axis: the dimension, from −ndim on; of a stacked result the new one.
      tiled: whether to concatenate or to stack.
      grad: `"sum"`, `"local"` or `"mean"`.
      check: whether the shards compare their arguments before anything is sent, in an exchange of
        128 bytes each and a call from the program into Python. None: between processes, and there
        as the environment variable BRIDGE_CHECK_COLLECTIVES says; without it on CPUs (1), and not
        on GPUs (0), which would wait for the host.

    Returns:
      An array of the dtype of x.

    Raises:
      TypeError: for another dtype, an `axis` that is no integer, an axis name that is none, or
        `tiled` or `check` that is no bool.
      ValueError: for a 0-dimensional x, an axis out of range, an unknown rule, an axis name that is
        not bound where the call stands. With `"local"` or `"mean"` also for an axis of `jax.vmap`,
        and where an x that is differentiated towards is the same on all shards
        (`check_vma=True`): it has no part of its own. A ValueError that shards find while the
        program runs comes out of jitted code as `jax.errors.JaxRuntimeError` with its words.

    Example:
      >>> mesh = jax.make_mesh((1,), ("data",))
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
    if is_bool:  # every engine sends bytes
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
    # Whether there will be a backward pass is not known where the array is gathered.
    return Signature.of(x.dtype.name, x.shape, axis, tiled, grad, needs_grad=False)


def _judge_of(x: Any, axis: Any) -> Judge:
    found = [f"x {x.dtype.name}{list(x.shape)}", f"axis {axis!r}"]
    return lambda signatures: fault_of("all_gather", signatures, lambda: found, dim="axis")


def _is_8_bit_float(dtype: Any) -> bool:
    """Whether arrays of this dtype are sent as bytes and added in float32."""
    return dtype.name.startswith("float8_")


def _size_of(names: tuple[Any, ...]) -> int:
    """The number of shards along these axes.

    Raises:
      TypeError: if one can be no name.
      ValueError: if there is none, one is named twice, or one is not bound here.
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
    return jax.typeof(jax.eval_shape(lambda x: lax.all_gather(x, names, axis=axis, tiled=tiled), x))


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
    # What is derived from arrays that agree does so as well.
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
    """Raises ValueError if x is the same on all shards, where types tell."""
    unlike = varying_axes_of(jax.typeof(cotangent)) - varying_axes_of(x)
    shared = [name for name in names if name in unlike]
    if shared and grad != "sum":
        raise ValueError(
            f"all_gather: x is the same on all shards of the axis {shared[0]!r}, expected it to "
            f"vary where grad is {grad!r} and x is differentiated towards: a shard has no part of "
            f"its own in it. Gather a value that differs between shards, or take grad='sum'"
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
