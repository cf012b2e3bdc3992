"""Convolutions in JAX: a primitive with its derivatives, batching rule and custom call."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import (
    Primitive,
    ShapedArray,
    Zero,
    is_undefined_primal,
    lower_fun,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
    register_lowering,
    with_devices,
)
from bridge.jax._adapter.avals import split_as, vary_alike
from bridge.jax._adapter.debug import define_eager
from bridge.jax._adapter.ffi import PLATFORMS, on_its_platform
from bridge.jax._adapter.products import ArrayFunctions
from bridge.jax._adapter.taylor import define_jet
from bridge.jax._sharded.convolutions import ConvolutionSite, on_explicit_axes, result_spec
from bridge.jax._sharded.partitioning import has_explicit_axes, name_in_cache_key, place_of
from bridge.jax._sharded.products import on_automatic_axes
from bridge.ops import convolution as rules
from bridge.ops.convolution import KINDS, OPERANDS, RESULT, ConvolutionParams
from bridge.ops.product import added_tangents

_primitive = Primitive("bridge_convolution")


class _Primitives(ArrayFunctions):
    """The functions of `bridge.ops.convolution.Arrays`."""

    @staticmethod
    def convolution(a: Any, b: Any, bias: Any, params: ConvolutionParams) -> Any:
        return convolution(a, b, bias, params)

    @staticmethod
    def repeated(x: Any, count: int) -> Any:
        return jnp.broadcast_to(x, (count, *x.shape))

    @staticmethod
    def zeros(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return jnp.zeros(shape, dtype)


PRIMITIVES = _Primitives()


def convolution(a: Any, b: Any, bias: Any, params: ConvolutionParams) -> Any:
    """Returns the convolution of two of x, w and y, in the order of `OPERANDS`."""
    present = vary_alike([a, b] if bias is None else [a, b, bias])
    return _primitive.bind(*present, params=params)


def _abstract(a: Any, b: Any, bias: Any = None, *, params: ConvolutionParams) -> Any:
    own = None if bias is None else bias.shape
    shape = rules.result_shape(a.shape, b.shape, own, params)
    changed: dict[str, Any] = {}
    if has_explicit_axes(a) or has_explicit_axes(b):
        mesh = (a if has_explicit_axes(a) else b).sharding.mesh
        changed["sharding"] = NamedSharding(mesh, PartitionSpec(*result_spec(a, b, params)))
    return a.update(shape=shape, dtype=jnp.dtype(params.dtype), weak_type=False, **changed)


def _jvp(primals: Any, directions: Any, *, params: ConvolutionParams) -> Any:
    result = _primitive.bind(*primals, params=params)
    found = [None if type(d) is Zero else d for d in directions]
    found += [None] * (3 - len(found))
    terms = rules.tangents(PRIMITIVES, primals[:2], found, params)
    if not terms:
        return result, Zero(jax.typeof(result).to_tangent_aval())
    return result, added_tangents(PRIMITIVES, terms)


def _transpose(g: Any, *places: Any, params: ConvolutionParams) -> Any:
    linear = [is_undefined_primal(each) for each in places]
    if linear[0] and linear[1]:
        raise TypeError("convolution is not linear in both operands: no transpose")
    avals: list[Any] = [each.aval if is_undefined_primal(each) else None for each in places]
    if type(g) is Zero:
        return [None if aval is None else Zero(aval) for aval in avals]
    names = OPERANDS[params.kind]
    values = {**dict(zip(names, places, strict=False)), RESULT[params.kind]: g}
    found: list[Any] = [None] * len(places)
    for place, (name, aval) in enumerate(zip(names, avals, strict=False)):
        if aval is not None:
            dtype = aval.dtype.name
            found[place] = rules.cotangent(PRIMITIVES, name, aval.shape, values, params, dtype)
    if len(places) == 3 and linear[2]:
        found[2] = rules.cotangent_of_bias(PRIMITIVES, g, params, avals[2].dtype.name)
    return [x if x is None else split_as(x, aval) for x, aval in zip(found, avals, strict=True)]


def _batch(operands: Any, dims: Any, *, params: ConvolutionParams) -> Any:
    a, b, *rest = (
        x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)
    )
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    has_batch = [dim is not None for dim in dims]
    has_batch += [False] * (3 - len(has_batch))
    bias = rest[0] if rest else None
    return rules.batched(PRIMITIVES, a, b, bias, has_batch, size, params), 0


def _lower(context: Any, *operands: Any, params: ConvolutionParams) -> Any:
    where = place_of(context, context.avals_in, on_explicit_axes, on_automatic_axes)
    if where is not None:
        shapes = tuple(aval.shape for aval in context.avals_in)
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        site = ConvolutionSite(PRIMITIVES, params, shapes, x64)
        run = lower_fun(partial(where, site), multiple_results=False)
        results = run(with_devices(context), *operands)
        name_in_cache_key(f"convolution {params}", results)
        return results
    return on_its_platform(context, "convolution", _any_platform, _emit, operands, params=params)


def _emit(platform: str, context: Any, *operands: Any, params: ConvolutionParams) -> Any:
    a, b, *_ = (aval.shape for aval in context.avals_in)
    dtypes = [aval.dtype.name for aval in context.avals_in]
    has_tensor_cores = rules.has_tensor_cores(params, dtypes, platform == "cuda")
    if params.kind == "input":  # the kernel takes its operands in the order x, w, y
        y, w, *bias = range(len(operands))
        operands = tuple(operands[i] for i in (w, y, *bias))
        avals = [context.avals_in[i] for i in (w, y, *bias)]
        context = context.replace(avals_in=avals)
    if platform == "cuda":  # XLA allocates the workspace, as of a product
        size = max(rules.workspace_bytes(a, b, params), 16)
        workspace = ShapedArray((size,), np.dtype(np.uint8))
        context = context.replace(avals_out=[*context.avals_out, workspace])
    lists = {
        "stride": params.stride,
        "padding": params.padding,
        "dilation": params.dilation,
        **{f"{name}_order": params.order(name) for name in "xwy"},
    }
    results = jax.ffi.ffi_lowering("bridge_convolution")(
        context,
        *operands,
        kind=np.int32(KINDS.index(params.kind)),
        groups=np.int64(params.groups),
        tensor_cores=np.bool_(has_tensor_cores),
        **{name: np.array(numbers, np.int64) for name, numbers in lists.items()},
    )
    return list(results)[:1]


_any_platform = Primitive("bridge_convolution")
for _each in (_primitive, _any_platform):
    _each.def_abstract_eval(_abstract)
define_eager(_primitive, ("params",))
primitive_jvps[_primitive] = _jvp
primitive_transposes[_primitive] = _transpose
primitive_batchers[_primitive] = _batch
define_jet(_primitive)
register_lowering(_primitive, _lower, cacheable=False)
for _platform in PLATFORMS:
    register_lowering(_any_platform, partial(_emit, _platform), platform=_platform)
