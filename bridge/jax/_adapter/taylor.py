"""Rules of jax.experimental.jet, for primitives with forward mode of every order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge._private.jax import jet_rules


def define_jet(primitive: Any) -> None:
    """Registers the rule of a primitive."""

    def rule(primals: Sequence[Any], series: Sequence[Any], **parameters: Any) -> Any:
        several = primitive.multiple_results

        def function(*operands: Any) -> tuple[Any, ...]:
            results = primitive.bind(*operands, **parameters)
            return tuple(results) if several else (results,)

        results, terms = _taylor(function, primals, series)
        return (results, terms) if several else (results[0], terms[0])

    jet_rules[primitive] = rule


def _taylor(
    function: Callable[..., tuple[Any, ...]], primals: Sequence[Any], series: Sequence[Any]
) -> tuple[Sequence[Any], list[list[Any]]]:
    """Returns a function's value along a curve, and its Taylor coefficients.

    The derivative of f(x(t)) is a function of x and its derivatives, and so is its own derivative:
    each order is the tangent of the order before it.

    Args:
      primals: the point of the curve at t = 0.
      series: for each operand the coefficients of t, t², … in its curve.
    """
    moving = [i for i, x in enumerate(primals) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]

    def of_moving(state: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        operands = list(primals)
        for i, derivatives in zip(moving, state, strict=True):
            operands[i] = derivatives[0]
        return function(*operands)

    def derived(before: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def derivative(state: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
            rates = [[*each[1:], jnp.zeros_like(each[0])] for each in state]
            return tuple(jax.jvp(before, (state,), (rates,))[1])

        return derivative

    state = [
        [primals[i], *(c * math.factorial(k) for k, c in enumerate(series[i], 1))] for i in moving
    ]
    results = of_moving(state)
    terms: list[list[Any]] = [[] for _ in results]
    order = len(series[0])
    for k in range(1, order + 1):
        of_moving = derived(of_moving)
        for own, result, found in zip(terms, results, of_moving(state), strict=True):
            is_smooth = jnp.issubdtype(result.dtype, jnp.inexact)
            own.append(found / math.factorial(k) if is_smooth else jnp.zeros_like(result))
    return results, terms
