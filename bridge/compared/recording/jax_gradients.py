"""The backward pass of the JAX function, as equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def with_gradients(
    call: Callable[[Any, Any], tuple[list[Any], Any]],
) -> Callable[[Any, Any, Any], Any]:
    """Returns a function that also gives the gradients of the parameters.

    Args:
      call: call(arrays, inputs) returns outputs and states.

    Returns:
      f(arrays, inputs, cotangents), with an array for each floating-point output.
    """

    def run(arrays: Any, inputs: Any, cotangents: Any) -> Any:
        floats = {k: v for k, v in arrays.items() if jnp.issubdtype(v.dtype, jnp.floating)}
        rest = {k: v for k, v in arrays.items() if k not in floats}

        def outputs(floats: Any) -> Any:
            results, states = call({**rest, **floats}, inputs)
            return results, states

        results, pull, states = jax.vjp(outputs, floats, has_aux=True)
        given = iter(cotangents)
        seeds = [
            jnp.reshape(next(given), r.shape).astype(r.dtype)
            if jnp.issubdtype(r.dtype, jnp.floating)
            else np.zeros(r.shape, jax.dtypes.float0)
            for r in results
        ]
        (gradients,) = pull(seeds)
        return results, states, gradients

    return run
