"""log_softmax, logsumexp and token_log_probs: against float64, on every label."""

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
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, Torch, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
SHAPES = [(3, 5), (2, 3, 64), (17, 1000), (7,), (2, 5000), (0, 4)]
LABELS = ("int64", "int32", "int16", "uint8", "uint32", "uint64")


def logits(rng: np.random.Generator, shape: Any, dtype: str) -> Any:
    return (rng.normal(size=shape) * 4).astype(numpy_dtype(dtype))


def wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def reference(x: Any, scale: float) -> Any:
    """Returns lse and softmax of scale·x in float64."""
    s = np.asarray(x, np.float64) * scale
    largest = s.max(-1, keepdims=True)
    lse = np.log(np.exp(s - largest).sum(-1, keepdims=True)) + largest
    return s, lse, np.exp(s - lse)


def near(
    found: Any, expected: Any, dtype: str, largest: float = 1.0, of_powers: float = 0.0
) -> None:
    """Compares within a few units of the largest number, or of the largest intermediate number.

    The error of a power has as many more units as its exponent, a rounded difference, is large.
    """
    unit = EPSILON[dtype] + (4 + of_powers) * EPSILON[wide(dtype)]
    size = np.max(np.abs(expected), initial=largest)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=unit * size)


@each
@pytest.mark.parametrize("scale", [1.0, 0.3, -2.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(own: Any, scale: float, shape: Any, dtype: str, rng: Any) -> None:
    x, g = logits(rng, shape, dtype), logits(rng, shape, dtype)
    gl = logits(rng, shape[:-1], wide(dtype))
    s, lse, y = reference(x, scale)
    wide_g, powers = g.astype(float), np.max(np.abs(s), initial=0.0)
    value, dx = own.vjp(lambda x: own.ops.log_softmax(x, scale), [x], g)
    assert (value.dtype, dx.dtype) == (x.dtype, x.dtype)
    near(value, s - lse, dtype)
    largest = abs(scale) * np.max(y * abs(wide_g).sum(-1, keepdims=True), initial=1.0)
    near(dx, scale * (wide_g - y * wide_g.sum(-1, keepdims=True)), dtype, largest, powers)
    value, dx = own.vjp(lambda x: own.ops.logsumexp(x, scale), [x], gl)
    assert value.dtype == wide(dtype)
    near(value, lse[..., 0], wide(dtype))
    near(dx, scale * y * gl[..., None], dtype, 1.0, powers)
    labels = rng.integers(0, shape[-1], shape[:-1])
    value, dx = own.vjp(
        lambda x: own.ops.token_log_probs(x, own.array(labels), scale=scale), [x], gl
    )
    assert value.dtype == wide(dtype)
    own_one = np.arange(shape[-1]) == labels[..., None]
    near(value, np.where(own_one, s - lse, 0).sum(-1), wide(dtype))
    near(dx, scale * (own_one - y) * gl[..., None], dtype, 1.0, powers)


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_integer_dtype_and_the_same_bits(kind: str, rng: Any) -> None:
    x, labels = logits(rng, (40, 100), "bfloat16"), rng.integers(0, 100, 40).astype(kind)
    expected = FRAMEWORKS[0].call(bridge.torch.token_log_probs, x, labels.astype("int64"))
    with jax.enable_x64(True):
        found = np.asarray(bridge.jax.token_log_probs(jnp.asarray(x), jnp.asarray(labels)))
    np.testing.assert_array_equal(bits(found), bits(expected))
    t = bridge.torch.token_log_probs(Torch().array(x), torch.tensor(labels))
    np.testing.assert_array_equal(bits(t.numpy()), bits(expected))
    for row in (0, 7, 39):  # alone
        alone = FRAMEWORKS[0].call(bridge.torch.token_log_probs, x[row], np.int64(labels[row]))
        np.testing.assert_array_equal(bits(alone), bits(expected[row]))


@each
def test_special_rows(own: Any) -> None:
    inf = np.inf
    x = np.float32([[-inf] * 3, [0, -inf, 1], [0, inf, 1], [0, np.nan, 1], [3e38, 3e38, -3e38]])
    np.testing.assert_allclose(
        own.call(own.ops.logsumexp, x), [-inf, np.log1p(np.e), inf, np.nan, 3e38], rtol=1e-6
    )
    found = own.call(own.ops.log_softmax, x)
    assert np.isnan(found[[0, 3]]).all()
    assert found[1, 1] == -inf
    labels = np.zeros(5, np.int32)
    found = own.call(own.ops.token_log_probs, x, labels)
    np.testing.assert_allclose(found[[1, 2, 4]], [-np.log1p(np.e), -inf, -np.log(2)], rtol=1e-6)


_F = torch.nn.functional
# Losses by bridge, and by torch.
LOSSES: dict[str, tuple[Any, Any]] = {
    "log_softmax": (lambda o, x, y: o.log_softmax(x), lambda x, y: _F.log_softmax(x, -1)),
    "token_log_probs": (
        lambda o, x, y: o.token_log_probs(x, y),
        lambda x, y: -_F.cross_entropy(x, y, reduction="none"),
    ),
    "cross_entropy": (
        lambda o, x, y: o.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
        lambda x, y: _F.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
    ),
}


@pytest.mark.parametrize(("spread", "shift"), [(1, 0), (10, 0), (100, 0), (1, 1000), (1, -1000)])
@pytest.mark.parametrize("name", LOSSES)
def test_errors_are_no_larger_than_torchs(name: str, spread: float, shift: float, rng: Any) -> None:
    """Float32 errors against float64 do not depend on the shift of a row.

    The sum of powers may be large, and its difference to the shift small.
    """
    x = (rng.normal(size=(256, 1000)) * spread + shift).astype(np.float32)
    labels = np.where(np.arange(256) % 2, rng.integers(0, 1000, 256), x.argmax(-1))
    own, y = FRAMEWORKS[0], torch.tensor(labels)
    ours, theirs = LOSSES[name]
    g = rng.normal(size=x.shape if name == "log_softmax" else (256,))
    errors = []
    exact = [v.astype(float) for v in own.vjp(lambda t: theirs(t, y), [x.astype(float)], g)]
    for function in (lambda t: ours(own.ops, t, y), lambda t: theirs(t, y)):
        found = own.vjp(function, [x], g.astype(np.float32))
        errors.append([np.max(np.abs(f - e)) for f, e in zip(found, exact, strict=True)])
    for ours_, theirs_ in zip(*errors, strict=True):
        assert ours_ <= 1.35 * theirs_


@each
def test_what_is_nearly_certain_keeps_its_digits(own: Any) -> None:
    """log(1/(1 + n e^-d)) is not 0 even if 1 + n e^-d rounds to 1."""
    d = np.linspace(10, 19, 64)[:, None]
    x = np.float32(500.5) - d.astype(np.float32) * (np.arange(33) > 0)
    x = x.astype(np.float32)
    expected = -np.log1p(np.exp(x[:, 1:].astype(float) - x[:, :1]).sum(-1))
    found = own.call(own.ops.token_log_probs, x, np.zeros(64, np.int32))
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    np.testing.assert_allclose(own.call(own.ops.log_softmax, x)[:, 0], expected, rtol=2e-4)


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0.0, 1e3, -1e5, 2.0**27])
def test_gradients_of_logsumexp_whatever_the_sum(
    own: Any, shift: float, dtype: str, rng: Any
) -> None:
    """The softmax does not lose digits when the sum does, beside a large number."""
    largest = 3e4 if dtype == "float16" else np.inf
    x = rng.normal(size=(16, 50)) * max(1, abs(shift) * 1e-3) + np.clip(shift, -largest, largest)
    x = x.clip(-2 * largest, 2 * largest).astype(numpy_dtype(dtype))
    x[0] = x[0, 0]
    g = rng.normal(size=16).astype(numpy_dtype(wide(dtype)))
    _, found = own.vjp(own.ops.logsumexp, [x], g)
    s, _, y = reference(x - x.astype(float).max(-1, keepdims=True), 1.0)
    expected = g.astype(float)[:, None] * y
    # A power has as many units of error as its exponent is large.
    unit = EPSILON[dtype] + (4 - s.clip(-200)) * EPSILON[wide(dtype)]
    least = np.finfo(np.float16).smallest_subnormal if dtype == "float16" else 1e-37
    assert np.all(np.abs(found.astype(float) - expected) <= unit * np.abs(expected) + least)


