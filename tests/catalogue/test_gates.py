"""Gated units and the squared ReLU: against the formulas in float64, in every form."""

from __future__ import annotations

import math
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
SHAPES = [(3, 5), (2, 3, 64), (17, 1000), (7,), (0, 4), (3, 0)]

_erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(x / 2))


def _tanh_form(x: Any) -> Any:
    return np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)


# Activations and their derivatives.
ACTIVATIONS: dict[str, Any] = {
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    "gelu": (
        lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(2))),
        lambda x: 0.5 * (1 + _erf(x / np.sqrt(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    ),
    "gelu_tanh": (
        lambda x: x * _sigmoid(_tanh_form(x)),
        lambda x: (
            _sigmoid(_tanh_form(x))
            * (1 + x * _sigmoid(-_tanh_form(x)) * np.sqrt(8 / np.pi) * (1 + 3 * 0.044715 * x * x))
        ),
    ),
    "gelu_sigmoid": (
        lambda x: x * _sigmoid(1.702 * x),
        lambda x: _sigmoid(1.702 * x) * (1 + 1.702 * x * _sigmoid(-1.702 * x)),
    ),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"limit": 0.75},
    {"linear_offset": 1.0},
    {"limit": 1.5, "linear_offset": -0.25},
]


def numbers(rng: np.random.Generator, shape: Any, dtype: str) -> Any:
    return rng.normal(size=shape).astype(numpy_dtype(dtype))


def reference(
    gate: Any,
    up: Any,
    biases: Any,
    weight: Any,
    g: Any,
    activation: str,
    limit: float = math.inf,
    linear_offset: float = 0.0,
) -> Any:
    """Returns y and the gradients of gate, up and weight, in float64."""
    gate, up, g = (np.asarray(a, np.float64) for a in (gate, up, g))
    gate, up = gate + np.asarray(biases[0], float), up + np.asarray(biases[1], float)
    weight = np.asarray(weight, np.float64)[..., None]
    inside = gate <= limit, np.abs(up) <= limit
    value, slope = ACTIVATIONS[activation]
    a = value(np.minimum(gate, limit))
    b = np.clip(up, -limit, limit) + linear_offset
    da = inside[0] * slope(np.minimum(gate, limit)) * b * weight * g
    return a * b * weight, da, inside[1] * a * weight * g, (a * b * g).sum(-1)


def near(found: Any, expected: Any, dtype: str, terms: int = 1) -> None:
    """Compares within a few units of the largest number, or of 1 for sums of terms near 1."""
    unit = EPSILON[dtype] + 8 * EPSILON["float64" if dtype == "float64" else "float32"]
    size = np.max(np.abs(expected), initial=1e-3 if terms == 1 else 1.0)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=0, atol=unit * size * (1 + terms**0.5)
    )


@each
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_apart(own: Any, activation: str, dtype: str, options: Any, shape: Any, rng: Any) -> None:
    gate, up, g = (numbers(rng, shape, dtype) for _ in range(3))
    weight, bias = numbers(rng, shape[:-1], dtype), numbers(rng, shape[-1], dtype)

    def run(gate: Any, up: Any, weight: Any, bias: Any) -> Any:
        return own.ops.glu(gate, up, bias, activation=activation, weight=weight, **options)

    operands = [gate, up, weight, bias]
    y, *gradients = own.vjp(run, operands, g)
    for found, operand in zip((y, *gradients), (gate, *operands), strict=True):
        assert (found.dtype, found.shape) == (operand.dtype, operand.shape)
    expected = reference(gate, up, (bias, 0.0), weight, g, activation, **options)
    dbias = expected[1].sum(tuple(range(gate.ndim - 1)))
    rows = int(np.prod(shape[:-1]))
    for found, right, terms in zip(
        (y, *gradients), (*expected, dbias), (1, 1, 1, shape[-1], rows), strict=True
    ):
        near(found, right, dtype, terms)


