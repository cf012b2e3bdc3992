"""JAX's functions of rows by bridge's ops, with JAX's shapes and dtypes.

Each function takes all arguments of JAX's by name. It returns the result, or a text: the reason why
the call passes by.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue import framework_functions
from bridge.jax._ops import log_probs
from bridge.jax._ops.bias_gelu import bias_gelu
from bridge.jax._ops.norms import layer_norm
from bridge.jax._ops.softmax import scaled_softmax
from bridge.lang.dtypes import FLOATING

_silu, _mean = framework_functions.silu.jax, framework_functions.mean.jax
_REFUSED = "JAX refuses these arguments"
_LEAST_EPS = 2.0**-149


def softmax(x: Any, axis: Any, **others: Any) -> Any:
    return _along(scaled_softmax, x, axis, **others)


def log_softmax(x: Any, axis: Any, **others: Any) -> Any:
    return _along(log_probs.log_softmax, x, axis, **others)


def standardize(x: Any, axis: Any, epsilon: Any, algorithm: Any = None, **others: Any) -> Any:
    if not isinstance(epsilon, float) or not _LEAST_EPS <= epsilon < math.inf:
        return "epsilon is given"  # under the function's own jit it is an array
    return _along(lambda x: layer_norm(x, eps=epsilon), x, axis, **others)


def logsumexp(a: Any, axis: Any, b: Any, keepdims: Any, return_sign: Any, **others: Any) -> Any:
    if b is not None or return_sign:
        return "b or return_sign is given"
    return _reduced(log_probs.logsumexp, a, axis, None, keepdims, **others)


def mean(a: Any, axis: Any, dtype: Any, out: Any, keepdims: Any, **others: Any) -> Any:
    if out is not None:
        return _REFUSED
    return _reduced(_mean, a, axis, dtype, keepdims, **others)


def gelu(x: Any, approximate: Any, **others: Any) -> Any:
    if not isinstance(approximate, bool):
        return "approximate is no bool"
    kind = "tanh" if approximate else "none"
    return _elementwise(lambda x: bias_gelu(x, approximate=kind), x, **others)


def silu(x: Any, **others: Any) -> Any:
    return _elementwise(_silu, x, **others)


def _obstacle(x: Any, others: dict[str, Any]) -> str | None:
    """Returns the reason why bridge cannot serve a call, or None; `others` should be absent."""
    for name, value in others.items():
        if value is not None:
            return f"{name} is given"
    if not isinstance(x, (jax.Array, np.ndarray)):
        return "the input is no array"
    if str(x.dtype) not in FLOATING:
        return "the dtype is not float16, bfloat16, float32 or float64"
    # The result of such an array takes the dtype of its neighbours; bridge's would keep its own.
    return "the input has a weak type" if jax.typeof(x).weak_type else None


def _elementwise(op: Callable[[Any], Any], x: Any, **others: Any) -> Any:
    if (reason := _obstacle(x, others)) is not None:
        return reason
    x = jnp.asarray(x)
    return op(x) if x.ndim else op(x[None])[0]


def _axes(x: Any, axis: Any) -> tuple[int, ...] | str:
    """Returns the axes as sorted numbers from 0, or the reason why there are none."""
    if axis is None:
        axis = tuple(range(x.ndim))
    try:
        given = [
            operator.index(each) for each in (axis if isinstance(axis, (tuple, list)) else [axis])
        ]
    except TypeError:
        return _REFUSED
    if not x.ndim or not given:
        return "the row has no dimension"
    if not all(-x.ndim <= each < x.ndim for each in given):
        return _REFUSED
    axes = sorted({each % x.ndim for each in given})
    return tuple(axes) if len(axes) == len(given) else _REFUSED


def _in_rows(x: Any, axes: tuple[int, ...]) -> Any:
    """Moves the axes to the end and makes them one."""
    last = range(x.ndim - len(axes), x.ndim)
    if axes != tuple(last):
        x = jnp.moveaxis(x, axes, last)
    return x if len(axes) == 1 else x.reshape(*x.shape[: last[0]], -1 if x.size else 0)


def _along(op: Callable[[Any], Any], x: Any, axis: Any, **others: Any) -> Any:
    if (reason := _obstacle(x, others)) is not None:
        return reason
    x = jnp.asarray(x)
    if isinstance(axes := _axes(x, axis), str):
        return axes
    y = op(_in_rows(x, axes))
    last = range(x.ndim - len(axes), x.ndim)
    if len(axes) > 1:
        y = y.reshape(*y.shape[:-1], *[x.shape[each] for each in axes])
    return y if axes == tuple(last) else jnp.moveaxis(y, last, axes)


def _reduced(
    op: Callable[[Any], Any], x: Any, axis: Any, dtype: Any, keepdims: Any, **others: Any
) -> Any:
    if (reason := _obstacle(x, others)) is not None:
        return reason
    if not isinstance(keepdims, bool):
        return _REFUSED
    x = jnp.asarray(x)
    if isinstance(axes := _axes(x, axis), str):
        return axes
    result = x.dtype
    if dtype is not None:
        result = jax.dtypes.canonicalize_dtype(dtype)
        if str(result) not in FLOATING:
            return "the argument dtype is not float16, bfloat16, float32 or float64"
    # JAX rounds to a narrower dtype at the end.
    y = op(_in_rows(x.astype(jnp.promote_types(x.dtype, result)), axes)).astype(result)
    return jnp.expand_dims(y, axes) if keepdims else y