ROWS: dict[str, Any] = {
    "normal": lambda rng, n: rng.normal(size=n) * 3,
    "wide": lambda rng, n: rng.normal(size=n) * 50,
    "shifted": lambda rng, n: rng.normal(size=n) * 3 + 300,
    "beyond all others": lambda rng, n: np.where(np.arange(n) == 0, 18.0, rng.normal(size=n)),
    "beyond none": lambda rng, n: np.where(np.arange(n) == 0, 11.0, rng.normal(size=n) / 100),
    "far below": lambda rng, n: np.where(np.arange(n) == 0, 3.0, 3 - rng.uniform(0, 83, n)),
    "few numbers": lambda rng, n: rng.integers(0, 3, n) * 1.0,
    "one number": lambda rng, n: np.full(n, -np.log(n)),
    "around 2^9": lambda rng, n: rng.choice([511, 511.5, 512, 512.5, 513, 507], n),
    "around -2^9": lambda rng, n: -rng.choice([511, 511.5, 512, 512.5, 513, 640], n),
    "around 2^16": lambda rng, n: rng.choice([65280, 65504, 65536, 66048, 65534.0], n),
    "around 2^21": lambda rng, n: rng.choice([2080768, 2088960, 2097152, 2113536.0], n),
    "huge": lambda rng, n: rng.uniform(-3e38, 3e38, n),
}


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ROWS)
def test_errors_in_units(own: Any, kind: str, dtype: str, rng: Any) -> None:
    """Checks errors in units.

    The units are: for log Σ e^x, of itself, or of 1; for log Σ e^(x − max), of itself, however
    small it is. For 16-bit numbers one more unit is allowed for each 8 by which the others are
    below the largest.
    """
    cases = [(columns, 1.0) for columns in (1, 2, 33, 1000, 4096, 70000)]
    if kind != "huge":  # a product with 64 is exact
        cases += [(2, 64.0), (1000, 64.0)]
    for columns, scale in cases:
        rows = [ROWS[kind](rng, columns) for _ in range(4)]
        limit = 65504 if dtype == "float16" else 3e38
        x = np.clip(rows, -limit, limit).astype(numpy_dtype(dtype))
        exact = x.astype(np.longdouble) * scale
        largest = exact.max(-1, keepdims=True)
        less = exact < largest
        below = np.where(less, np.exp(np.where(less, exact - largest, -1e4)), 0).sum(-1)
        rest = np.log1p((exact == largest).sum(-1) - 1 + below)
        lse = largest[:, 0] + rest
        found = own.call(partial(own.ops.logsumexp, scale=scale), x).astype(np.longdouble)
        unit = EPSILON[wide(dtype)]
        assert np.all(np.abs(found - lse) <= 2 * unit * np.maximum(np.abs(lse), 1)), columns
        labels = x.argmax(-1).astype(np.int32)
        found = -own.call(partial(own.ops.token_log_probs, scale=scale), x, labels)
        found = found.astype(np.longdouble)
        least = np.finfo(wide(dtype)).smallest_normal
        units = 4.0
        if dtype in ("float16", "bfloat16"):
            units = units - np.log(np.clip(rest, least, 1)) / 8
        assert np.all(np.abs(found - rest) <= units * unit * rest + least), columns


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_is_alone_is_exact(own: Any, dtype: str, rng: Any) -> None:
    """It is exact in a row of one column, and among columns of −∞."""
    one = logits(rng, (1000, 1), dtype)
    np.testing.assert_array_equal(own.call(own.ops.logsumexp, one), one[:, 0].astype(wide(dtype)))
    np.testing.assert_array_equal(own.call(own.ops.log_softmax, one), np.zeros_like(one))
    row = np.full((1000, 70), -np.inf, one.dtype)
    row[:, 33] = one[:, 0]
    np.testing.assert_array_equal(own.call(own.ops.logsumexp, row), one[:, 0].astype(wide(dtype)))


