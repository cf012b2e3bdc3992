"""The softmax functions: values of every dtype, masks, residuals, and errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from bridge.jax import scaled_causal_softmax, scaled_masked_softmax, scaled_softmax
from tests.frameworks import DTYPES, EPSILON
from tests.jax.cases import plain_softmax
from tests.jax.compositions import assert_close

FLOATS = "float16, bfloat16, float32, float64"
POLARITY = "True (non-zero) hides an element"


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> jax.Array:
    return jnp.asarray(3.0 * rng.standard_normal(shape), dtype)


def backward(function: Any, x: Any, g: Any) -> Any:
    y, pull = jax.vjp(function, x)
    return y, pull(g)[0]


def assert_within(actual: Any, expected: Any, dtype: str, ulps: float) -> None:
    """Compares within `ulps` units in the last place of the largest value of each row."""
    assert actual.dtype == jnp.dtype(dtype)
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    unit = EPSILON[dtype] * np.abs(expected).max(-1, keepdims=True, initial=0.0)
    assert np.all(np.abs(actual - expected) <= ulps * unit)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5, 33), (2, 130), (2, 3, 1500)])
def test_values_and_gradients(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x, g = drawn(rng, dtype, *shape), drawn(rng, dtype, *shape)
    mask = jnp.asarray(rng.random(shape) < 0.3)
    functions = [
        (partial(scaled_softmax, scale=0.3), partial(plain_softmax, scale=0.3)),
        (
            lambda x: scaled_masked_softmax(x, mask, 1.7),
            lambda x: plain_softmax(x, mask, 1.7),
        ),
    ]
    if len(shape) > 1:
        causal = partial(plain_softmax, scale=-0.6, causal=True)
        functions.append((partial(scaled_causal_softmax, scale=-0.6), causal))

    @jax.jit
    def every(x: Any, g: Any) -> Any:
        return [
            (backward(ours, x, g), backward(theirs, x.astype(jnp.float64), g.astype(jnp.float64)))
            for ours, theirs in functions
        ]

    wide = dtype in ("float32", "float64")
    largest = np.abs(np.asarray(g, np.float64)).max()
    for (y, dx), (exact_y, exact_dx) in every(x, g):
        assert_within(y, exact_y, dtype, 12.0 if wide else 0.51)
        # The gradient is computed from the rounded value: y's last unit times the cotangent.
        assert dx.dtype == x.dtype
        error = np.abs(np.asarray(dx, np.float64) - np.asarray(exact_dx)).max()
        assert error <= (48.0 if wide else 8.0) * EPSILON[dtype] * largest


MASKS = [(), (1,), (5,), (4, 5), (4, 1), (1, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1), (3, 4, 5)]


@pytest.mark.usefixtures("x64")
def test_masks_broadcast_from_the_right(rng: np.random.Generator) -> None:
    x = drawn(rng, "float64", 3, 4, 5)
    masks = [rng.random(shape) < 0.5 for shape in MASKS]
    expected = jax.jit(lambda: [plain_softmax(x, mask) for mask in masks])()
    for mask, each in zip(masks, expected, strict=True):
        for given in (mask, jnp.asarray(mask), mask.astype(np.uint8) * 200):
            np.testing.assert_allclose(scaled_masked_softmax(x, given), each, rtol=0, atol=1e-15)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mask_shape", [(2, 5), (2, 3, 1, 5), (2, 4, 1), (2,)], ids=str)
def test_vmap_over_the_mask(mask_shape: Any, rng: np.random.Generator) -> None:
    """A mask of any rank aligns with x from the right, with and without a batch of x."""
    x, g = drawn(rng, "float64", 2, 3, 4, 5), drawn(rng, "float64", 3, 4, 5)
    mask = jnp.asarray(rng.random(mask_shape) < 0.4)
    cases = [
        ((None, 0), x[0], mask),
        ((0, 0), x, mask),
        ((0, None), x, mask[0]),
        ((2, -1), jnp.moveaxis(x, 0, 2), jnp.moveaxis(mask, 0, -1)),
    ]

    @jax.jit
    def every(function: Any) -> Any:
        def one(x: Any, mask: Any) -> Any:
            return backward(lambda x: function(x, mask, 0.7), x, g)

        return [jax.vmap(one, axes, 1)(*arguments) for axes, *arguments in cases]

    ours, theirs = (every(jax.tree_util.Partial(f)) for f in (scaled_masked_softmax, plain_softmax))
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_hidden_is_zero_whatever_it_holds(
    dtype: str, poison: float, rng: np.random.Generator
) -> None:
    with jax.enable_x64(dtype == "float64"):
        mask = np.asarray([[0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]], bool)
        clean = drawn(rng, dtype, 3, 4)
        x = jnp.where(mask, jnp.asarray(poison, dtype), clean)
        g = drawn(rng, dtype, 3, 4)
        y, pull = jax.vjp(lambda x: scaled_masked_softmax(x, mask), x)
        clean_y, clean_pull = jax.vjp(lambda x: scaled_masked_softmax(x, mask), clean)
        np.testing.assert_array_equal(y, clean_y)
        np.testing.assert_array_equal(pull(g)[0], clean_pull(g)[0])
        for array in (y, pull(g)[0]):
            assert np.all(np.asarray(array)[mask] == 0)
            assert not np.any(np.signbit(np.asarray(array, np.float32)[mask]))
        # Elements above the diagonal have the same NaN.
        upper = ~np.tri(3, 4, 1, dtype=bool)
        x = jnp.where(upper, jnp.asarray(poison, dtype), clean)
        np.testing.assert_array_equal(scaled_causal_softmax(x), scaled_masked_softmax(clean, upper))


def test_rows_that_see_nothing() -> None:
    x = jnp.asarray([[-jnp.inf] * 3, [0.0, -jnp.inf, 0.0]])
    y, pull = jax.vjp(scaled_softmax, x)
    np.testing.assert_array_equal(y, [[0, 0, 0], [0.5, 0, 0.5]])
    np.testing.assert_array_equal(pull(jnp.asarray([[1.0, 2, 3]] * 2))[0][0], 0.0)
    # These queries are before the first key.
    y = scaled_causal_softmax(jnp.ones((4, 2)))
    np.testing.assert_array_equal(y, [[0, 0], [0, 0], [1, 0], [0.5, 0.5]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_make_their_row_nan(bad: float) -> None:
    y = scaled_softmax(jnp.asarray([[0.0, bad, 1.0], [0.0, 0.0, 0.0]]))
    assert np.isnan(y[0]).all()
    np.testing.assert_allclose(y[1], 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("first", [0, 1])
def test_more_dimensions_than_the_kernels_walk(rng: np.random.Generator, first: int) -> None:
    """Every second dimension of the mask repeats, so that no two can be merged."""
    x = drawn(rng, "float32", *(2,) * 12, 3)
    own = [1 if i % 2 == first else n for i, n in enumerate(x.shape)]
    mask = rng.random(own) < 0.5
    whole = scaled_masked_softmax(x, np.ascontiguousarray(np.broadcast_to(mask, x.shape)))
    np.testing.assert_array_equal(scaled_masked_softmax(x, mask), whole)
    if first == 0:  # a batch adds a dimension
        batched = jax.vmap(scaled_masked_softmax)(x, np.broadcast_to(mask, (2, *mask.shape[1:])))
        np.testing.assert_array_equal(batched, whole)


def residual_shapes(function: Any, *arguments: Any) -> list[Any]:
    pull = jax.vjp(function, *arguments)[1]
    return [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(pull) if leaf.ndim]


def test_the_backward_pass_keeps_y_alone(rng: np.random.Generator) -> None:
    """And with the causal rule the last column that each query sees."""
    x = drawn(rng, "bfloat16", 3, 4)
    mask = jnp.asarray(rng.random((3, 4)) < 0.5)
    for function in (
        scaled_softmax,
        scaled_causal_softmax,
        lambda x: scaled_masked_softmax(x, mask),
    ):
        last = [((3,), "int32")] * (function is scaled_causal_softmax)
        assert residual_shapes(function, x) == [((3, 4), "bfloat16"), *last]
        g = jnp.ones_like(x)
        jaxpr = jax.make_jaxpr(lambda x, f=function, g=g: jax.vjp(f, x)[1](g))(x).jaxpr
        forward, backward = [e for e in jaxpr.eqns if str(e.primitive) == "bridge_program"]
        assert backward.invars[0] is forward.outvars[0]
        assert len(backward.invars) == 2 + len(last)  # y and the cotangent


def test_more_rows_need_no_transpose(rng: np.random.Generator) -> None:
    x = drawn(rng, "float32", 3, 4, 5, 6)
    for axis in range(4):
        for function in (scaled_softmax, scaled_causal_softmax):
            program = jax.make_jaxpr(jax.vmap(function, axis, axis))(x)
            assert ("transpose" in str(program)) is (axis == 3)


def test_a_scale_is_compiled_once_and_need_not_be_a_float() -> None:
    x = jnp.asarray([0.0, 1.0])
    scaled_softmax(x, 0.25)
    with jax.no_tracing():
        for scale in (0.25, np.float32(0.25), np.asarray(0.25)):
            scaled_softmax(x, scale)
    np.testing.assert_array_equal(scaled_softmax(x, jnp.asarray(0.25)), scaled_softmax(x, 0.25))
    np.testing.assert_array_equal(scaled_softmax(x, 2), scaled_softmax(2 * x))
    jitted = jax.jit(scaled_softmax, static_argnums=1)
    np.testing.assert_array_equal(jitted(x, 0.25), scaled_softmax(x, 0.25))


X = np.ones((3, 4), np.float32)
MASK = np.zeros((3, 4), bool)
REFUSED: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
    (scaled_softmax, ([1.0],), TypeError, "x has type list, expected an array"),
    (scaled_softmax, (jnp.arange(3),), TypeError, f"x has dtype int32, expected one of {FLOATS}"),
    (scaled_softmax, (MASK,), TypeError, f"x has dtype bool, expected one of {FLOATS}"),
    (scaled_softmax, (1.0,), ValueError, "x has shape [], expected at least one dimension"),
    (scaled_softmax, (X, "1"), TypeError, "scale has type str, expected a real number"),
    (scaled_softmax, (X, True), TypeError, "scale has type bool, expected a real number"),
    (scaled_softmax, (X, [1.0]), TypeError, "scale has type list, expected a real number"),
    (scaled_softmax, (X, 1j), TypeError, "scale has type complex, expected a real number"),
    (scaled_softmax, (X, np.inf), ValueError, "scale is inf, expected a finite number"),
    (scaled_softmax, (X, np.nan), ValueError, "scale is nan, expected a finite number"),
    (
        scaled_causal_softmax,
        (X[0],),
        ValueError,
        "x has shape [4], expected at least two dimensions, queries and keys",
    ),
    (scaled_masked_softmax, (X, None), TypeError, "mask has type NoneType, expected an array"),
    (scaled_masked_softmax, (X, [True]), TypeError, "mask has type list, expected an array"),
    *(
        (
            scaled_masked_softmax,
            (X, mask),
            TypeError,
            f"mask has dtype {mask.dtype.name}, expected bool or uint8; {POLARITY}",
        )
        for mask in (
            MASK.astype(np.int64),
            MASK.astype(np.float32),
            MASK.astype(ml_dtypes.bfloat16),
            jnp.asarray(MASK, jnp.int8),
            jnp.asarray(MASK, jnp.float32),
        )
    ),
    *(
        (
            scaled_masked_softmax,
            (X, np.zeros(shape, bool)),
            ValueError,
            f"mask has shape {list(shape)}, which does not broadcast to x of shape [3, 4]; "
            f"{POLARITY}",
        )
        for shape in ((3,), (4, 3), (2, 4), (1, 3, 4), (0,))
    ),
]


@pytest.mark.parametrize(("function", "arguments", "error", "message"), REFUSED)
def test_refused_by_name(function: Any, arguments: Any, error: Any, message: str) -> None:
    name = function.__name__
    for _ in range(2):
        with pytest.raises(error) as raised:
            function(*arguments)
        assert str(raised.value) == f"{name}: {message}"
    if len(arguments) > 1 and isinstance(arguments[1], jax.Array):
        with pytest.raises(error, match=f"{name}: mask has dtype"):
            jax.jit(function)(*arguments)


def test_a_traced_scale_is_refused() -> None:
    for function in (scaled_softmax, scaled_causal_softmax):
        with pytest.raises(TypeError, match=f"{function.__name__}: scale is traced, expected"):
            jax.jit(function)(X, 0.5)
