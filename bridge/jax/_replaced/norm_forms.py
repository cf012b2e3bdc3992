"""The forms of norms: Flax's own, and others with weight or 1 + weight."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bridge.jax._ops.nnx_norms import LayerNorm, RMSNorm
from bridge.jax._ops.norms import layer_norm, rms_norm
from bridge.jax._replaced.trial import TOLERANCES, Form, first_alike, numbers, rows
from bridge.lang.dtypes import FLOATING

_WEIGHTS = ("scale", "weight", "gamma", "w")
_BIASES = ("bias", "beta", "b")
_EPS = ("epsilon", "eps", "variance_epsilon", "norm_eps", "layer_norm_eps", "rms_norm_eps")
# Constants in the code of norms that have no such attribute.
_EPS_IN_CODE = (1e-6, 1e-5, 1e-8, 1e-12)


def norm_form(layer: nnx.Module) -> Form | str | None:
    """Returns the form of a norm, or the reason why it has none, or None for another layer."""
    eps = [name for name in _EPS if isinstance(getattr(layer, name, None), float)]
    if not eps and "norm" not in type(layer).__name__.lower():
        return None
    variables = _variables(layer)
    if variables is None or not variables.keys() <= {*_WEIGHTS, *_BIASES}:
        return None
    if not variables and not eps:
        return None
    shapes = [getattr(variable.get_value(), "shape", None) for variable in variables.values()]
    kinds = [getattr(variable.get_value(), "dtype", None) for variable in variables.values()]
    if any(kind is None or jnp.dtype(kind).name not in FLOATING for kind in kinds):
        return "its parameters are no floating-point arrays, as in quantised layers"
    if not all(shapes):
        return None
    sizes = {shape[-1] for shape in shapes if shape} or {16}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    arguments = {dtype: [(x,) for x in rows(size, dtype)] for dtype in TOLERANCES}
    copies = [_copied(layer, variables, size, dtype) for dtype in TOLERANCES]
    return first_alike(copies, arguments, type(layer).__call__, _forms(layer, variables, eps))


def _variables(layer: nnx.Module) -> dict[str, Any] | None:
    """Returns a layer's own variables but those of random streams; None if it has other parts."""
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(layer, nnx.Not(nnx.RngState))):
        if len(path) != 1 or not isinstance(variable, nnx.Variable):
            return None
        if variable.get_value() is not None:
            found[str(path[0])] = variable
    return found


def _copied(layer: nnx.Module, variables: dict[str, Any], size: int, dtype: str) -> nnx.Module:
    """Returns a copy of a layer with random parameters of one dimension."""
    copy = nnx.merge(*nnx.split(layer))
    for seed, name in enumerate(variables):
        setattr(copy, name, nnx.Param(numbers((size,), dtype, seed)))
    return copy


def _forms(layer: nnx.Module, variables: dict[str, Any], eps: list[str]) -> Iterator[Form]:
    for kind, op in ((nnx.RMSNorm, "rms_norm"), (nnx.LayerNorm, "layer_norm")):
        if isinstance(layer, kind):
            yield Form(op, _norm_of_flax)
    weight = next((name for name in variables if name in _WEIGHTS), None)
    bias = next((name for name in variables if name in _BIASES), None)
    names = {"weight_name": weight, "bias_name": bias}
    ops = [("rms_norm", 0.0)] if bias is None else []
    ops += [("layer_norm", 0.0)]
    if weight is not None:
        ops += [(op, 1.0) for op, _ in ops]
    dtypes = ("promoted", "x", "weight", "own")
    for (op, offset), dtype, number in itertools.product(ops, dtypes, eps[:1] or _EPS_IN_CODE):
        constants = {"op": op, "offset": offset, "dtype": dtype, "eps": number, **names}
        yield Form(op, _norm, tuple(constants.items()))


def _norm_of_flax(layer: Any, x: jax.Array) -> jax.Array:
    kind = RMSNorm if isinstance(layer, nnx.RMSNorm) else LayerNorm
    return kind.__call__(layer, x)  # type: ignore[no-any-return]


def _norm(
    layer: Any,
    x: jax.Array,
    op: str,
    offset: float,
    dtype: str,
    eps: str | float,
    weight_name: str | None,
    bias_name: str | None,
) -> jax.Array:
    weight = None if weight_name is None else getattr(layer, weight_name)[...]
    bias = None if bias_name is None else getattr(layer, bias_name)[...]
    number = getattr(layer, eps) if isinstance(eps, str) else eps
    if op == "rms_norm":
        y = rms_norm(x, weight, eps=number, offset=offset)
    else:
        if offset and weight is not None:
            weight = weight + offset
        y = layer_norm(x, weight, bias, eps=number)
    if dtype == "own" and getattr(layer, "dtype", None) is not None:
        return y.astype(layer.dtype)
    if dtype == "x":
        return y.astype(x.dtype)
    return y.astype(weight.dtype) if dtype == "weight" and weight is not None else y


def has_rows_for_form(layer: Any, x: Any) -> bool:
    """True if a layer's own parameters are vectors as long as the rows of x, as in the trial.

    Layers stacked by `nnx.vmap` have vectors only inside `nnx.scan` or `nnx.vmap`.
    """
    return all(v.shape == x.shape[-1:] for v in vars(layer).values() if isinstance(v, nnx.Variable))
