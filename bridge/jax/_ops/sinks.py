"""The softmax functions of JAX with a sink."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue import sinks
from bridge.jax._adapter.arguments import as_array_like, as_arrays, compiled_for
from bridge.jax._adapter.avals import spec_of
from bridge.ops.scalars import real_number


def softmax_with_sink(
    function: str, x: Any, mask: Any, scale: float, sink: Any, causal: bool
) -> jax.Array:
    """Softmax with a sink, and with a mask or the causal rule if given."""
    if isinstance(sink, (bool, int, float, complex, str)):
        # A number is not rounded to x's dtype, unlike an array that takes x's dtype.
        sink = real_number(function, "sink", sink, "an array or a number")
        sink = np.asarray(sink, np.float64 if jnp.result_type(x) == np.float64 else np.float32)
    sink = as_array_like(function, "sink", sink)
    return _compiled(function, scale, causal)(x, mask, sink)  # type: ignore[no-any-return]


@compiled_for
def _compiled(function: str, scale: float, causal: bool) -> Any:
    def run(x: Any, mask: Any, sink: Any) -> jax.Array:
        x, mask, sink = as_arrays(x, mask, sink)
        return sinks.run_softmax(_WITH_SINK, function, x, mask, scale, sink, causal)

    run.__name__ = function
    return run


def last_columns(x: jax.Array) -> jax.Array:
    """Returns `[*rows]`: the last column that each query sees under the causal rule."""
    queries, keys = x.shape[-2:]
    return jnp.broadcast_to(jnp.arange(keys - queries, keys), x.shape[:-1])


_WITH_SINK = sinks.Framework(
    sinks.softmax_with_sink.jax,
    sinks.spread.jax,
    spec_of,
    lambda x, shape, dtype: jnp.zeros(shape, dtype),
    last_columns,
)
