"""The softmax functions of JAX with a sink."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue.sinks import SoftmaxWithSink
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_like, as_arrays, compiled_for
from bridge.ops.scalars import real_number

sinks = SoftmaxWithSink(arrays)


def softmax_with_sink(
    function: str, x: Any, mask: Any, scale: float, sink: Any, causal: bool
) -> jax.Array:
    """Softmax with a sink, and with a mask or the causal rule if given."""
    sink = as_sink(function, sink, x)
    return _compiled(function, scale, causal)(x, mask, sink)  # type: ignore[no-any-return]


def as_sink(function: str, sink: Any, x: Any) -> Any:
    """Returns the sink in a form that a jitted function accepts.

    Raises:
      TypeError: it is neither an array nor a number.
    """
    if isinstance(sink, (bool, int, float, complex, str)):
        # A number is not rounded to x's dtype, unlike an array that takes x's dtype.
        sink = real_number(function, "sink", sink, "an array or a number")
        sink = np.asarray(sink, np.float64 if jnp.result_type(x) == np.float64 else np.float32)
    return as_array_like(function, "sink", sink)


@compiled_for
def _compiled(function: str, scale: float, causal: bool) -> Any:
    def run(x: Any, mask: Any, sink: Any) -> jax.Array:
        x, mask, sink = as_arrays(x, mask, sink)
        return sinks.run(function, x, mask, scale, sink, causal)

    run.__name__ = function
    return run
