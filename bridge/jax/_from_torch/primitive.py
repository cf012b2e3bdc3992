"""Torch programs as one JAX primitive, with rules for every transform.

Each rule returns the same primitive with another program (see `program`). So any order of
derivatives and batches works, as far as torch itself can run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import (
    Primitive,
    ShapedArray,
    Zero,
    axes_in_shard_map,
    device_count,
    instantiate_zeros,
    ir,
    is_undefined_primal,
    lower_fun,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
    register_lowering,
)
from bridge.jax._adapter.avals import spec_of, vary_alike
from bridge.jax._adapter.debug import as_one_op, check_special
from bridge.jax._adapter.host_call import host_call, platform_of
from bridge.jax._adapter.taylor import define_jet
from bridge.jax._from_torch import border
from bridge.jax._from_torch.call import TorchCall
from bridge.jax._from_torch.program import Batched, Cotangent, Program, Tangent, is_smooth
from bridge.ops import Spec

VMAP_METHODS = ("vmap", "sequential", "expand_dims", "broadcast_all")

_primitive = Primitive("bridge_from_torch")
_primitive.multiple_results = True


def call(program: Program, operands: Sequence[Any]) -> list[Any]:
    """Runs the program: at once in eager code, or as a part of the trace."""
    return _primitive.bind(*map(_whole, vary_alike(operands)), program=program)


def _whole(operand: Any) -> Any:
    """Replicates the operand on every device, under a mesh with explicit axes."""
    sharding = jax.typeof(operand).sharding
    if sharding.mesh.empty or sharding.spec == PartitionSpec(*[None] * operand.ndim):
        return operand
    return jax.sharding.reshard(operand, NamedSharding(sharding.mesh, PartitionSpec()))


@_primitive.def_impl
def _run(*operands: Any, program: Program) -> list[Any]:
    # Zeros and literals arrive as JAX's wrappers of NumPy arrays.
    operands = tuple(o if hasattr(o, "sharding") else jnp.asarray(o) for o in operands)
    if all(operand.sharding.num_devices == 1 for operand in operands):
        results = border.run_eagerly(program, operands)
    else:
        with as_one_op():
            results = _jitted(*operands, program=program)
    check_special(f"from_torch: {program.name}", results)
    return results


_jitted = jax.jit(_primitive.bind, static_argnames=("program",))


@_primitive.def_abstract_eval
def _abstract(*avals: Any, program: Program) -> list[Any]:
    for aval in avals:
        if not all(isinstance(size, int) for size in aval.shape):
            raise ValueError(
                f"from_torch: {program.name} is called with an array of the symbolic shape "
                f"{list(aval.shape)}, expected sizes that are known: an exported program has no "
                "torch functions"
            )
    return _result_avals(avals, program.specs([spec_of(aval) for aval in avals]))


def _result_avals(avals: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    """Returns the types of results: varying over the operands' mesh axes, and split over none."""
    if not avals or avals[0].sharding.mesh.empty:
        return [ShapedArray(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]
    mesh = avals[0].sharding.mesh
    return [
        avals[0].update(
            shape=spec.shape,
            dtype=jnp.dtype(spec.dtype),
            weak_type=False,
            sharding=NamedSharding(mesh, PartitionSpec(*[None] * len(spec.shape))),
        )
        for spec in specs
    ]


def _jvp(primals: Any, tangents: Any, *, program: Program) -> tuple[Any, Any]:
    results = call(program, primals)
    count = len(primals)
    constant = program.constant_operands(count)
    active = tuple(
        i
        for i, tangent in enumerate(tangents)
        if type(tangent) is not Zero
        and i not in constant
        and is_smooth(jax.typeof(primals[i]).dtype.name)
    )
    smooth = program.smooth_results([jax.typeof(result).dtype.name for result in results])
    directions: list[Any] = [Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if not active or not smooth:
        return results, directions
    linear = program.linear_operands(count)
    if set(active) <= set(linear):
        moved = [
            instantiate_zeros(tangents[i]) if i in linear else primal
            for i, primal in enumerate(primals)
        ]
        return results, call(program, moved)
    derivative = Tangent(program, active)
    found = call(derivative, [*primals, *(tangents[i] for i in active)])
    for place, direction in zip(smooth, found, strict=True):
        directions[place] = direction
    return results, directions


def _transpose(cotangents: Any, *operands: Any, program: Program) -> list[Any]:
    linear = [i for i, operand in enumerate(operands) if is_undefined_primal(operand)]
    if not set(linear) <= set(program.linear_operands(len(operands))):
        raise TypeError(f"from_torch: {program.name} is not linear in the operands to transpose")
    given = tuple(i for i, cotangent in enumerate(cotangents) if type(cotangent) is not Zero)
    gradients: list[Any] = [
        Zero(operand.aval) if is_undefined_primal(operand) else None for operand in operands
    ]
    if not given:
        return gradients
    known = [cotangents[i] for i in given]
    first = len(operands) - len(program.linear_operands(len(operands)))
    if isinstance(program, Tangent):
        # Differentiate the primal program instead: torch need not have forward mode for it.
        smooth = program.of.smooth_results(
            [
                spec.dtype
                for spec in program.of.specs([spec_of(jax.typeof(o)) for o in operands[:first]])
            ]
        )
        derivative: Any = Cotangent(
            program.of,
            tuple(program.active[i - first] for i in linear),
            tuple(smooth[i] for i in given),
        )
        found = call(derivative, [*operands[:first], *known])
    elif isinstance(program, Cotangent):
        derivative = Tangent(program.of, tuple(program.active[i] for i in given))
        tangents = call(derivative, [*operands[:first], *known])
        specs = program.of.specs([spec_of(jax.typeof(o)) for o in operands[:first]])
        smooth = program.of.smooth_results([spec.dtype for spec in specs])
        found = [tangents[smooth.index(program.given[i - first])] for i in linear]
    else:
        # The program is linear, so its derivative is the same at every point: take zero.
        point = [
            jnp.zeros(o.aval.shape, o.aval.dtype) if is_undefined_primal(o) else o for o in operands
        ]
        found = call(Cotangent(program, tuple(linear), given), [*point, *known])
    for place, gradient in zip(linear, found, strict=True):
        gradients[place] = gradient
    return gradients


def _batch(arguments: Any, dims: Any, *, program: Program) -> tuple[list[Any], list[int]]:
    method = program.vmap_method
    if method is None:
        raise ValueError(
            f"from_torch: {program.name} under jax.vmap needs vmap_method= of from_torch, one of "
            f"{', '.join(map(repr, VMAP_METHODS))}"
        )
    size = next(a.shape[d] for a, d in zip(arguments, dims, strict=True) if d is not None)
    if program.is_seeded and dims[0] is not None and method != "sequential":
        raise ValueError(
            f"from_torch: {program.name} under jax.vmap over seeds needs "
            f"vmap_method='sequential', not {method!r}: torch has one generator"
        )
    if size == 0:
        specs = Batched(program, tuple(dims), 0).specs([spec_of(a) for a in arguments])
        return [jnp.zeros(s.shape, s.dtype) for s in specs], [0] * len(specs)
    if method in ("vmap", "sequential"):
        results = call(Batched(program, tuple(dims), size), arguments)
    else:
        # Derivatives need whole operands: a tangent for each, a cotangent for each batch element.
        expands = method == "expand_dims" and isinstance(program, TorchCall)
        moved = []
        for i, (argument, dim) in enumerate(zip(arguments, dims, strict=True)):
            if dim is not None:
                argument = jnp.moveaxis(argument, dim, 0)
            elif not (program.is_seeded and i == 0):
                argument = argument[None]
                if not expands:
                    argument = jnp.broadcast_to(argument, (size, *argument.shape[1:]))
            moved.append(argument)
        results = call(program, moved)
        for result in results:
            if not result.shape or result.shape[0] != size:
                raise ValueError(
                    f"from_torch: {program.name} was given arguments with a leading dimension of "
                    f"{size}, as vmap_method={method!r} says, but a result has shape "
                    f"{list(result.shape)}: use 'vmap' or 'sequential'"
                )
    return results, [0] * len(results)


def _lower(context: Any, *operands: Any, program: Program) -> Any:
    platform = platform_of(context, f"from_torch: {program.name}")
    specs = [spec_of(aval) for aval in context.avals_out]
    if not specs:
        return []
    if _is_split_by_xla(context, program):
        return _lower_on_first_device(context, operands, program, specs, platform)
    alone = axes_in_shard_map(context) is None
    emit = buffer_callback(
        border.buffer_callback(program, specs, platform, alone),
        [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in context.avals_out],
    )
    return lower_fun(emit, multiple_results=True)(context, *operands)


def _is_split_by_xla(context: Any, program: Program) -> bool:
    """True if XLA itself divides the computation among devices, in a jit without shard_map."""
    axes = axes_in_shard_map(context)
    if axes is not None:
        _, automatic = axes
        if automatic:
            raise NotImplementedError(
                f"from_torch: {program.name} is called where some axes of the mesh are manual and "
                "others automatic, expected a shard_map over all axes, or none"
            )
        return False
    return device_count(context) > 1


def _lower_on_first_device(
    context: Any, operands: Any, program: Program, specs: Sequence[Spec], platform: str
) -> Any:
    """Lowers one call on the first device, with whole arrays; XLA sends the results to the others.

    XLA keeps a custom call on one device only if its target is the NumPy callback, which XLA knows
    by name. It would run any other callback on every device.
    """
    results = host_call(context, platform, border.numpy_callback(program, specs), *operands)
    _place(results, ["<mesh<[], device_ids=[0]>, []>" for _ in specs])
    # Results marked as "on the first device" could not be combined with arrays on other devices.
    spread = context.replace(avals_in=context.avals_out)
    results = lower_fun(_barrier, multiple_results=True)(spread, *results)
    if results[0].owner.name == "stablehlo.optimization_barrier":
        everywhere = [", ".join(["{}"] * len(spec.shape)) for spec in specs]
        _place(results, [f"<mesh<[]>, [{dims}]>" for dims in everywhere])
    return results  # under a mesh with explicit axes, JAX has placed them itself


def _barrier(*values: Any) -> Any:
    return jax.lax.optimization_barrier(values)


def _place(results: Any, shardings: Sequence[str]) -> None:
    """Sets the sharding of the results on their operation."""
    attribute = f"#sdy.sharding_per_value<[{', '.join(shardings)}]>"
    results[0].owner.attributes["sdy.sharding"] = ir.Attribute.parse(attribute)


primitive_jvps[_primitive] = _jvp
primitive_transposes[_primitive] = _transpose
primitive_batchers[_primitive] = _batch
define_jet(_primitive)
register_lowering(_primitive, _lower, cacheable=False)
