"""A composition as a primitive of JAX, with reverse mode that recomputes, and forward mode.

The tangent is a second primitive, linear in the tangents of the operands: its transpose is the
backward pass. So reverse mode stores the operands and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bridge._private.jax import (
    Primitive,
    Zero,
    is_undefined_primal,
    lower_fun,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
    register_lowering,
)
from bridge.jax._adapter.avals import vary_alike
from bridge.jax._adapter.debug import define_eager
from bridge.jax._adapter.taylor import define_jet
from bridge.ops.compositions import Rules


class Composition:
    """Runs a composition on arrays.

    The primitives take the present operands; `slots` are their places among all operands. The
    tangents of the operands `along` come behind them.

    Args:
      rules: the composition, over the functions of arrays.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules, self.count = rules, len(rules.operands)
        self._primitive = Primitive(f"bridge_{rules.name}")
        self._tangent = Primitive(f"bridge_{rules.name}_tangent")
        for primitive, compute in (
            (self._primitive, self._forward),
            (self._tangent, self._compute_tangent),
        ):
            primitive.def_abstract_eval(self._abstract)
            own = () if primitive is self._primitive else ("along",)
            define_eager(primitive, ("slots", "options", *own))
            register_lowering(primitive, lower_fun(compute, multiple_results=False))
            primitive_batchers[primitive] = functools.partial(self._batch, primitive)
        define_jet(self._primitive)
        primitive_jvps[self._primitive] = self._jvp
        primitive_jvps[self._tangent] = self._jvp_of_tangent
        primitive_transposes[self._tangent] = self._transpose

    def run(self, operands: Sequence[Any], options: Any) -> jax.Array:
        """Returns the result for checked operands."""
        slots = tuple([i for i, x in enumerate(operands) if x is not None])
        present = vary_alike([operands[i] for i in slots])
        return self._primitive.bind(*present, slots=slots, options=options)  # type: ignore[no-any-return]

    def _in_places(self, present: Sequence[Any], slots: Sequence[int]) -> list[Any]:
        operands: list[Any] = [None] * self.count
        for slot, x in zip(slots, present, strict=True):
            operands[slot] = x
        return operands

    def _abstract(self, *given: Any, slots: Any, options: Any, **_: Any) -> Any:
        operands = self._in_places(given[: len(slots)], slots)
        first, shape = operands[0], self.rules.result_shape(operands, options)
        dtype = jnp.dtype(self.rules.result_dtype(first.dtype.name))
        placed = first.sharding
        if len(shape) != first.ndim and not placed.mesh.empty:  # sums over split rows
            placed = NamedSharding(placed.mesh, PartitionSpec())
        return first.update(shape=shape, dtype=dtype, weak_type=False, sharding=placed)

    def _forward(self, *present: Any, slots: Any, options: Any) -> jax.Array:
        return self.rules.forward(self._in_places(present, slots), options)  # type: ignore[no-any-return]

    def _compute_tangent(self, *given: Any, slots: Any, options: Any, along: Any) -> jax.Array:
        present, tangents = given[: len(slots)], given[len(slots) :]
        places = [slots.index(slot) for slot in along]

        def of_moving(*moving: Any) -> Any:
            own = list(present)
            for place, x in zip(places, moving, strict=True):
                own[place] = x
            operands = self._in_places(own, slots)
            operands[self.count - self.rules.hints :] = [None] * self.rules.hints
            return self.rules.forward(operands, options)

        own = tuple([present[place] for place in places])
        return jax.jvp(of_moving, own, tuple(tangents))[1]  # type: ignore[no-any-return]

    def _jvp(self, primals: Any, tangents: Any, *, slots: Any, options: Any) -> Any:
        result = self._primitive.bind(*primals, slots=slots, options=options)
        moving = [
            (slot, t)
            for slot, t in zip(slots, tangents, strict=True)
            if type(t) is not Zero and slot < self.rules.floating
        ]
        if not moving:
            return result, Zero(jax.typeof(result).to_tangent_aval())
        along = tuple([slot for slot, _ in moving])
        given = vary_alike([*primals, *[t for _, t in moving]])
        return result, self._tangent.bind(*given, slots=slots, options=options, along=along)

    def _jvp_of_tangent(self, primals: Any, tangents: Any, **params: Any) -> Any:
        moving = [i for i, t in enumerate(tangents) if type(t) is not Zero]
        floating = [i for i in moving if jnp.issubdtype(primals[i].dtype, jnp.floating)]

        def of_moving(*moved: Any) -> Any:
            own = list(primals)
            for i, x in zip(floating, moved, strict=True):
                own[i] = x
            return self._compute_tangent(*own, **params)

        return jax.jvp(of_moving, [primals[i] for i in floating], [tangents[i] for i in floating])

    def _transpose(self, g: Any, *given: Any, slots: Any, options: Any, along: Any) -> Any:
        present, tangents = given[: len(slots)], given[len(slots) :]
        if any(is_undefined_primal(x) for x in present):
            raise TypeError(f"{self.rules.name} is not linear in its operands: no transpose")
        nothing = [None] * len(present)
        if type(g) is Zero:
            return [*nothing, *[Zero(t.aval) for t in tangents]]
        places = [is_undefined_primal(t) for t in tangents]
        asked = [slot for slot, i in zip(along, places, strict=True) if i]
        wanted = [slot in asked for slot in range(self.rules.floating)]
        found = self._gradients(g, *present, slots=slots, options=options, wanted=tuple(wanted))
        own = dict(zip(asked, found, strict=True))
        return [*nothing, *[own.get(slot) for slot in along]]

    def _gradients(self, g: Any, *present: Any, slots: Any, options: Any, wanted: Any) -> list[Any]:
        operands = self._in_places(present, slots)
        found = self.rules.gradients(g, operands, options, wanted)
        return [d for d in found if d is not None]

    def _batch(self, primitive: Any, given: Any, dims: Any, *, slots: Any, **params: Any) -> Any:
        size = next(x.shape[d] for x, d in zip(given, dims, strict=True) if d is not None)
        moved = []
        for place, (x, dim) in enumerate(zip(given, dims, strict=True)):
            if dim is not None:
                moved.append(jnp.moveaxis(x, dim, 0))
            elif place < len(slots) and slots[place] >= self.rules.floating:
                moved.append(x[None])
            else:
                moved.append(jnp.broadcast_to(x, (size, *x.shape)))
        return primitive.bind(*moved, slots=slots, **params), 0