@each
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("wide_bias", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_is_apart(
    own: Any, interleaved: bool, wide_bias: bool, dtype: str, rng: Any
) -> None:
    """Packed and separate arrays have the same bits, in values and gradients."""
    d = 33
    packed, g = numbers(rng, (4, 3, 2 * d), dtype), numbers(rng, (4, 3, d), dtype)
    halves = (
        (np.s_[..., ::2], np.s_[..., 1::2]) if interleaved else (np.s_[..., :d], np.s_[..., d:])
    )
    bias = numbers(rng, 2 * d if wide_bias else d, dtype)
    weight = numbers(rng, (4, 3, 1), "float32")
    y, dpacked, dbias, dweight = own.vjp(
        lambda x, b, w: own.ops.swiglu(x, bias=b, weight=w, interleaved=interleaved),
        [packed, bias, weight],
        g.astype(np.float32),
    )
    first, second = (np.ascontiguousarray(packed[half]) for half in halves)
    ours = bias[halves[0]] if wide_bias else bias
    others = bias[halves[1]] if wide_bias else np.zeros(d, bias.dtype)
    expected = reference(first, second, (ours, others), weight[..., 0], g, "silu")
    near(y, expected[0], "float32")
    near(dweight[..., 0], expected[3], "float32", d)
    for half, right in zip(halves, expected[1:3], strict=True):
        near(dpacked[half], right, dtype)
        if wide_bias:
            near(dbias[half], right.sum((0, 1)), dtype, 12)
    if not wide_bias:
        again = own.vjp(
            lambda a, b, c, w: own.ops.swiglu(a, b, c, weight=w),
            [first, second, bias, weight],
            g.astype(np.float32),
        )
        for found, right in zip(
            (y, dpacked[halves[0]], dpacked[halves[1]], dbias, dweight), again, strict=True
        ):
            np.testing.assert_array_equal(bits(found), bits(right))


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu", "squared_relu"])
def test_same_bits_and_the_named_activation(name: str, rng: Any) -> None:
    x, up = (numbers(rng, (5, 77), "bfloat16") for _ in range(2))
    operands = (x,) if name == "squared_relu" else (x, up)
    t, j = (own.call(getattr(own.ops, name), *operands) for own in FRAMEWORKS)
    np.testing.assert_array_equal(bits(t), bits(j))
    if name != "squared_relu":
        activation = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}[name]
        again = FRAMEWORKS[0].call(partial(bridge.torch.glu, activation=activation), x, up)
        np.testing.assert_array_equal(bits(t), bits(again))


def test_biases_of_both_lengths_one_after_another() -> None:
    """Biases of both lengths work in turn, also when autograd records the calls."""
    x = torch.randn(3, 8, requires_grad=True)
    biases = torch.randn(4), torch.randn(8), torch.randn(4), torch.randn(8)
    for interleaved in (False, True):
        for bias in biases:
            y = bridge.torch.swiglu(x, None, bias, interleaved=interleaved)
            with torch.no_grad():
                same = bridge.torch.swiglu(x, None, bias, interleaved=interleaved)
            assert torch.equal(y, same)


@each
def test_squared_relu(own: Any, rng: Any) -> None:
    x, g = (numbers(rng, (6, 40), "float32") for _ in range(2))
    weight = numbers(rng, (6, 1), "bfloat16")
    y, dx, dweight = own.vjp(own.ops.squared_relu, [x, weight], g)
    wide, w = np.maximum(x, 0).astype(float), weight.astype(float)
    near(y, wide**2 * w, "float32")
    near(dx, 2 * wide * w * g, "float32")
    near(dweight, (wide**2 * g).sum(-1, keepdims=True), "bfloat16")


@each
def test_special_numbers(own: Any) -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0])[:, None]
    one = np.ones_like(x)
    found = own.call(partial(own.ops.glu, activation="relu", limit=2.0), x, one)[:, 0]
    np.testing.assert_array_equal(found, [np.nan, 2, 0, 0, 0])
    found = own.call(partial(own.ops.glu, activation="sigmoid", limit=2.0), one * 0, x)[:, 0]
    np.testing.assert_array_equal(found, [np.nan, 1, -1, 0, 0])
    np.testing.assert_array_equal(own.call(own.ops.squared_relu, x)[:3, 0], [np.nan, np.inf, 0])
    gradient = own.vjp(partial(own.ops.reglu), [x[3:], one[3:]], one[3:])[1]
    np.testing.assert_array_equal(gradient, np.zeros((2, 1)))


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_at_infinity_are_limits(own: Any, dtype: str) -> None:
    ends = [np.inf, -np.inf], [1.0, 1.0]
    x, one = (np.array(values).astype(numpy_dtype(dtype)) for values in ends)
    for op in (own.ops.swiglu, own.ops.geglu):
        np.testing.assert_array_equal(own.vjp(op, [x, one], one)[1].astype(float), [1, 0])