def test_a_label_out_of_range(rng: Any) -> None:
    """It raises if the check need not wait; otherwise its row alone becomes NaN."""
    x, labels = logits(rng, (4, 9), "float32"), np.array([0, 9, -1, 8])
    t, j = torch.tensor(x), jnp.asarray(x)
    words = "token_log_probs: labels has -1, expected numbers of columns, from 0 to 8"
    with pytest.raises(ValueError, match=words):
        bridge.torch.token_log_probs(t, torch.tensor(labels))
    for given in (labels, jnp.asarray(labels)):
        with pytest.raises(ValueError, match=words):
            bridge.jax.token_log_probs(j, given)
    with pytest.raises(ValueError, match="labels has 9"):
        bridge.torch.token_log_probs(t, torch.tensor(abs(labels)))
    compiled = torch.compile(bridge.torch.token_log_probs, fullgraph=True, backend="aot_eager")
    for found in (
        compiled(t, torch.tensor(labels)).numpy(),
        np.asarray(jax.jit(bridge.jax.token_log_probs)(j, labels)),
        torch.func.vmap(bridge.torch.token_log_probs)(t, torch.tensor(labels)).numpy(),
    ):
        np.testing.assert_array_equal(np.isnan(found), [False, True, True, False])


def test_derivatives_of_second_order_and_forward_mode() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 4, 2])
    for f in (
        partial(bridge.torch.log_softmax, scale=0.7),
        bridge.torch.logsumexp,
        lambda x: bridge.torch.token_log_probs(x, labels, scale=1.5),
    ):
        assert torch.autograd.gradcheck(f, (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, (x,))


REFUSED: dict[str, Refusal] = {
    "scale": (
        lambda m, a: m.log_softmax(a(2, 3), float("inf")),
        ValueError,
        "log_softmax: scale is inf, expected a finite number",
    ),
    "text": (lambda m, a: m.logsumexp(a(2, 3), "1"), TypeError, "logsumexp: scale has type str"),
    "floating labels": (
        lambda m, a: m.token_log_probs(a(2, 3), a(2)),
        TypeError,
        "token_log_probs: labels has dtype float32, expected one of int8",
    ),
    "shape": (
        lambda m, a: m.token_log_probs(a(2, 3), a(3, dtype="int32")),
        ValueError,
        r"token_log_probs: labels has shape \[3\], expected \[2\]",
    ),
    "no dimension": (lambda m, a: m.logsumexp(a()), ValueError, "x is 0-dimensional"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case])


@each
@pytest.mark.parametrize("scale", [1e39, -1e39, 3e200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_scale_beyond_float32(own: Any, dtype: str, scale: float) -> None:
    """The scale times 0 is 0, and equal elements have equal probabilities."""
    x = own.array(np.zeros((2, 4), dtype))
    expected = np.full((2, 4), -math.log(4))
    np.testing.assert_allclose(own.numpy(own.ops.log_softmax(x, scale)), expected, rtol=1e-6)
    found = own.numpy(own.ops.logsumexp(x, scale))
    np.testing.assert_allclose(found, -expected[:, 0], rtol=1e-6)
    labels = own.array(np.zeros(2, np.int32))
    found = own.numpy(own.ops.token_log_probs(x, labels, scale=scale))
    np.testing.assert_allclose(found, expected[:, 0], rtol=1e-6)
    ones = own.array(np.asarray([[0.0, 1.0]], dtype))
    found = own.numpy(own.ops.logsumexp(ones, abs(scale)))
    assert found[0] == (pytest.approx(abs(scale)) if dtype == "float64" else math.inf)
