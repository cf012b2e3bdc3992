"""Matrix products in JAX: a primitive with its derivatives, batching rule and custom call."""

from __future__ import annotations

from collections.abc import Sequence
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
from bridge.jax._adapter.primitive import call
from bridge.jax._adapter.taylor import define_jet
from bridge.jax._sharded.partitioning import has_explicit_axes, name_in_cache_key, place_of
from bridge.jax._sharded.products import (
    ProductSite,
    on_automatic_axes,
    on_explicit_axes,
    result_spec,
)
from bridge.ops import PROGRAM
from bridge.ops import product as rules
from bridge.ops.definition import Call
from bridge.ops.product import ProductParams

_primitive = Primitive("bridge_matmul")


class ArrayFunctions:
    """Functions that the rules of products and of convolutions need."""

    @staticmethod
    def permuted(x: Any, order: Sequence[int]) -> Any:
        return jnp.transpose(x, order)

    @staticmethod
    def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
        return jnp.reshape(x, shape)

    @staticmethod
    def is_on_cpu(x: Any) -> bool:
        # A traced array will be where its program runs, which the lowering finds.
        is_traced = isinstance(x, jax.core.Tracer)
        return not is_traced and all(each.platform == "cpu" for each in x.devices())

    @staticmethod
    def apart(x: Any) -> Any:
        return jnp.copy(x)  # no copy under jit

    @staticmethod
    def run(summed: Call[Any]) -> Any:
        return call(PROGRAM, summed.operands, summed.params)[0]


class _Primitives(ArrayFunctions):
    """The functions of `bridge.ops.product.Arrays` and `bridge.catalogue.products.Primitives`."""

    @staticmethod
    def product(a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
        return product(a, b, bias, params)

    @staticmethod
    def ones(like: Any, shape: tuple[int, ...]) -> Any:
        return jnp.ones(shape, like.dtype)

    @staticmethod
    def concatenated(arrays: Sequence[Any]) -> Any:
        return jnp.concatenate(arrays)

    @staticmethod
    def joins_rows(x: Any) -> bool:
        return True


PRIMITIVES = _Primitives()


def product(a: Any, b: Any, bias: Any, params: ProductParams) -> Any:
    """Returns the product of operands with as many batch dimensions each."""
    present = vary_alike([a, b] if bias is None else [a, b, bias])
    return _primitive.bind(*present, params=params)


def _abstract(a: Any, b: Any, bias: Any = None, *, params: ProductParams) -> Any:
    own = None if bias is None else bias.shape
    shape = rules.result_shape(a.shape, b.shape, own, params)
    changed: dict[str, Any] = {}
    if has_explicit_axes(a) or has_explicit_axes(b):
        mesh = (a if has_explicit_axes(a) else b).sharding.mesh
        changed["sharding"] = NamedSharding(mesh, PartitionSpec(*result_spec(a, b, params)))
    return a.update(shape=shape, dtype=jnp.dtype(params.dtype), weak_type=False, **changed)


def _jvp(primals: Any, directions: Any, *, params: ProductParams) -> Any:
    result = _primitive.bind(*primals, params=params)
    a, b, *_ = primals
    found = [None if type(d) is Zero else d for d in directions]
    found += [None] * (3 - len(found))
    terms = rules.tangents(PRIMITIVES, (a, b, None), found, params)
    if not terms:
        return result, Zero(jax.typeof(result).to_tangent_aval())
    return result, rules.added_tangents(PRIMITIVES, terms)


def _transpose(g: Any, a: Any, b: Any, bias: Any = None, *, params: ProductParams) -> Any:
    places = [a, b] if bias is None else [a, b, bias]
    linear = [is_undefined_primal(each) for each in places]
    if linear[0] and linear[1]:
        raise TypeError("matmul is not linear in both operands: no transpose")
    avals: list[Any] = [each.aval if is_undefined_primal(each) else None for each in places]
    found: list[Any] = [None] * len(places)
    if type(g) is Zero:
        return [None if aval is None else Zero(aval) for aval in avals]
    dtypes = ["" if aval is None else aval.dtype.name for aval in avals]
    if linear[0]:
        found[0] = rules.cotangent_of_a(PRIMITIVES, avals[0].shape, b, g, params, dtypes[0])
    if linear[1]:
        found[1] = rules.cotangent_of_b(PRIMITIVES, a, avals[1].shape, g, params, dtypes[1])
    if len(places) == 3 and linear[2]:
        found[2] = rules.cotangent_of_bias(PRIMITIVES, avals[2].shape, g, params, dtypes[2])
    found = [x if x is None else split_as(x, aval) for x, aval in zip(found, avals, strict=True)]
    return found


def _batch(operands: Any, dims: Any, *, params: ProductParams) -> Any:
    a, b, *rest = (
        x[None] if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    )
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    if dims[0] is None and dims[1] is None:  # only the bias has the dimension
        a = jnp.broadcast_to(a, (size, *a.shape[1:]))
    bias = None
    if rest:
        bias = operands[2] if dims[2] is None and operands[2].ndim == 1 else rest[0]
        if dims[2] is not None:
            ones = (1,) * (a.ndim - 1 - bias.ndim)
            bias = bias.reshape(bias.shape[0], *ones, *bias.shape[1:])
    return product(a, b, bias, params), 0


def _lower(context: Any, *operands: Any, params: ProductParams) -> Any:
    where = place_of(context, context.avals_in, on_explicit_axes, on_automatic_axes)
    if where is not None:
        avals = context.avals_in
        site = ProductSite(
            PRIMITIVES,
            params,
            tuple(aval.shape for aval in avals),
            tuple(aval.dtype.name for aval in avals),
            jax.config.jax_enable_x64,  # type: ignore[attr-defined]
        )
        run = lower_fun(partial(where, site), multiple_results=False)
        results = run(with_devices(context), *operands)
        name_in_cache_key(f"matmul {params}", results)
        return results
    return on_its_platform(context, "matmul", _any_platform, _emit, operands, params=params)


def _emit(platform: str, context: Any, *operands: Any, params: ProductParams) -> Any:
    dtypes = [aval.dtype.name for aval in context.avals_in]
    has_tensor_cores = rules.has_tensor_cores(params, dtypes, platform == "cuda")
    if platform == "cuda":  # XLA allocates the workspace, as of a program (ffi.py)
        a, b, *_ = context.avals_in
        size = max(rules.workspace_bytes(a.shape, b.shape, params), 16)
        workspace = ShapedArray((size,), np.dtype(np.uint8))
        context = context.replace(avals_out=[*context.avals_out, workspace])
    results = jax.ffi.ffi_lowering("bridge_matmul")(
        context,
        *operands,
        transposed_a=np.bool_(params.transposed_a),
        transposed_b=np.bool_(params.transposed_b),
        skips_zeros=np.bool_(params.skips_zeros),
        tensor_cores=np.bool_(has_tensor_cores),
    )
    return list(results)[:1]


_any_platform = Primitive("bridge_matmul")
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
