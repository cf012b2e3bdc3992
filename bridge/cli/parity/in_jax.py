"""Every quantity in JAX: through bridge, and through JAX's own ops and transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bridge.jax
from bridge.cli.parity.grid import Case

Function = Callable[[Any, Any], Any]


def bridged(approximate: str) -> Function:
    return lambda x, bias: bridge.jax.bias_gelu(x, bias, approximate=approximate)


def own(approximate: str) -> Function:
    """What a user writes without bridge."""

    def function(x: Any, bias: Any) -> Any:
        h = x if bias is None else x + bias
        if approximate == "sigmoid":
            return h * jax.nn.sigmoid(1.702 * h)
        return jax.nn.gelu(h, approximate=approximate == "tanh")

    return function


def arrays(operands: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """The operands as JAX arrays, still dense: `compiled` lays them out."""
    return {
        name: None if array is None else jax.device_put(array, device)
        for name, array in operands.items()
    }


def compiled(
    f: Function, case: Case, wanted: Sequence[str] | None = None
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """One jitted function for all quantities, or those wanted; the layout is applied inside."""

    def function(p: Mapping[str, Any]) -> dict[str, Any]:
        laid_out = {
            name: case.place.layout.view(array, case.place.shape) if name in ("x", "g") else array
            for name, array in p.items()
        }
        results = quantities(f, laid_out)
        return results if wanted is None else {name: results[name] for name in wanted}

    return jax.jit(function)


def quantities(f: Function, p: Mapping[str, Any]) -> dict[str, Any]:
    """Value, gradients, tangent, grad of grad and Hessian-vector product."""
    has_bias = p["bias"] is not None
    inputs = (p["x"], p["bias"]) if has_bias else (p["x"],)
    tangents = (p["t_x"], p["t_bias"]) if has_bias else (p["t_x"],)
    cotangents = (p["v_x"], p["v_bias"]) if has_bias else (p["v_x"],)
    call = f if has_bias else (lambda x: f(x, None))

    def gradient(inputs: tuple[Any, ...], g: Any) -> tuple[Any, ...]:
        return jax.vjp(call, *inputs)[1](g)

    first, pull = jax.vjp(gradient, inputs, p["g"])
    second, second_g = pull(cotangents)
    _, jvp = jax.jvp(call, inputs, tangents)
    _, hvp = jax.jvp(lambda *inputs: gradient(inputs, p["g"]), inputs, tangents)
    results = {"forward": call(*inputs), "dx": first[0], "jvp": jvp, "d2x": second[0]}
    results |= {"d2g": second_g, "hvp_x": hvp[0]}
    if has_bias:
        results |= {"dbias": first[1], "d2bias": second[1], "hvp_bias": hvp[1]}
    return results


def to_numpy(array: Any) -> np.ndarray:
    return np.asarray(jnp.asarray(array))