def test_derivatives_of_second_order_and_forward_mode() -> None:
    torch.manual_seed(0)
    packed = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for activation in ("silu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid"):

        def f(x: Any, w: Any, activation: str = activation) -> Any:
            return bridge.torch.glu(x, activation=activation, weight=w, limit=9.0)

        assert torch.autograd.gradcheck(f, (packed, weight), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, (packed, weight))


def test_transforms(rng: Any) -> None:
    x, weight = numbers(rng, (4, 3, 8), "float32"), numbers(rng, (4, 3), "float32")

    def in_torch(x: Any, w: Any) -> Any:
        return bridge.torch.swiglu(x, weight=w, limit=1.0)

    def in_jax(x: Any, w: Any) -> Any:
        return bridge.jax.swiglu(x, weight=w, limit=1.0)

    tensors = [torch.tensor(a) for a in (x, weight)]
    expected = in_torch(*tensors).numpy()
    for found in (
        torch.compile(in_torch, fullgraph=True, backend="aot_eager")(*tensors),
        torch.func.vmap(in_torch)(*tensors),
        jax.jit(in_jax)(x, weight),
        jax.vmap(in_jax)(jnp.asarray(x), jnp.asarray(weight)),
    ):
        np.testing.assert_array_equal(np.asarray(found), expected)


REFUSED: dict[str, Refusal] = {
    "activation": (
        lambda n, a: n(a(3, 8), activation="tanh"),
        ValueError,
        "activation is 'tanh', expected one of 'silu'",
    ),
    "limit": (lambda n, a: n(a(3, 8), limit=0), ValueError, "limit is 0.0, expected a positive"),
    "limit of text": (lambda n, a: n(a(3, 8), limit="1"), TypeError, "limit has type str"),
    "offset": (
        lambda n, a: n(a(3, 8), linear_offset=float("nan")),
        ValueError,
        "linear_offset is nan, expected a finite number",
    ),
    "odd": (lambda n, a: n(a(3, 7)), ValueError, r"gate has shape \[3, 7\], expected two halves"),
    "odd pairs": (
        lambda n, a: n(a(3, 7), interleaved=True),
        ValueError,
        r"gate has shape \[3, 7\], expected pairs in the last dimension",
    ),
    "up": (
        lambda n, a: n(a(3, 8), a(3, 4)),
        ValueError,
        r"up has shape \[3, 4\], expected \[3, 8\]",
    ),
    "both": (
        lambda n, a: n(a(3, 8), a(3, 8), interleaved=True),
        ValueError,
        "interleaved is True and up is given",
    ),
    "bias": (
        lambda n, a: n(a(3, 8), bias=a(5)),
        ValueError,
        r"bias has shape \[5\], expected \[4\]",
    ),
    "weight": (
        lambda n, a: n(a(3, 8), weight=a(4)),
        ValueError,
        r"weight has shape \[4\], expected \[3\]",
    ),
    "integers": (lambda n, a: n(a(3, 8, dtype="int32")), TypeError, "gate has dtype int32"),
    "no dimension": (lambda n, a: n(a()), ValueError, "gate is 0-dimensional"),
}


@pytest.mark.parametrize("name", ["glu", "swiglu", "geglu", "reglu"])
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str, name: str) -> None:
    run, kind, words = REFUSED[case]
    if case == "activation" and name != "glu":
        pytest.skip("has its own")
    refusal = (lambda module, make: run(getattr(module, name), make), kind, words)
    assert_refused(refusal, f"{name}: ")


def test_traced_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="swiglu: limit is traced"):
        jax.jit(lambda x, c: bridge.jax.swiglu(x, limit=c))(jnp.ones((2, 4)), 1.0)
