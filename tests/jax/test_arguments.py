"""Arguments of bias_gelu, its results, and its errors for other arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import sparse

from bridge.jax import bias_gelu
from tests.jax.compositions import assert_close, plain

X = np.linspace(-3.0, 3.0, 12, dtype=np.float32).reshape(4, 3)
BIAS = np.asarray([0.5, -1.0, 2.0], np.float32)
FLOATS = "float16, bfloat16, float32, float64"

REFUSED = [
    ([1.0, 2.0], None, "tanh", TypeError, "bias_gelu: x has type list, expected an array"),
    (None, None, "tanh", TypeError, "bias_gelu: x has type NoneType, expected an array"),
    ("x", None, "tanh", TypeError, "bias_gelu: x has type str, expected an array"),
    (X, (1.0,), "tanh", TypeError, "bias_gelu: bias has type tuple, expected an array"),
    (
        sparse.BCOO.fromdense(jnp.eye(3)),
        None,
        "tanh",
        TypeError,
        "bias_gelu: x has type BCOO, expected an array",
    ),
    (3, None, "tanh", TypeError, f"bias_gelu: x has dtype int64, expected one of {FLOATS}"),
    (True, None, "tanh", TypeError, f"bias_gelu: x has dtype bool, expected one of {FLOATS}"),
    (
        jnp.arange(3),
        None,
        "tanh",
        TypeError,
        f"bias_gelu: x has dtype int32, expected one of {FLOATS}",
    ),
    (
        X,
        jnp.ones(3, jnp.complex64),
        "tanh",
        TypeError,
        f"bias_gelu: bias has dtype complex64, expected one of {FLOATS}",
    ),
    (
        X.astype(ml_dtypes.float8_e4m3fn),
        None,
        "tanh",
        TypeError,
        f"bias_gelu: x has dtype float8_e4m3fn, expected one of {FLOATS}",
    ),
    (
        np.asarray(["a"]),
        None,
        "tanh",
        TypeError,
        f"bias_gelu: x has dtype str32, expected one of {FLOATS}",
    ),
    (
        jax.random.key(0),
        None,
        "tanh",
        TypeError,
        f"bias_gelu: x has dtype key<fry>, expected one of {FLOATS}",
    ),
    (
        X,
        BIAS[:2],
        "tanh",
        ValueError,
        "bias_gelu: bias has shape [2], expected [3]: x has shape [4, 3]",
    ),
    (
        X,
        X,
        "tanh",
        ValueError,
        "bias_gelu: bias has shape [4, 3], expected [3]: x has shape [4, 3]",
    ),
    (
        X,
        0.5,
        "tanh",
        ValueError,
        "bias_gelu: bias has shape [], expected [3]: x has shape [4, 3]",
    ),
    (
        1.5,
        BIAS,
        "tanh",
        ValueError,
        "bias_gelu: x is 0-dimensional, expected at least one dimension",
    ),
    (
        X,
        BIAS,
        "erf",
        ValueError,
        "bias_gelu: approximate is 'erf', expected one of 'tanh', 'none', 'sigmoid'",
    ),
    (
        X,
        BIAS,
        ["tanh"],
        ValueError,
        "bias_gelu: approximate is ['tanh'], expected one of 'tanh', 'none', 'sigmoid'",
    ),
    (
        X,
        None,
        True,
        ValueError,
        "bias_gelu: approximate is True, expected one of 'tanh', 'none', 'sigmoid'",
    ),
]


@pytest.mark.parametrize(
    ("x", "bias", "approximate", "error", "message"), REFUSED, ids=[case[-1] for case in REFUSED]
)
def test_refused_by_name(x: Any, bias: Any, approximate: Any, error: Any, message: str) -> None:
    for _ in range(2):  # the second time too, with filled caches
        with pytest.raises(error) as raised:
            bias_gelu(x, bias, approximate=approximate)
        assert str(raised.value) == message


def test_refused_inside_jit() -> None:
    with pytest.raises(ValueError, match="bias has shape"):
        jax.jit(bias_gelu)(X, BIAS[:2])
    with pytest.raises(TypeError, match="x has dtype int32"):
        jax.jit(bias_gelu)(jnp.arange(3))


def test_array_likes() -> None:
    expected = plain(jnp.asarray(X), jnp.asarray(BIAS))

    class Wrapped:
        def __jax_array__(self) -> jax.Array:
            return jnp.asarray(X)

    for x in (X, jnp.asarray(X), X.astype(np.float64), Wrapped()):
        assert_close(bias_gelu(x, BIAS), expected, 1e-6)
    read_only = X.copy()
    read_only.flags.writeable = False
    assert_close(bias_gelu(read_only, BIAS), expected, 1e-6)
    transposed = np.asfortranarray(X)
    assert_close(bias_gelu(transposed, BIAS), expected, 1e-6)
    for scalar in (1.5, np.float32(1.5), np.float64(1.5), ml_dtypes.bfloat16(1.5)):
        value = bias_gelu(scalar)
        assert value.shape == ()
        np.testing.assert_allclose(np.float32(value), np.float32(plain(1.5)), rtol=2**-8)


def test_promoted_dtypes() -> None:
    sixteen = (jnp.float16, jnp.bfloat16)
    for a in (*sixteen, jnp.float32):
        for b in (*sixteen, jnp.float32):
            y = bias_gelu(jnp.asarray(X, a), jnp.asarray(BIAS, b))
            assert y.dtype == jnp.promote_types(a, b)


def test_weak_types_take_the_dtype_of_the_other() -> None:
    weak = jnp.full(3, 0.5)
    assert weak.weak_type
    assert bias_gelu(jnp.asarray(X, jnp.bfloat16), weak).dtype == jnp.bfloat16
    assert bias_gelu(weak, jnp.asarray(BIAS, jnp.float16)).dtype == jnp.float16
    assert bias_gelu(weak, weak).dtype == jnp.float32
    assert bias_gelu(0.5).dtype == jnp.float32
    gradient = jax.grad(lambda b: bias_gelu(jnp.asarray(X, jnp.bfloat16), b).sum().astype(float))
    assert gradient(weak).dtype == jnp.float32
    with jax.enable_x64(True):
        assert bias_gelu(jnp.asarray(X), jnp.full(3, 0.5)).dtype == jnp.float32
        assert bias_gelu(0.5).dtype == jnp.float64


def test_a_loop_may_carry_a_weak_start() -> None:
    out = jax.lax.fori_loop(0, 3, lambda _, y: bias_gelu(y), 2.0)
    np.testing.assert_allclose(out, plain(plain(plain(2.0))), rtol=1e-6)


def test_float64_needs_x64_as_everywhere_in_jax() -> None:
    assert bias_gelu(X.astype(np.float64)).dtype == jnp.float32
    with jax.enable_x64(True):
        y = bias_gelu(X.astype(np.float64), BIAS)
        assert y.dtype == jnp.float64
        assert_close(y, plain(jnp.asarray(X, jnp.float64), jnp.asarray(BIAS, jnp.float64)))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0), (2, 0, 3), (0, 0)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    x, bias = jnp.zeros(shape), jnp.zeros(shape[-1:])
    y, pull = jax.vjp(bias_gelu, x, bias)
    dx, db = pull(y)
    assert (y.shape, dx.shape, db.shape) == (shape, shape, shape[-1:])
    np.testing.assert_array_equal(db, 0.0)  # an empty sum


def test_zero_dimensional() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(0.7)
        for form in ("tanh", "none", "sigmoid"):
            ours = jax.value_and_grad(lambda x, f=form: bias_gelu(x, approximate=f))(x)
            theirs = jax.value_and_grad(lambda x, f=form: plain(x, approximate=f))(x)
            assert_close(ours, theirs)


def test_limits() -> None:
    x = jnp.asarray([-jnp.inf, jnp.inf, jnp.nan, -0.0])
    for form in ("tanh", "none", "sigmoid"):
        y, slope = jax.jvp(lambda x, f=form: bias_gelu(x, approximate=f), (x,), (jnp.ones(4),))
        np.testing.assert_array_equal(y, [-0.0, jnp.inf, jnp.nan, -0.0])
        np.testing.assert_array_equal(jnp.signbit(y[jnp.asarray([0, 3])]), [True, True])
        np.testing.assert_array_equal(slope[:3], [0.0, 1.0, jnp.nan])


def test_inputs_are_left_alone() -> None:
    x, bias = jnp.asarray(X), jnp.asarray(BIAS)
    jax.grad(lambda x, b: bias_gelu(x, b).sum(), (0, 1))(x, bias)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(bias, BIAS)
