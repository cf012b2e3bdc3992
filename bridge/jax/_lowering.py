"""Any op as a JAX primitive, from its definition.

A primitive rather than custom_vjp: it has forward and reverse mode of any order, vmap, remat and
partial evaluation, and its transpose is the fused backward kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from bridge import _native
from bridge.ops import OPS, Spec
from bridge.ops.batching import Move, batch_call

Array = jax.Array


def spec_of(array: Any) -> Spec:
    """Returns shape and dtype name of an array, tracer or abstract value."""
    return Spec(tuple(array.shape), jnp.dtype(array.dtype).name)


def call(op: Any, operands: tuple[Any, ...], params: Any) -> tuple[Array | None, ...]:
    """Runs `op`; differentiable, batchable, and traceable like any JAX function."""
    slots = tuple(i for i, operand in enumerate(operands) if operand is not None)
    results = primitives[op.name].bind(
        *(operands[i] for i in slots), slots=slots, count=len(operands), params=params
    )
    return _in_places(op, params, results)


def _in_places(op: Any, params: Any, results: Sequence[Any]) -> tuple[Any, ...]:
    remaining = iter(results)
    return tuple(
        None if getattr(params, name) is None else next(remaining) for name in op.result_names
    )


def _scatter(values: Sequence[Any], slots: Sequence[int], count: int) -> tuple[Any, ...]:
    """Values of the present operands at their positions, None elsewhere."""
    placed: list[Any] = [None] * count
    for slot, value in zip(slots, values, strict=True):
        placed[slot] = value
    return tuple(placed)


def _specs(operands: Sequence[Any]) -> list[Spec | None]:
    return [None if operand is None else spec_of(operand) for operand in operands]


def _abstract(op: Any, *avals: Any, slots: Any, count: int, params: Any) -> Any:
    specs = op.results(_scatter([spec_of(aval) for aval in avals], slots, count), params)
    return [
        jax.core.ShapedArray(spec.shape, jnp.dtype(spec.dtype))
        for spec in specs
        if spec is not None
    ]


def _jvp(
    op: Any, primals: Any, tangents: Any, *, slots: Any, count: int, params: Any
) -> tuple[Any, Any]:
    outputs = primitives[op.name].bind(*primals, slots=slots, count=count, params=params)
    operands = _scatter(primals, slots, count)
    directions = _scatter(
        [None if type(t) is ad.Zero else t for t in tangents], slots, count
    )
    totals: list[Any] | None = None
    for derivative in op.jvp(operands, directions, _specs(operands), params):
        results = call(derivative.op, derivative.operands, derivative.params)
        present = [result for result in results if result is not None]
        totals = present if totals is None else [
            a + b for a, b in zip(totals, present, strict=True)
        ]
    if totals is None:
        totals = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
    return outputs, totals


def _transpose(
    op: Any, cotangents: Any, *arguments: Any, slots: Any, count: int, params: Any
) -> list[Any]:
    linear = [ad.is_undefined_primal(argument) for argument in arguments]
    avals = [a.aval if is_linear else a for a, is_linear in zip(arguments, linear, strict=True)]
    operands = _scatter(
        [None if is_linear else a for a, is_linear in zip(arguments, linear, strict=True)],
        slots,
        count,
    )
    wanted = _scatter(linear, slots, count)
    wanted = tuple(bool(w) for w in wanted)
    placed = _in_places(
        op, params, [None if type(ct) is ad.Zero else ct for ct in cotangents]
    )
    gradients: list[Any] = [None] * count
    for derivative, places in op.vjp(
        operands, placed, wanted, _specs(_scatter(avals, slots, count)), params
    ):
        results = call(derivative.op, derivative.operands, derivative.params)
        for result, place in zip(results, places, strict=True):
            if place is not None:
                previous = gradients[place]
                gradients[place] = result if previous is None else previous + result
    return [
        (gradients[slot] if gradients[slot] is not None else ad.Zero(aval)) if is_linear else None
        for slot, aval, is_linear in zip(slots, avals, linear, strict=True)
    ]


def _batch(
    op: Any, arguments: Any, dims: Any, *, slots: Any, count: int, params: Any
) -> tuple[Any, Any]:
    size = next(
        a.shape[d] for a, d in zip(arguments, dims, strict=True) if d is not None
    )
    operands = _scatter(arguments, slots, count)
    placed_dims = _scatter(dims, slots, count)
    new_params, moves = batch_call(
        op, params, [o is not None for o in operands], [d is not None for d in placed_dims]
    )
    moved = []
    for operand, dim, move in zip(operands, placed_dims, moves, strict=True):
        if move is Move.FRONT:
            operand = jnp.moveaxis(operand, dim, 0)
        elif move is Move.BROADCAST:
            operand = jnp.broadcast_to(operand, (size, *operand.shape))
        moved.append(operand)
    results = [r for r in call(op, tuple(moved), new_params) if r is not None]
    return results, [0] * len(results)


def _lower(
    op: Any, platform: str, ctx: Any, *operands: Any, slots: Any, count: int, params: Any
) -> Any:
    import numpy as np

    outputs = sum(
        1 << i for i, name in enumerate(op.result_names) if getattr(params, name) is not None
    )
    attributes = {
        name: np.int32(value) if isinstance(value, int) else value
        for name, value in params.attributes().items()
    }
    lower = jax.ffi.ffi_lowering(f"bridge_{op.name}")
    return lower(
        ctx,
        *operands,
        **attributes,
        factors=np.int32(count // 2 - 1),
        slots=np.array(slots, np.int32),
        outputs=np.int32(outputs),
    )


def _define(op: Any) -> Primitive:
    primitive = Primitive(f"bridge_{op.name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(partial(_abstract, op))
    primitive.def_impl(
        lambda *operands, **parameters: jax.jit(partial(primitive.bind, **parameters))(*operands)
    )
    ad.primitive_jvps[primitive] = partial(_jvp, op)
    ad.primitive_transposes[primitive] = partial(_transpose, op)
    batching.primitive_batchers[primitive] = partial(_batch, op)
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, partial(_lower, op, platform), platform=platform)
    return primitive


def _register() -> None:
    for target, handlers in _native.ffi_handlers().items():
        for platform, handler in handlers.items():
            jax.ffi.register_ffi_target(target, handler, platform=platform)


_register()
primitives = {op.name: _define(op) for op in OPS.values()}
