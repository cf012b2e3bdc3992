"""Batch norm as a compiled function, also over images that are split over a mesh axis."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bridge._private.jax import varying_axes_of
from bridge.catalogue.vision.batch_norm import NAME, BatchNorm, Evaluation, Options, Statistics
from bridge.catalogue.vision.batch_norm_layer import Rule, rows_of, running
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_arrays, compiled_for
from bridge.jax._adapter.avals import unsplit, vary_alike
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition


def over_devices(axis_name: Any, x: Any, weight: Any, bias: Any, options: Options) -> Any:
    """Returns this device's values, and the statistics of all devices."""
    present = [each for each in (x, weight, bias) if each is not None]
    axes = [varying_axes_of(jax.typeof(each)) for each in present]
    # Weights that are the same on all devices, as far as types tell.
    are_shared = axis_name in axes[0] and all(axis_name not in each for each in axes[1:])
    varying = iter(vary_alike(present))
    x, weight, bias = (each if each is None else next(varying) for each in (x, weight, bias))
    return _values_of_all(axis_name, are_shared, options, x, weight, bias)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _values_of_all(
    axis_name: Any, are_shared: bool, options: Options, x: Any, weight: Any, bias: Any
) -> Any:
    return _forward(axis_name, are_shared, options, x, weight, bias)[0]


def _forward(
    axis_name: Any, are_shared: bool, options: Options, x: Any, weight: Any, bias: Any
) -> Any:
    rules = _rules(axis_name, are_shared)
    pair = rules.statistics.forward((x,), options)
    y = rules.forward((x, weight, bias, pair), options)
    return (y, pair), (x, weight, bias, pair)


def _backward(
    axis_name: Any, are_shared: bool, options: Options, operands: Any, cotangents: Any
) -> Any:
    wanted = [operand is not None for operand in operands[:3]]
    rules = _rules(axis_name, are_shared)
    return tuple(rules.gradients(cotangents[0], operands, options, wanted))


_values_of_all.defvjp(_forward, _backward)


def _rules(axis_name: Any, are_shared: bool) -> BatchNorm:
    def share(total: Any) -> Any:
        """Gives the sum to the first device: JAX adds the gradients of shared weights up.

        Zeros do not change the sum, in any order, and -0.0 keeps its sign.
        """
        return jnp.where(lax.axis_index(axis_name) == 0, total, -0.0)

    exchange = partial(lax.all_gather, axis_name=axis_name)
    return BatchNorm(functions, exchange, share if are_shared else None)


@compiled_for
def compiled_batch_norm(
    training: bool, rule: Rule, eps: float, axis: int, parts: int, axis_name: Any
) -> Any:
    def run(x: Any, *others: Any) -> Any:
        x, mean, variance, weight, bias = as_arrays(x, *others)
        present = [each for each in (x, weight, bias) if each is not None]
        x = arrays.cast(x, jax.numpy.result_type(*present).name)
        place, last = axis, x.ndim == 2 or axis != 1
        place = x.ndim - 1 if last else 1
        x = x if place == axis else functions.moved(x, axis, place)
        x = unsplit(x, slice(place, place + 1))
        options = Options(eps, x.ndim - 1, last, parts)
        if not training:
            y = _evaluation.run((x, mean, variance, weight, bias), options)
        elif axis_name is None:
            pair = _statistics.run((x,), options)
            y = _values.run((x, weight, bias, pair), options)
        else:
            y, pair = over_devices(axis_name, x, weight, bias, options)
        y = y if place == axis else functions.moved(y, place, axis)
        if not training:
            return y
        count = rows_of(x.shape, place) * parts
        if mean is None or count == 0:
            return y, mean, variance
        return y, *running(arrays, mean, variance, lax.stop_gradient(pair), rule, count)

    run.__name__ = NAME
    return run


_evaluation = Composition(Evaluation(functions))
_statistics = Composition(Statistics(functions))
_values = Composition(BatchNorm(functions))
