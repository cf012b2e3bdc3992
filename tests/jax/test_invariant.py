"""`bridge.jax.invariant`: JAX's own functions run on bridge's kernels, in all their forms."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import softmax as imported_softmax

import bridge.jax as bj
from bridge.catalogue import framework_functions

mean_of_rows, silu_of_rows = framework_functions.mean.jax, framework_functions.silu.jax
DTYPES = ("float16", "bfloat16", "float32")


def numbers(*shape: int, dtype: Any = "float32", seed: int = 0) -> jax.Array:
    drawn = 3 * np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(drawn.astype(np.float32)).astype(dtype)


def same(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(expected, np.float64))


def moved(op: Any, x: jax.Array, axis: int) -> jax.Array:
    return jnp.moveaxis(op(jnp.moveaxis(x, axis, -1)), -1, axis)


# For each form: a function of JAX, and the same by a function of bridge.
FORMS: dict[str, tuple[Any, Any]] = {
    "softmax": (jax.nn.softmax, bj.scaled_softmax),
    "softmax, imported": (imported_softmax, bj.scaled_softmax),
    "softmax of the first": (
        lambda x: jax.nn.softmax(x, axis=0),
        lambda x: moved(bj.scaled_softmax, x, 0),
    ),
    "softmax of two": (
        lambda x: jax.nn.softmax(x, (0, 2)),
        lambda x: jnp.moveaxis(
            bj.scaled_softmax(jnp.moveaxis(x, 1, 0).reshape(5, -1)).reshape(5, 3, 37), 0, 1
        ),
    ),
    "log_softmax": (jax.nn.log_softmax, bj.log_softmax),
    "log_softmax of the middle": (
        lambda x: jax.nn.log_softmax(x, 1),
        lambda x: moved(bj.log_softmax, x, 1),
    ),
    "logsumexp": (
        lambda x: jax.nn.logsumexp(x, -1, keepdims=True),
        lambda x: bj.logsumexp(x).astype(x.dtype)[..., None],
    ),
    "scipy's logsumexp": (
        lambda x: jax.scipy.special.logsumexp(x, axis=(1, 2)),
        lambda x: bj.logsumexp(x.reshape(3, -1)).astype(x.dtype),
    ),
    "gelu": (jax.nn.gelu, bj.bias_gelu),
    "gelu, exact": (
        lambda x: jax.nn.gelu(x, approximate=False),
        lambda x: bj.bias_gelu(x, approximate="none"),
    ),
    "silu": (jax.nn.silu, silu_of_rows),
    "swish": (jax.nn.swish, silu_of_rows),
    "standardize": (jax.nn.standardize, bj.layer_norm),
    "mean": (lambda x: jnp.mean(x, -1), mean_of_rows),
    "mean of an array": (
        lambda x: x.mean(axis=-1, keepdims=True),
        lambda x: mean_of_rows(x)[..., None],
    ),
    "mean of all": (jnp.mean, lambda x: mean_of_rows(x.reshape(-1))),
    "mean of the first": (lambda x: x.mean(0), lambda x: mean_of_rows(jnp.moveaxis(x, 0, -1))),
    "mean in float32": (
        lambda x: jnp.mean(x, -1, dtype="float32"),
        lambda x: mean_of_rows(x.astype("float32")),
    ),
    "mean to bfloat16": (
        lambda x: jnp.mean(x, -1, dtype="bfloat16"),
        lambda x: mean_of_rows(x.astype(jnp.promote_types(x.dtype, "bfloat16"))).astype("bfloat16"),
    ),
}
by_form = pytest.mark.parametrize("form", FORMS)


def differentiated(function: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y, pull = jax.vjp(function, x)
    return y, pull(numbers(*y.shape, dtype=y.dtype, seed=5))[0]


@by_form
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_jitted", [False, True])
def test_a_form_has_the_bits_of_bridges_op(form: str, dtype: str, is_jitted: bool) -> None:
    of_jax, of_bridge = FORMS[form]
    x = numbers(3, 5, 37, dtype=dtype)
    wrap = jax.jit if is_jitted else (lambda function: function)
    plain, _ = differentiated(wrap(of_jax), x)
    with bj.invariant(report=True) as context:
        found, gradient = differentiated(wrap(of_jax), x)
    assert context.caught
    assert not context.passed
    expected, expected_gradient = differentiated(of_bridge, x)
    same(found, expected)
    same(gradient, expected_gradient)
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    with jax.enable_x64(True):
        exact, exact_gradient = differentiated(of_jax, x.astype("float64"))
    eps = float(jnp.finfo(found.dtype).eps)
    largest = max(eps, float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(exact, np.float64), rtol=8 * eps, atol=8 * eps
    )
    np.testing.assert_allclose(
        np.asarray(gradient, np.float64), exact_gradient, rtol=8 * largest, atol=64 * largest
    )


@by_form
def test_a_row_alone_has_the_bits_of_the_row_in_a_batch(form: str) -> None:
    if any(word in form for word in ("first", "two", "all", "middle", "scipy")):
        pytest.skip("its rows are another dimension")
    of_jax, _ = FORMS[form]
    x = numbers(64, 3, 37)
    with bj.invariant():
        whole = of_jax(x)
        for part in (slice(5, 6), slice(7, 20), slice(1, 64)):
            same(of_jax(x[part]), whole[part])


def test_a_jitted_function_belongs_to_the_inside_or_the_outside() -> None:
    x = numbers(50, 33)
    outside, inside = imported_softmax(x), bj.scaled_softmax(x)
    assert not np.array_equal(outside, inside)

    def rows(x: jax.Array) -> jax.Array:
        return jax.lax.map(jax.nn.softmax, x)

    functions = {
        "jit": jax.jit(lambda x: imported_softmax(x)),
        "jit of the function": jax.jit(imported_softmax, static_argnames=("axis",)),
        "jit in jit": jax.jit(lambda x: jax.jit(imported_softmax)(x)),
        "vmap": jax.vmap(jax.nn.softmax),
        "scan": rows,
        "scan under jit": jax.jit(rows),
        "checkpoint": jax.checkpoint(lambda x: jax.nn.softmax(x)),
        "cond": lambda x: jax.lax.cond(x[0, 0] < 99, jax.nn.softmax, lambda x: x, x),
    }
    for first_inside in (False, True):
        jax.clear_caches()
        for name, function in functions.items():
            for is_inside in (first_inside, not first_inside) * 2:
                if is_inside:
                    with bj.invariant():
                        found = function(x)
                else:
                    found = function(x)
                assert np.array_equal(found, inside if is_inside else outside) or (
                    # XLA's own softmax has other bits in another program.
                    not is_inside and not np.array_equal(found, inside)
                ), (name, is_inside)


def test_functions_with_a_cache_of_their_own() -> None:
    """`log_softmax` and `silu` are jitted by JAX itself, and `mean` contains a jitted function."""
    x = numbers(50, 33)
    for function, expected in (
        (jax.nn.log_softmax, bj.log_softmax(x)),
        (jax.nn.silu, silu_of_rows(x)),
        (lambda x: jnp.mean(x, -1), mean_of_rows(x)),
    ):
        outside = function(x)
        assert not np.array_equal(outside, expected)
        for _ in range(2):
            with bj.invariant():
                same(function(x), expected)
            same(function(x), outside)


def test_derivatives_and_transforms() -> None:
    with jax.enable_x64(True):
        x, t = (jnp.asarray(np.random.default_rng(k).normal(size=(3, 9))) for k in (0, 1))

        def whole(x: jax.Array) -> jax.Array:
            y = jax.nn.softmax(x) * jax.nn.silu(x) + jax.nn.gelu(x) + jax.nn.standardize(x)
            y = y * x.mean(-1, keepdims=True) + jax.nn.log_softmax(x, 0)
            return y + jax.nn.logsumexp(x, -1, keepdims=True)

        def scalar(x: jax.Array) -> jax.Array:
            return (whole(x) * t).sum()

        def results() -> list[jax.Array]:
            hidden = jnp.stack([x, t])
            return [
                jax.jvp(whole, (x,), (t,))[1],
                jax.grad(scalar)(x),
                jax.jvp(jax.grad(scalar), (x,), (t,))[1],
                jax.jit(jax.vmap(jax.grad(scalar)))(hidden),
            ]

        with bj.invariant(report=True) as context:
            found = results()
        assert not context.passed
        for one, other in zip(found, results(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def cases_that_pass() -> dict[str, tuple[Any, str]]:
    x = numbers(4, 6)
    return {
        "integers": (lambda: jax.nn.softmax(jnp.arange(6)), "dtype"),
        "complex": (lambda: jnp.mean(x + 1j, -1), "dtype"),
        "a list": (lambda: jax.nn.gelu(2.0), "no array"),
        "a weak type": (lambda: jax.nn.gelu(jnp.full((3,), 2.0)), "weak type"),
        "where": (lambda: jax.nn.softmax(x, where=x > 0), "where is given"),
        "b": (lambda: jax.nn.logsumexp(x, b=x), "b or return_sign"),
        "return_sign": (lambda: jax.nn.logsumexp(x, return_sign=True)[0], "b or return_sign"),
        "an epsilon": (lambda: jax.nn.standardize(x, epsilon=1e-3), "epsilon is given"),
        "a mean": (lambda: jax.nn.standardize(x, mean=x[:, :1]), "mean is given"),
        "no dimension": (lambda: jnp.mean(numbers()), "no dimension"),
        "an integer dtype": (lambda: jnp.mean(x, -1, dtype="int32"), "dtype"),
    }  # fmt: skip


@pytest.mark.parametrize("case", cases_that_pass())
def test_a_call_that_passes_by_is_jaxs_own_and_named(case: str) -> None:
    call, reason = cases_that_pass()[case]
    expected = call()
    with bj.invariant(report=True) as context:
        found = call()
    assert found.weak_type == expected.weak_type
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert any(reason in why for _, why in context.passed)
    assert reason in str(context)


WRONG: dict[str, Any] = {
    "nothing": lambda x: jax.nn.softmax(),  # type: ignore[call-arg]
    "an unknown argument": lambda x: jax.nn.silu(x, axis=1),
    "an axis beyond": lambda x: jax.nn.softmax(x, 2),
    "an axis twice": lambda x: jnp.mean(x, (0, 0)),
    "an axis that is no number": lambda x: jnp.mean(x, 1.5),
    "out": lambda x: jnp.mean(x, out=x),  # type: ignore[arg-type]
    "a text": lambda x: jax.nn.gelu("x"),
    "an unknown dtype": lambda x: jnp.mean(x, dtype="float33"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_jaxs_own(case: str) -> None:
    x = numbers(4, 6)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        WRONG[case](x)
    with bj.invariant(), pytest.raises(Exception) as found:  # noqa: PT011
        WRONG[case](x)
    assert found.type is expected.type
    assert str(found.value) == str(expected.value)


def test_zero_dimensions_and_empty_arrays() -> None:
    with bj.invariant():
        same(jax.nn.gelu(numbers()), bj.bias_gelu(numbers(1))[0])
        assert jax.nn.softmax(jnp.zeros((0, 3))).shape == (0, 3)
        assert jnp.mean(jnp.zeros((2, 0, 3)), (0, 1)).shape == (3,)


def test_the_context_holds_for_its_thread_and_restores_the_functions() -> None:
    x = numbers(50, 33)
    plain, by_bridge = imported_softmax(x), bj.scaled_softmax(x)
    code, signature = imported_softmax.__code__, inspect.signature(imported_softmax)
    elsewhere: list[jax.Array] = []

    def other_thread() -> None:
        elsewhere.append(imported_softmax(x))
        with bj.invariant():
            elsewhere.append(imported_softmax(x))
        elsewhere.append(imported_softmax(x))

    with bj.invariant():
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        same(imported_softmax(x), by_bridge)
        assert inspect.signature(imported_softmax) == signature
        assert inspect.signature(jax.nn.log_softmax) == signature
    for found, expected in zip(elsewhere, (plain, by_bridge, plain), strict=True):
        same(found, expected)
    with pytest.raises(ZeroDivisionError), bj.invariant():
        raise ZeroDivisionError
    same(imported_softmax(x), plain)
    assert imported_softmax.__code__ is code
    assert not hasattr(imported_softmax, "__signature__")


def test_nested_contexts() -> None:
    x = numbers(50, 33)
    outer, inner = bj.invariant(report=True), bj.invariant(report=True)
    with outer, bj.invariant(), inner:
        same(imported_softmax(x), bj.scaled_softmax(x))
        with outer:
            jax.nn.softmax(x, where=x > 0)
        with bj.invariant():
            imported_softmax(x)
    assert inner.caught == outer.caught == {"softmax": 2}
    assert inner.passed == outer.passed == {("softmax", "where is given"): 1}


def test_contexts_that_end_in_another_order() -> None:
    x = numbers(50, 33)
    plain, by_bridge = imported_softmax(x), bj.scaled_softmax(x)

    def part() -> Iterator[None]:
        with bj.invariant():
            yield

    first, second = part(), part()
    next(first)
    next(second)
    next(first, None)
    same(imported_softmax(x), by_bridge)  # the second one is open
    next(second, None)
    is_open, may_end = threading.Event(), threading.Event()

    def other_thread() -> None:
        with bj.invariant():
            is_open.set()
            may_end.wait()

    thread = threading.Thread(target=other_thread)
    thread.start()
    is_open.wait()
    found = imported_softmax(x)
    may_end.set()
    thread.join()
    same(found, plain)


def test_decorator() -> None:
    x = numbers(50, 33)
    context = bj.invariant(report=True)

    @jax.jit
    @context
    def function(x: jax.Array, scale: float) -> jax.Array:
        """The words."""
        return imported_softmax(x * scale)

    assert function.__doc__ == "The words."
    same(function(x, 2.0), bj.scaled_softmax(x * 2.0))
    same(function(x, 2.0), bj.scaled_softmax(x * 2.0))
    assert context.caught == {"softmax": 1}
    with pytest.raises(TypeError, match="is a generator or a coroutine"):

        @bj.invariant()
        async def later() -> None: ...

    with pytest.raises(TypeError, match="report is 1, expected True or False"):
        bj.invariant(report=1)  # type: ignore[arg-type]


def test_flax_and_optax() -> None:
    linen = pytest.importorskip("flax.linen")
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    x, labels = numbers(50, 33), jnp.arange(50) % 33
    with bj.invariant(report=True) as context:
        for library in (linen, nnx):
            same(library.gelu(x), bj.bias_gelu(x))
            same(library.softmax(x), bj.scaled_softmax(x))
        layer = nnx.LayerNorm(33, rngs=nnx.Rngs(0))
        whole = layer(x)
        same(nnx.jit(layer)(x[7:8]), nnx.jit(layer)(x)[7:8])
        same(layer(x[7:8]), whole[7:8])
        attend = nnx.MultiHeadAttention(3, 33, rngs=nnx.Rngs(0), decode=False)
        attend(x[None])
        optax.softmax_cross_entropy_with_integer_labels(x, labels)
    assert {"gelu", "softmax", "mean", "logsumexp"} <= set(context.caught)
