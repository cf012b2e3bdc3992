"""Custom VJPs: reverse rules stated in declarations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
import bridge.jax
import bridge.torch
from bridge import lang as bl


def softmax_vjp(x: Any, y: Any, g: Any) -> Any:
    product = bl.where(y == 0.0, 0.0, y * g)
    return bl.where(y == 0.0, 0.0, y * (g - bl.sum(product)))


def softmax(x: bridge.Full) -> Any:
    y = bl.exp(x - bl.logsumexp(x))
    return y


def scaled(
    x: bridge.Full, w: bridge.Row, s: bridge.PerRow | None = None, *, by: float = 2.0
) -> Any:
    y = x * w if s is None else x * w * s
    return by * y


def scaled_vjp(x: Any, w: Any, s: Any, y: Any, g: Any, *, by: float) -> Any:
    rest = [by * g * x * w] if s is not None else []
    return [by * g * w * (1.0 if s is None else s), by * g * x * (1.0 if s is None else s), *rest]


def double(x: np.ndarray) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("keep", [(), ("y",)])
def test_the_rule_is_what_runs(keep: Any, rng: np.random.Generator) -> None:
    op = bridge.op(keep=keep, vjp=softmax_vjp)(softmax)
    x, g = rng.normal(size=(3, 40)).astype(np.float32) * 60, rng.normal(size=(3, 40))
    tensor, cotangent = torch.tensor(x, requires_grad=True), torch.tensor(g, dtype=torch.float32)
    y = op(tensor)
    assert (y == 0).any()
    cotangent[y == 0] = torch.inf  # the derived rule would return NaN
    (found,) = torch.autograd.grad(y, tensor, cotangent)
    assert found.isfinite().all()
    assert (found[y == 0] == 0).all()
    _, pull = jax.vjp(op, jnp.asarray(x))
    np.testing.assert_array_equal(pull(jnp.asarray(cotangent.numpy()))[0], found)


@pytest.mark.parametrize("keep", [(), ("y",)])
def test_further_derivatives_are_those_of_the_rule(keep: Any, rng: np.random.Generator) -> None:
    op = bridge.op(keep=keep, vjp=softmax_vjp)(softmax)
    x = double(rng.normal(size=(2, 5)))
    assert torch.autograd.gradcheck(op, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, x)


@pytest.mark.long
def test_sums_and_operands_that_are_left_out(rng: np.random.Generator) -> None:
    op = bridge.op(vjp=scaled_vjp)(scaled)
    x, w, s = (double(rng.normal(size=shape)) for shape in ((2, 3), (3,), (2,)))
    assert torch.autograd.gradcheck(op, (x, w, s))
    assert torch.autograd.gradcheck(op, (x, w))
    assert torch.autograd.gradgradcheck(op, (x, w, s))
    loss = op(x, w.detach(), s).sum()
    assert torch.autograd.grad(loss, x)[0].shape == x.shape  # one cotangent of three


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda x, y, g: 2.0 * y * g, "differs from the derived one"),
        (lambda x, y, g: (y, g), "2 values, expected 1"),
        (lambda x, y, g: "no value", "is str, expected a value"),
        (lambda x, y, g: bl.halves(y, g), "expected a value"),
    ],
)
def test_a_wrong_rule_is_refused(rule: Any, words: str) -> None:
    with pytest.raises(bl.DeclarationError, match=words):
        bridge.op(vjp=rule)(softmax)


def test_rules_of_functions_with_a_domain() -> None:
    def logarithm(x: bridge.Full, w: bridge.Row):
        return bl.log(x) * w

    def rule(x: Any, w: Any, y: Any, g: Any) -> Any:
        return g * w / x, g * bl.log(x)

    bridge.op(vjp=rule)(logarithm)
    with pytest.raises(bl.DeclarationError, match="cotangent of w differs from the derived one"):
        bridge.op(vjp=lambda x, w, y, g: (g * w / x, g * bl.log(2.0 * x)))(logarithm)


def _log(x: bridge.Full):
    return bl.log(x)


def _log_of_log(x: bridge.Full):
    return bl.log(bl.log(x))


def _logs(x: bridge.Full, w: bridge.Row):
    return bl.log(x) + bl.log(-w)


def _cosine(x: bridge.Full):
    return bl.sqrt(1.0 - x * x)


def _log_from_ten(x: bridge.Full):
    return bl.log(x - 10.0)


def _root_from_fifty(x: bridge.Full):
    return bl.sqrt(x - 50.0)


IN_A_DOMAIN: dict[str, tuple[Any, Any, Any]] = {
    "log": (_log, lambda x, y, g: g * bl.exp(-y), lambda x, y, g: g * bl.exp(y)),
    "log of log": (
        _log_of_log,
        lambda x, y, g: g * bl.exp(-y) / x,
        lambda x, y, g: g * bl.exp(-y) * x,
    ),
    "logs": (
        _logs,
        lambda x, w, y, g: (g / x, g * bl.exp(bl.log(x) - y) * (-1.0)),
        lambda x, w, y, g: (g / x, g * bl.exp(bl.log(x) - y)),
    ),
    "root": (_cosine, lambda x, y, g: -g * x / y, lambda x, y, g: g * x / y),
    "log from 10": (
        _log_from_ten,
        lambda x, y, g: g * bl.exp(-y),
        lambda x, y, g: g * bl.exp(-y) * 1.1,
    ),
    "root from 50": (_root_from_fifty, lambda x, y, g: 0.5 * g / y, lambda x, y, g: 100.0 * g),
}


@pytest.mark.parametrize("name", IN_A_DOMAIN)
def test_rules_that_read_a_result_are_checked_inside_of_its_domain(name: str) -> None:
    """Outside the domain the result is NaN, but the derived rule may return a number."""
    function, rule, wrong = IN_A_DOMAIN[name]
    bridge.op(vjp=rule)(function)
    with pytest.raises(bl.DeclarationError, match="differs from the derived one"):
        bridge.op(vjp=wrong)(function)


def test_a_rule_that_no_random_operands_reach_gives_a_warning() -> None:
    def root(x: bridge.Full):
        return bl.sqrt(x - 1e6)

    with pytest.warns(UserWarning, match="cotangent of x was not compared with the derived one"):
        bridge.op(vjp=lambda x, y, g: 0.5 * g / y)(root)


def test_rules_that_cannot_be_called() -> None:
    def logarithm(x: bridge.Full):
        return bl.log(x)

    with pytest.raises(bl.DeclarationError, match="vjp is 3, expected a function"):
        bridge.op(vjp=3)(logarithm)  # type: ignore[call-overload]
    with pytest.raises(bl.DeclarationError, match="it is called with 3 values"):
        bridge.op(vjp=lambda x, y: y)(logarithm)
    bridge.op(vjp=functools.partial(lambda k, x, y, g: g / x, 0))(logarithm)
