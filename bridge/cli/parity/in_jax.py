"""All quantities in JAX, for any function of named operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bridge.cli.parity.grid import Case
from bridge.cli.parity.places import CONTIGUOUS
from bridge.cli.parity.quantities import named

Operands = Mapping[str, Any]  # arrays by name
Function = Callable[[Operands], Any]


def arrays(operands: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Returns the operands as dense JAX arrays; `compiled` applies the layout."""
    return {name: jax.device_put(array, device) for name, array in operands.items()}


def compiled(
    f: Function, case: Case, first_order: bool = False
) -> Callable[[Operands], dict[str, Any]]:
    """Returns a jitted function for all quantities, or for value and gradients alone."""

    def function(p: Operands) -> dict[str, Any]:
        laid_out = case.all_viewed(p)
        return quantities(f, case, laid_out, first_order)

    return jax.jit(function)


def quantities(f: Function, case: Case, p: Operands, first_order: bool = False) -> dict[str, Any]:
    """Computes the quantities of a case."""
    names = case.inputs

    def call(*inputs: Any) -> Any:
        return f({**p, **dict(zip(names, inputs, strict=True))})

    def gradient(inputs: tuple[Any, ...], g: Any) -> tuple[Any, ...]:
        return jax.vjp(call, *inputs)[1](g)

    inputs = tuple(p[name] for name in names)
    results = {"forward": call(*inputs)}
    if not case.entry.compared.differentiable:
        return results
    if first_order:
        return results | named("d", names, gradient(inputs, p["g"]))
    tangents = tuple(p[f"t_{name}"] for name in names)
    if case.second_order:
        first, pull = jax.vjp(gradient, inputs, p["g"])
        second, second_g = pull(tuple(p[f"v_{name}"] for name in names))
        results |= named("d2", names, second) | {"d2g": second_g}
    else:
        first = gradient(inputs, p["g"])
    results |= named("d", names, first)
    results["jvp"] = jax.jvp(call, inputs, tangents)[1]
    if case.hessian:
        _, products = jax.jvp(lambda *inputs: gradient(inputs, p["g"]), inputs, tangents)
        results |= named("hvp_", names, products)
    return results


def mapped(f: Function, case: Case) -> Callable[[Operands], dict[str, Any]]:
    """Returns a function for value and gradient of x, by vmap over the first dimension."""

    def function(p: Operands) -> dict[str, Any]:
        laid_out = case.all_viewed(p)

        def both(part: dict[str, Any]) -> tuple[Any, Any]:
            value, pull = jax.vjp(lambda x: f({**laid_out, **part, "x": x}), part["x"])
            return value, pull(part["g"])[0]

        value, gradient = jax.vmap(both)({name: laid_out[name] for name in case.mapped})
        return {"forward": value, "dx": gradient}

    return jax.jit(function)


def sharded(case: Case, p: Operands, devices: Sequence[Any]) -> dict[str, Any]:
    """Splits operands that have rows over the devices, and replicates the others."""
    mesh = jax.sharding.Mesh(np.array(devices), ("devices",))

    def put(name: str, array: Any) -> Any:
        spec = PartitionSpec("devices") if case.has_rows(name) else PartitionSpec()
        return jax.device_put(array, NamedSharding(mesh, spec))

    return {name: put(name, array) for name, array in p.items()}


def shards_of(case: Case, device: str) -> Sequence[Any]:
    """Returns the devices for the rows of a case; none for most cases, to save time."""
    shape = case.place.shape
    devices = jax.devices(device)
    is_chosen = case.place.layout is CONTIGUOUS and case.dtypes in _SHARDED
    if not is_chosen or len(shape) < 2 or shape[0] == 0:
        return ()
    counts = [n for n in (4, 2) if n <= len(devices) and shape[0] % n == 0]
    return devices[: counts[0]] if counts else ()


# One dtype represents each arithmetic.
_SHARDED = ("float32", "bfloat16")


def to_numpy(array: Any) -> np.ndarray:
    return np.asarray(jnp.asarray(array))
