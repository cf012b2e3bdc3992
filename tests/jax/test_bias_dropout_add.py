"""bias_dropout_add: mixed dtypes, the cost of derivatives, and errors.

test_seeds tests its masks.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.jax import bias_dropout_add, make_viewless
from tests.frameworks import DTYPES, EPSILON
from tests.jax.cases import plain_dropout_add
from tests.jax.compositions import assert_close, normal

FLOATS = "float16, bfloat16, float32, float64"
DRAWN: dict[str, Any] = {"p": 0.3, "seed": 77, "offset": 2}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("residual_dtype", [*DTYPES, None])
def test_mixed_dtypes(x_dtype: str, residual_dtype: Any, rng: np.random.Generator) -> None:
    for bias_dtype in (x_dtype, "bfloat16", "float32"):
        dtypes = (x_dtype, bias_dtype, residual_dtype)
        shapes = ((300, 9), (9,), (300, 9))
        arguments = [
            None if dtype is None else normal(rng, *shape, dtype=dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        present = tuple(i for i, argument in enumerate(arguments) if argument is not None)
        wide = [None if a is None else a.astype(jnp.float64) for a in arguments]

        def run(function: Any, arguments: Any, g: Any, present: Any = present) -> Any:
            def value(*given: Any) -> Any:
                full: list[Any] = [None] * 3
                for i, each in zip(present, given, strict=True):
                    full[i] = each
                return function(*full, **DRAWN)

            y, pull = jax.vjp(value, *[arguments[i] for i in present])
            return y, *pull(g.astype(y.dtype))

        result_dtype = residual_dtype or x_dtype
        g = normal(rng, 300, 9, dtype=result_dtype)
        ours = run(bias_dropout_add, arguments, g)
        expected = run(plain_dropout_add, wide, g.astype(jnp.float64))
        wanted = [result_dtype, *(dtypes[i] for i in present)]
        inside = EPSILON["float64" if set(wanted) == {"float64"} else "float32"]
        for array, reference, dtype in zip(ours, expected, wanted, strict=True):
            assert array.dtype == dtype
            # Results are rounded once to their dtype; sums are computed in float32 at least.
            assert_close(array.astype(jnp.float64), reference, EPSILON[dtype] + 4.0 * inside)


@pytest.mark.usefixtures("x64")
def test_everything_and_nothing_kept(rng: np.random.Generator) -> None:
    x, bias, residual = normal(rng, 4, 5), normal(rng, 5), normal(rng, 4, 5)
    for arguments in ({"p": 0.0}, {"p": 1e-12, "seed": 1}, {"training": False, "p": 0.7}):
        ours = bias_dropout_add(x, bias, residual, **arguments)
        assert_close(ours, residual + (x + bias), 1e-11)
    y, pull = jax.vjp(lambda *a: bias_dropout_add(*a, p=1.0, seed=1), x, bias, residual)
    np.testing.assert_array_equal(y, residual)
    dx, dbias, dresidual = pull(residual)
    np.testing.assert_array_equal(dx, 0.0)
    np.testing.assert_array_equal(dbias, 0.0)
    np.testing.assert_array_equal(dresidual, residual)


def test_dropped_elements_are_zero_whatever_they_hold() -> None:
    kept = np.asarray(bias_dropout_add(jnp.ones(64), p=0.5, seed=3)) != 0
    assert 0 < kept.sum() < 64
    poisoned = jnp.where(kept, 1.0, jnp.nan)
    y = bias_dropout_add(poisoned, p=0.5, seed=3)
    np.testing.assert_array_equal(y, np.where(kept, 2.0, 0.0))
    assert not np.signbit(np.asarray(bias_dropout_add(-poisoned, p=0.5, seed=3)))[~kept].any()


def primitives(function: Any, *arguments: Any) -> list[str]:
    return [str(e.primitive) for e in jax.make_jaxpr(function)(*arguments).jaxpr.eqns]


def test_what_derivatives_cost(rng: np.random.Generator) -> None:
    x, bias, residual, g = (normal(rng, *s) for s in ((4, 5), (5,), (4, 5), (4, 5)))
    kernel = "bridge_program"

    def function(x: Any, bias: Any, residual: Any) -> Any:
        return bias_dropout_add(x, bias, residual, **DRAWN)

    def gradients(*positions: int) -> Any:
        arguments = [x, bias, residual]

        def backward(g: Any, *given: Any) -> Any:
            def value(*varied: Any) -> Any:
                for i, each in zip(positions, varied, strict=True):
                    arguments[i] = each
                return function(*arguments)

            return jax.vjp(value, *given)[1](g)

        return backward

    every = jax.make_jaxpr(gradients(0, 1, 2))(g, x, bias, residual)
    # One kernel computes both gradients; the residual's gradient is the cotangent.
    assert [str(e.primitive) for e in every.jaxpr.eqns] == [kernel, kernel]
    assert every.jaxpr.outvars[2] is every.jaxpr.invars[0]
    assert primitives(gradients(2), g, residual) == [kernel]
    for position, given, shape in ((1, bias, (5,)), (0, x, (4, 5))):
        (result,) = jax.make_jaxpr(gradients(position))(g, given).eqns[-1].outvars
        assert result.aval.shape == shape
    # A tangent of the residual alone bypasses the kernel too.
    tangent = jax.make_jaxpr(lambda t: jax.jvp(lambda r: function(x, bias, r), (residual,), (t,)))
    program = tangent(g).jaxpr
    assert program.outvars[1] is program.invars[0]


def test_the_backward_pass_keeps_the_seed_alone(rng: np.random.Generator) -> None:
    x, bias, residual = normal(rng, 4, 5), normal(rng, 5), normal(rng, 4, 5)
    _, pull = jax.vjp(lambda *a: bias_dropout_add(*a, **DRAWN), x, bias, residual)
    kept = sorted((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(pull))
    assert kept == [((2,), "uint32")] * 2  # seed and offset


def test_tangents_of_some_arguments(rng: np.random.Generator) -> None:
    arguments = [normal(rng, *s) for s in ((4, 5), (5,), (4, 5))]
    for count in (1, 2):
        for varied in itertools.combinations(range(3), count):

            def tangent(function: Any, varied: Any = varied) -> Any:
                def value(*given: Any) -> Any:
                    full = list(arguments)
                    for i, each in zip(varied, given, strict=True):
                        full[i] = each
                    return function(*full, **DRAWN)

                primals = [arguments[i] for i in varied]
                value_and_tangent = jax.jvp(value, primals, [jnp.cos(a) for a in primals])
                return value_and_tangent, jax.grad(lambda *a: (value(*a) ** 2).sum())(*primals)

            assert_close(tangent(bias_dropout_add), tangent(plain_dropout_add), 1e-6)


def test_weak_types_take_the_dtype_of_the_others() -> None:
    half, weak = jnp.ones(3, jnp.bfloat16), jnp.full(3, 0.5)
    assert weak.weak_type
    for arguments in ((half, None, weak), (weak, half, None), (weak, None, half), (half, weak)):
        assert bias_dropout_add(*arguments, p=0.0).dtype == jnp.bfloat16
    assert bias_dropout_add(weak, weak, weak, p=0.0).dtype == jnp.float32
    assert bias_dropout_add(0.5, p=0.0).dtype == jnp.float32


def test_make_viewless_is_a_differentiable_identity(rng: np.random.Generator) -> None:
    x = normal(rng, 3, 4)
    assert make_viewless(x) is x
    y, pull = jax.vjp(jax.jit(make_viewless), x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(pull(2 * x)[0], 2 * x)
    np.testing.assert_array_equal(jax.vmap(make_viewless)(x), x)


X = np.ones((3, 4), np.float32)
B = np.ones(4, np.float32)
SHAPE = "x has shape [3, 4]"
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (([1.0],), {}, TypeError, "x has type list, expected an array"),
    ((X.astype(int),), {}, TypeError, f"x has dtype int64, expected one of {FLOATS}"),
    ((jnp.arange(3),), {}, TypeError, f"x has dtype int32, expected one of {FLOATS}"),
    ((X, "b"), {}, TypeError, "bias has type str, expected an array"),
    ((X, B > 0), {}, TypeError, f"bias has dtype bool, expected one of {FLOATS}"),
    ((X, B[:3]), {}, ValueError, f"bias has shape [3], expected [4]: {SHAPE}"),
    ((X, X), {}, ValueError, f"bias has shape [3, 4], expected [4]: {SHAPE}"),
    ((1.0, B), {}, ValueError, "x is 0-dimensional, expected at least one dimension"),
    ((X, None, 1j), {}, TypeError, f"residual has dtype complex128, expected one of {FLOATS}"),
    ((X, None, B), {}, ValueError, f"residual has shape [4], expected [3, 4]: {SHAPE}"),
    ((X,), {"p": 1.5}, ValueError, "p is 1.5, expected a probability, from 0 to 1"),
    ((X,), {"p": -0.1}, ValueError, "p is -0.1, expected a probability, from 0 to 1"),
    ((X,), {"p": np.nan}, ValueError, "p is nan, expected a probability, from 0 to 1"),
    ((X,), {"p": "0.5"}, TypeError, "p has type str, expected a number"),
    ((X,), {"p": None}, TypeError, "p has type NoneType, expected a number"),
    ((X,), {"p": True}, TypeError, "p has type bool, expected a number"),
]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"), REFUSED, ids=[case[-1] for case in REFUSED]
)
def test_refused_by_name(arguments: Any, options: Any, error: Any, message: str) -> None:
    for _ in range(2):
        with pytest.raises(error) as raised:
            bias_dropout_add(*arguments, seed=1, **options)
        assert str(raised.value) == f"bias_dropout_add: {message}"


def test_a_traced_probability_is_refused() -> None:
    with pytest.raises(TypeError, match="bias_dropout_add: p is traced, expected a number known"):
        jax.jit(lambda p: bias_dropout_add(X, p=p, seed=1))(0.5)
