"""Every op can be differentiated to any order in both frameworks, as the README says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bridge.lang.gelu_reference import gelu_derivative
from bridge.lang.philox import threshold_of, words
from tests.frameworks import FORMS

P, SEED = 0.3, 5


def derivatives(framework: Any, function: Callable[..., Any], x: Any, count: int) -> list[Any]:
    """Returns derivatives of order 1 to `count` of an elementwise function, or along a line."""
    if framework.name == "torch":
        import torch

        at = torch.tensor(x, requires_grad=True)
        found, y = [], function(at)
        for _ in range(count):
            (y,) = torch.autograd.grad(y.sum(), at, create_graph=True)
            found.append(y.detach().numpy())
        return found
    import jax

    with jax.enable_x64(True):
        found, at = [], jax.numpy.asarray(x)
        for _ in range(count):
            function = jax.grad(lambda x, below=function: below(x).sum())
            found.append(np.asarray(jax.jit(function)(at)))
        return found


@pytest.mark.parametrize("form", FORMS)
def test_bias_gelu_has_no_last_one(framework: Any, form: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(5)

    def gelu(x: Any) -> Any:
        return framework.ops.bias_gelu(x, approximate=form)

    for order, found in enumerate(derivatives(framework, gelu, x, 7), start=1):
        np.testing.assert_allclose(found, gelu_derivative(x, form, order), rtol=1e-8, atol=1e-8)


def test_softmax_has_no_last_one(framework: Any, rng: np.random.Generator) -> None:
    """Derivatives along a line equal the closed form, from Taylor coefficients of power sums."""
    x, t, weights = rng.standard_normal((3, 4))

    def line(s: Any) -> Any:
        y = framework.ops.scaled_softmax(framework.array(x) + s * framework.array(t), 0.7)
        return (framework.array(weights) * y).sum()

    count = 8
    # y = e/Σe, e = exp(z + s·v): coefficients of e, then of the quotient, weighted.
    z, v = 0.7 * (x + 0.1 * t), 0.7 * t
    powers = np.cumprod([np.exp(z), *(v / k for k in range(1, count + 1))], axis=0)
    total = powers.sum(-1)
    quotient: list[Any] = []
    for k in range(count + 1):
        quotient.append((powers[k] - sum(quotient[j] * total[k - j] for j in range(k))) / total[0])
    for order, found in enumerate(derivatives(framework, line, np.asarray(0.1), count), start=1):
        expected = np.prod(np.arange(1.0, order + 1)) * weights @ quotient[order]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_dropout_has_no_last_one(framework: Any, rng: np.random.Generator) -> None:
    x = rng.uniform(0.5, 1.5, 8)
    keep = words(SEED, 0, np.arange(8, dtype=np.uint64)) >= threshold_of(P)
    assert 0 < keep.sum() < 8

    def power(x: Any) -> Any:
        return framework.ops.bias_dropout_add(x, p=P, seed=SEED) ** 9

    for order, found in enumerate(derivatives(framework, power, x, 8), start=1):
        factor = np.prod(np.arange(9.0, 9.0 - order, -1.0))
        expected = np.where(keep, factor * x ** (9 - order) / (1.0 - P) ** 9, 0.0)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
