"""Any op as a JAX primitive, from its definition.

An op is a primitive instead of a custom_vjp: it has forward and reverse mode of every order that
the op has, vmap, remat and partial evaluation, and its transpose is the fused backward kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bridge._private.jax import (
    Primitive,
    Zero,
    dce_rules,
    instantiate_zeros,
    is_undefined_primal,
    jaxpr_as_fun,
    lower_fun,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
    register_lowering,
    varying_axes_of,
    with_devices,
)
from bridge.jax._adapter.avals import (
    has_columns_of,
    result_aval,
    spec_of,
    split_alike,
    split_as,
    vary_alike,
)
from bridge.jax._adapter.debug import define_eager
from bridge.jax._adapter.ffi import PLATFORMS, lower, on_its_platform
from bridge.jax._adapter.taylor import define_jet
from bridge.jax._sharded.partitioning import (
    Site,
    name_in_cache_key,
    on_automatic_axes,
    on_explicit_axes,
    on_named_axis,
    place_of,
)
from bridge.lang.dtypes import OF_8_BITS
from bridge.ops import OPS, Role, ZerosLike
from bridge.ops.batching import Move, batch_call
from bridge.ops.definition import Op, each_place
from bridge.ops.splitting import wanted_roles
from bridge.ops.tables import summed

_MOST_DIMENSIONS = 9  # of arrays in which a mask repeats; BRIDGE_MAX_DIMS and the columns


def call(
    op: Op[Any], operands: Sequence[Any], params: Any, axis: str | None = None
) -> tuple[Any, ...]:
    """Runs `op`. The call can be differentiated, batched and traced like any JAX function.

    Returns the results at their positions, and None for results that are not wanted. The primitive
    takes only present operands; `slots` are their positions among all `count` operands. Inside
    `shard_map`, `axis` is the mesh axis that splits the columns.
    """
    slots = tuple(i for i, operand in enumerate(operands) if operand is not None)
    roles = op.operand_roles(len(operands), params)
    if operands[0].ndim > _MOST_DIMENSIONS:
        shape = operands[0].shape
        operands = [
            jnp.broadcast_to(o, shape) if role is Role.MASK and o is not None else o
            for o, role in zip(operands, roles, strict=True)
        ]
    has_columns = [axis is None or has_columns_of(roles[i]) for i in slots]
    present = vary_alike([operands[i] for i in slots], axis, has_columns)
    present = split_alike(present, [roles[i] for i in slots])
    return _in_places(op, params, _bind(op, present, slots, len(operands), params, axis))


def _bind(
    op: Op[Any], present: Sequence[Any], slots: Any, count: int, params: Any, axis: str | None
) -> Any:
    named: dict[str, Any] = {}
    if axis is not None:
        # Trace the call now: the axis is no longer known when the primitive is lowered.
        site = Site(call, op, params, slots, count, [operand.shape for operand in present])
        named = {
            "axis": axis,
            "jaxpr": jax.make_jaxpr(partial(on_named_axis, site, axis))(*present),
        }
    return primitives[op.name].bind(*present, slots=slots, count=count, params=params, **named)


def _follow(derivative: Any, avals: Sequence[Any], axis: str | None) -> tuple[Any, ...]:
    """Runs a call that a derivative rule returned; `avals` are the types of the operands."""
    operands = [
        instantiate_zeros(Zero(avals[operand.position]))
        if isinstance(operand, ZerosLike)
        else operand
        for operand in derivative.operands
    ]
    if derivative.op is None:
        return tuple(operands)
    return call(derivative.op, operands, derivative.params, axis)


def _in_places(op: Op[Any], params: Any, results: Sequence[Any]) -> tuple[Any, ...]:
    """Wanted results at their positions, None for the others."""
    remaining = iter(results)
    return tuple(None if dtype is None else next(remaining) for dtype in op.result_dtypes(params))


def _scatter(values: Sequence[Any], slots: Sequence[int], count: int) -> tuple[Any, ...]:
    """Values of the present operands at their positions, None elsewhere."""
    placed: list[Any] = [None] * count
    for slot, value in zip(slots, values, strict=True):
        placed[slot] = value
    return tuple(placed)


def _abstract(
    op: Op[Any],
    *avals: Any,
    slots: Any,
    count: int,
    params: Any,
    axis: str | None = None,
    jaxpr: Any = None,
) -> list[Any]:
    specs = op.results(_scatter([spec_of(aval) for aval in avals], slots, count), params)
    first = op.operand_roles(count, params)[0]
    return [
        result_aval(avals[0], first, spec, role, params.batch_ndim, axis)
        for spec, role in zip(specs, op.result_roles(params), strict=True)
        if spec is not None
    ]


def _jvp(
    op: Op[Any],
    primals: Any,
    tangents: Any,
    *,
    slots: Any,
    count: int,
    params: Any,
    axis: str | None = None,
    jaxpr: Any = None,
) -> tuple[Any, Any]:
    saving = op.saving(params)
    outputs = _bind(op, primals, slots, count, saving, axis)
    operands = _scatter(primals, slots, count)
    roles = op.operand_roles(count, params)
    directions = _scatter(
        [
            None
            if type(tangent) is Zero or roles[slot].is_discrete or primal.dtype.name in OF_8_BITS
            else tangent
            for slot, tangent, primal in zip(slots, tangents, primals, strict=True)
        ],
        slots,
        count,
    )
    avals = _scatter([jax.typeof(primal).to_tangent_aval() for primal in primals], slots, count)
    placed = _in_places(op, saving, outputs)
    totals: list[Any] = [None] * len(placed)
    for derivative in op.jvp(operands, placed, directions, list(map(spec_of, operands)), params):
        for i, result in enumerate(_follow(derivative, avals, axis)):
            if result is not None:
                totals[i] = result if totals[i] is None else totals[i] + result
    # Residuals are not results of this call; one that is also a result has no tangent here.
    wanted = [i for i, dtype in enumerate(op.result_dtypes(params)) if dtype is not None]
    return [placed[i] for i in wanted], [
        Zero(jax.typeof(placed[i]).to_tangent_aval()) if totals[i] is None else totals[i]
        for i in wanted
    ]


def _transpose(
    op: Op[Any],
    cotangents: Any,
    *arguments: Any,
    slots: Any,
    count: int,
    params: Any,
    axis: str | None = None,
    jaxpr: Any = None,
) -> list[Any]:
    linear = [is_undefined_primal(argument) for argument in arguments]
    unknown = [slot for slot, is_linear in zip(slots, linear, strict=True) if is_linear]
    for slot in unknown:
        if not op.is_linear_in(slot, unknown, params):
            name, operands = op.words(params)
            raise TypeError(f"{name} is not linear in {operands[slot]}: no transpose")
    avals = [
        a.aval if is_linear else jax.typeof(a)
        for a, is_linear in zip(arguments, linear, strict=True)
    ]
    known = [None if is_linear else a for a, is_linear in zip(arguments, linear, strict=True)]
    placed = _in_places(op, params, [None if type(ct) is Zero else ct for ct in cotangents])
    shares = 1
    if axis is not None and axis not in varying_axes_of(avals[0]):
        # If check_vma is off, JAX divides the cotangent of a replicated result among the devices.
        shares = jax.lax.axis_size(axis)
        placed = tuple(
            jax.lax.psum(ct, axis) if ct is not None and not has_columns_of(role) else ct
            for ct, role in zip(placed, op.result_roles(params), strict=True)
        )
    placed_avals = _scatter(avals, slots, count)
    gradients: list[Any] = [None] * count
    roles = op.operand_roles(count, params)
    for derivative, places in op.vjp(
        _scatter(known, slots, count),
        (None,) * len(op.result_dtypes(op.saving(params))),
        placed,
        [bool(is_linear) for is_linear in _scatter(linear, slots, count)],
        list(map(spec_of, placed_avals)),
        params,
    ):
        results = _follow(derivative, placed_avals, axis)
        for i, place in each_place(places):
            result = results[i]
            if roles[place] is Role.TABLE:
                own, aval = result.dtype.name, placed_avals[place]
                result = summed(result, own, aval.shape, aval.dtype.name, call, jnp.transpose)
            if shares > 1 and not has_columns_of(roles[place]):
                result = result / shares
            result = split_as(result, placed_avals[place])
            before = gradients[place]
            gradients[place] = result if before is None else before + result
    return [
        (gradients[slot] if gradients[slot] is not None else Zero(aval)) if is_linear else None
        for slot, aval, is_linear in zip(slots, avals, linear, strict=True)
    ]


def _batch(
    op: Op[Any],
    arguments: Any,
    dims: Any,
    *,
    slots: Any,
    count: int,
    params: Any,
    axis: str | None = None,
    jaxpr: Any = None,
) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(arguments, dims, strict=True) if d is not None)
    operands = _scatter(arguments, slots, count)
    placed_dims = _scatter(dims, slots, count)
    new_params, moves = batch_call(
        op, params, [o is not None for o in operands], [d is not None for d in placed_dims]
    )
    place = 0
    if new_params == params:
        place = _place_among_rows(op, params, operands, placed_dims)
    moved: list[Any] = []
    for operand, dim, move in zip(operands, placed_dims, moves, strict=True):
        if move is Move.FRONT:
            operand = jnp.moveaxis(operand, dim, place)
        elif move is Move.ALIGN:
            operand = jnp.moveaxis(operand, dim, 0)
            ones = (1,) * (moved[0].ndim - operand.ndim)
            operand = operand.reshape(size, *ones, *operand.shape[1:])
        elif move is Move.BROADCAST:
            shape = (*operand.shape[:place], size, *operand.shape[place:])
            operand = jnp.broadcast_to(jnp.expand_dims(operand, place), shape)
        moved.append(operand)
    results = [r for r in call(op, moved, new_params, axis) if r is not None]
    return results, [place] * len(results)


def _place_among_rows(op: Op[Any], params: Any, operands: Any, dims: Any) -> int:
    """Returns a position for the batch dimension among the rows that needs no transpose, or 0."""
    roles = op.operand_roles(len(operands), params)
    present = {role for o, role in zip(operands, roles, strict=True) if o is not None}
    present.update(wanted_roles(op, params))
    if any(role.broadcasts for role in present):  # they align with the array from the right
        return 0
    fixed = max(op.fixed_ndim(params), not present <= {Role.FULL, Role.INTEGER})
    for operand, role, dim in zip(operands, roles, dims, strict=True):
        if dim is not None:
            ndim = operand.ndim + (not role.fills_space)  # the rank of the space
            return dim if dim < ndim - fixed else 0
    return 0


def _eliminate(op: Op[Any], used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    """Drops unused results: a kernel that does not write dx is faster."""
    equation = rest[-1]  # jax 0.12 passes the liveness of operands before it
    count = len(equation.invars)
    if not any(used):
        return [False] * count, None
    if not all(used) and equation.params.get("axis") is None:
        params = equation.params["params"]
        remaining = iter(used)
        dtypes = [
            dtype if dtype is not None and next(remaining) else None
            for dtype in op.result_dtypes(params)
        ]
        equation = equation.replace(
            outvars=[v for v, is_used in zip(equation.outvars, used, strict=True) if is_used],
            params={**equation.params, "params": op.with_dtypes(params, dtypes)},
        )
    return [True] * count, equation


def _lower(op: Op[Any], any_platform: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """Emits the call in place, so that the rule sees the origin of its operands.

    A module for several platforms uses `any_platform`, which has a rule for each of them: JAX
    cannot choose among the rules of a primitive that is lowered in place.
    """
    if "jaxpr" in parameters:
        return lower_fun(jaxpr_as_fun(parameters["jaxpr"]), multiple_results=True)(
            context, *operands
        )
    where = place_of(context, context.avals_in[:1], on_explicit_axes, on_automatic_axes)
    if where is not None:
        site = Site(
            call,
            op,
            parameters["params"],
            parameters["slots"],
            parameters["count"],
            [aval.shape for aval in context.avals_in],
        )
        results = lower_fun(partial(where, site), multiple_results=True)(
            with_devices(context), *operands
        )
        name_in_cache_key(site.words, results)
        return results
    emit = partial(lower, op)
    return on_its_platform(context, op.name, any_platform, emit, operands, **parameters)


def _define(op: Op[Any]) -> Any:
    primitive = Primitive(f"bridge_{op.name}")
    any_platform = Primitive(primitive.name)
    for each in (primitive, any_platform):
        each.multiple_results = True
        each.def_abstract_eval(partial(_abstract, op))
    define_eager(primitive, ("slots", "count", "params", "axis", "jaxpr"))
    primitive_jvps[primitive] = partial(_jvp, op)
    primitive_transposes[primitive] = partial(_transpose, op)
    primitive_batchers[primitive] = partial(_batch, op)
    dce_rules[primitive] = partial(_eliminate, op)
    define_jet(primitive)
    register_lowering(primitive, partial(_lower, op, any_platform), cacheable=False)
    for platform in PLATFORMS:
        register_lowering(any_platform, partial(lower, op, platform), platform=platform)
    return primitive


primitives = {op.name: _define(op) for op in OPS.values()}
