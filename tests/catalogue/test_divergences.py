"""entropy, kl_div, js_div and tv_distance: against float64, on special rows, in both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
SHAPES = [(3, 5), (2, 3, 64), (17, 1000), (7,), (2, 5000), (0, 4)]
INF = float("inf")


@dataclass(frozen=True)
class Op:
    """An op, with its value and the gradients of its logits in float64 NumPy."""

    name: str
    options: dict[str, float]
    value: Callable[..., Any]
    gradients: Callable[..., tuple[Any, ...]]
    operands: int = 2

    def run(self, ops: Any, *logits: Any) -> Any:
        return getattr(ops, self.name)(*logits, **self.options)

    @property
    def factor(self) -> float:
        return self.options.get("scale", 1 / self.options.get("temperature", 1.0))


def total(x: Any) -> Any:
    return x.sum(-1, keepdims=True)


def _mixed(p: Any, q: Any) -> Any:
    return np.log(0.3 * np.exp(p) + 0.7 * np.exp(q))


def _kl(p: Any, q: Any) -> Any:
    return total(np.exp(p) * (p - q))


def _towards(p: Any, of: Any) -> Any:
    return np.exp(p) * (of - total(np.exp(p) * of))


# The functions take logarithms of probabilities; gradients are towards logits with a factor of 1.
OPS = [
    Op("entropy", {"scale": 0.7}, lambda p: -total(np.exp(p) * p), lambda p: (_towards(p, -p),), 1),
    Op(
        "entropy", {"scale": -1.3}, lambda p: -total(np.exp(p) * p), lambda p: (_towards(p, -p),), 1
    ),
    Op(
        "kl_div",
        {"temperature": 1.7},
        _kl,
        lambda p, q: (_towards(p, p - q), np.exp(q) - np.exp(p)),
    ),
    Op(
        "js_div",
        {"beta": 0.3, "temperature": 0.8},
        lambda p, q: 0.3 * _kl(p, _mixed(p, q)) + 0.7 * _kl(q, _mixed(p, q)),
        lambda p, q: (
            0.3 * _towards(p, p - _mixed(p, q)),
            0.7 * _towards(q, q - _mixed(p, q)),
        ),
    ),
    Op(
        "tv_distance",
        {"temperature": 2.0},
        lambda p, q: 0.5 * total(abs(np.exp(p) - np.exp(q))),
        lambda p, q: (
            0.5 * _towards(p, np.sign(np.exp(p) - np.exp(q))),
            -0.5 * _towards(q, np.sign(np.exp(p) - np.exp(q))),
        ),
    ),
]
every = pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.name}{[*op.options.values()]}")


def wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def logits(rng: np.random.Generator, shape: Any, dtype: str) -> Any:
    return (rng.normal(size=shape) * 4).astype(numpy_dtype(dtype))


def log_probs(x: Any, factor: float) -> Any:
    s = np.asarray(x, np.float64) * factor
    s = s - s.max(-1, keepdims=True, initial=-INF)
    return s - np.log(total(np.exp(s)))


@each
@every
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(own: Any, op: Op, shape: Any, dtype: str, rng: Any) -> None:
    given = [logits(rng, shape, dtype) for _ in range(op.operands)]
    g = logits(rng, shape[:-1], wide(dtype))
    log_p = [log_probs(x, op.factor) for x in given]
    value, *found = own.vjp(partial(op.run, own.ops), given, g)
    assert value.dtype == wide(dtype)
    size = max([np.max(np.abs(x), initial=1.0) for x in log_p])
    unit = 16 * EPSILON[wide(dtype)] * size
    np.testing.assert_allclose(value, op.value(*log_p)[..., 0], rtol=0, atol=unit)
    for x, expected, dx in zip(given, op.gradients(*log_p), found, strict=True):
        assert dx.dtype == x.dtype
        expected = expected * op.factor * g[..., None].astype(float)
        near = (unit * size + EPSILON[dtype]) * np.max(np.abs(g), initial=1.0)
        np.testing.assert_allclose(np.asarray(dx, float), expected, rtol=0, atol=near)


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_frameworks_and_rows_alone_have_the_same_bits(op: Op, dtype: str, rng: Any) -> None:
    given = [logits(rng, (33, 301), dtype) for _ in range(op.operands)]
    g = logits(rng, (33,), wide(dtype))
    found = [own.vjp(partial(op.run, own.ops), given, g) for own in FRAMEWORKS]
    for in_torch, in_jax in zip(*found, strict=True):
        np.testing.assert_array_equal(bits(in_torch), bits(in_jax))
    for row in (0, 7, 32):
        alone = FRAMEWORKS[0].vjp(partial(op.run, bridge.torch), [x[row] for x in given], g[row])
        for one, whole in zip(alone, found[0], strict=True):
            np.testing.assert_array_equal(bits(one), bits(whole[row]))


@every
def test_derivatives_of_second_order_and_forward_mode(op: Op) -> None:
    torch.manual_seed(0)
    given = [torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(op.operands)]
    assert torch.autograd.gradcheck(partial(op.run, bridge.torch), given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(partial(op.run, bridge.torch), given)


@every
def test_transforms_and_compilers(op: Op, rng: Any) -> None:
    given = [logits(rng, (2, 3, 65), "float32") for _ in range(op.operands)]
    tensors, arrays = [torch.tensor(x) for x in given], [jnp.asarray(x) for x in given]
    run = partial(op.run, bridge.torch)
    expected = run(*tensors).numpy()
    compiled = torch.compile(
        lambda *x: op.run(bridge.torch, *x), fullgraph=True, backend="aot_eager"
    )
    for found in (
        compiled(*tensors).numpy(),
        torch.func.vmap(torch.func.vmap(run))(*tensors).numpy(),
        torch.func.vmap(run, in_dims=1, out_dims=1)(*tensors).numpy(),
        np.asarray(jax.jit(partial(op.run, bridge.jax))(*arrays)),
        np.asarray(jax.vmap(partial(op.run, bridge.jax), 1, 1)(*arrays)),
    ):
        np.testing.assert_array_equal(bits(found), bits(expected))


# Rows of p and of q, and the value of each op.
SPECIAL = {
    "all -inf": ([-INF] * 3, [0.0, 1.0, 2.0], {"entropy": np.nan}),
    "q all -inf": ([0.0, 1.0, 2.0], [-INF] * 3, {"kl_div": np.nan}),
    "inf": ([0.0, INF, 1.0], [0.0, 1.0, 2.0], {"entropy": np.nan}),
    "NaN": ([0.0, np.nan, 1.0], [0.0, 1.0, 2.0], {"entropy": np.nan}),
    "q NaN": ([0.0, 1.0, 2.0], [0.0, np.nan, 1.0], {"kl_div": np.nan}),
    "-inf in both": (
        [0.0, -INF, 0.0],
        [0.0, -INF, 0.0],
        {"entropy": np.log(2), "kl_div": 0.0, "js_div": 0.0, "tv_distance": 0.0},
    ),
    "q has none": (
        [0.0, 0.0, -INF],
        [0.0, -INF, -INF],
        {
            "kl_div": INF,
            "js_div": 0.75 * np.log(4 / 3),
            "tv_distance": 0.5,
        },
    ),
    "apart": (
        [0.0, -INF],
        [-INF, 0.0],
        {"entropy": 0.0, "kl_div": INF, "js_div": np.log(2), "tv_distance": 1.0},
    ),
    "p has none": ([-INF, 0.0], [0.0, 0.0], {"kl_div": np.log(2), "tv_distance": 0.5}),
    "huge": ([3e38, -3e38], [-3e38, 3e38], {"entropy": 0.0, "js_div": np.log(2)}),
    "far": ([0.0, -103.0], [-103.0, 0.0], {"kl_div": 103.0, "js_div": np.log(2)}),
}


@each
@pytest.mark.parametrize("case", SPECIAL)
def test_special_rows(own: Any, case: str) -> None:
    p, q, values = SPECIAL[case]
    p, q = np.float32([p]), np.float32([q])
    if np.isnan([*values.values()]).any():
        values = dict.fromkeys(("entropy", "kl_div", "js_div", "tv_distance"), np.nan)
        if case.startswith("q"):
            del values["entropy"]
    for name, expected in values.items():
        operands = [p] if name == "entropy" else [p, q]
        value, *gradients = own.vjp(getattr(own.ops, name), operands, np.ones(1, np.float32))
        np.testing.assert_allclose(value, [expected], rtol=1e-6, atol=1e-7, err_msg=name)
        for dx in gradients if name != "kl_div" else gradients[1:]:
            assert np.isnan(dx).any() == np.isnan(expected), (name, dx)
        if np.isinf(expected):
            assert np.isnan(gradients[0]).any()


@each
@every
def test_rows_without_columns_have_zero(own: Any, op: Op) -> None:
    nothing = [np.zeros((2, 0), np.float32)] * op.operands
    value, *gradients = own.vjp(lambda *x: op.run(own.ops, *x), nothing, np.ones(2, np.float32))
    np.testing.assert_array_equal(bits(value), bits(np.zeros(2, np.float32)))
    assert [dx.shape for dx in gradients] == [(2, 0)] * op.operands


@each
def test_nearly_equal_rows_keep_the_digits_of_their_divergence(own: Any, rng: Any) -> None:
    p = rng.normal(size=(4, 100)).astype(np.float32)
    q = p + np.float32(1e-4) * rng.normal(size=(4, 100)).astype(np.float32)
    log_p, log_q = (log_probs(x, 1.0) for x in (p, q))
    mixture = np.log(0.5 * (np.exp(log_p) + np.exp(log_q)))
    expected = 0.5 * (_kl(log_p, mixture) + _kl(log_q, mixture))[:, 0]
    found = own.call(own.ops.js_div, p, q)
    # Terms are as large as the square root of their sum.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * 4e-7)
    found = own.call(own.ops.kl_div, p, q)
    np.testing.assert_allclose(found, _kl(log_p, log_q)[:, 0], rtol=0, atol=1e-4 * 4e-7)
    assert np.all(found > 0)
    for name in ("kl_div", "js_div", "tv_distance"):
        np.testing.assert_array_equal(own.call(getattr(own.ops, name), p, p), np.zeros(4))


@pytest.mark.parametrize("shape", [(64, 129), (16, 4100), (64, 7)], ids=str)
def test_roundings_of_the_logarithms_cancel(shape: Any, rng: Any) -> None:
    """Plain sums have twice the error and more: the error of a logsumexp is in every term."""
    p, q = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    expected = _kl(log_probs(p, 1.0), log_probs(q, 1.0))[:, 0]
    found = FRAMEWORKS[0].call(bridge.torch.kl_div, p, q)
    error = np.abs(found - expected) / np.spacing(expected.astype(np.float32))
    assert np.max(error) <= 7, error
    found = FRAMEWORKS[0].call(bridge.torch.entropy, p)
    log_p = log_probs(p, 1.0)
    expected = -np.sum(np.exp(log_p) * log_p, -1)
    error = np.abs(found - expected) / np.spacing(expected.astype(np.float32))
    assert np.max(error) <= 2.5, error


@each
def test_small_weights_tend_to_the_divergence(own: Any, rng: Any) -> None:
    p, q = (rng.normal(size=(4, 50)) for _ in range(2))
    for beta, expected in ((1e-6, own.call(own.ops.kl_div, p, q)),):
        found = own.call(partial(own.ops.js_div, beta=beta), p, q) / beta
        np.testing.assert_allclose(found, expected, rtol=1e-4)


REFUSED: dict[str, Refusal] = {
    "scale": (
        lambda m, a: m.entropy(a(2, 3), scale=float("nan")),
        ValueError,
        "entropy: scale is nan, expected a finite number",
    ),
    "temperature": (
        lambda m, a: m.kl_div(a(2, 3), a(2, 3), temperature=0),
        ValueError,
        "kl_div: temperature is 0.0, expected a number from 1.2e-38 to 3.4e",
    ),
    "text": (
        lambda m, a: m.tv_distance(a(2, 3), a(2, 3), temperature="1"),
        TypeError,
        "tv_distance: temperature has type str",
    ),
    "beta": (
        lambda m, a: m.js_div(a(2, 3), a(2, 3), beta=1),
        ValueError,
        "js_div: beta is 1.0, expected a number above 0 and below 1",
    ),
    "shape": (
        lambda m, a: m.js_div(a(2, 3), a(2, 4)),
        ValueError,
        r"js_div: q_logits has shape \[2, 4\], expected \[2, 3\]",
    ),
    "integers": (
        lambda m, a: m.kl_div(a(2, 3), a(2, 3, dtype="int32")),
        TypeError,
        "kl_div: q_logits has dtype int32, expected",
    ),
    "no dimension": (lambda m, a: m.entropy(a()), ValueError, "logits is 0-dimensional"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case])
