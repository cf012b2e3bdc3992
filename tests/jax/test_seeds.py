"""Seeds and offsets of bias_dropout_add: equal seeds in every form draw the same mask."""

from __future__ import annotations

from typing import Any

import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.jax import bias_dropout_add
from tests.jax.cases import keep

SHAPE = (5, 13)
ONES = np.ones(SHAPE, np.float32)


def drawn(seed: Any, offset: Any = 0, p: float = 0.4) -> np.ndarray:
    return np.asarray(bias_dropout_add(ONES, p=p, seed=seed, offset=offset)) != 0


@pytest.mark.parametrize("seed", [0, 1234, 2**31, 2**32 + 7, 2**63, 2**64 - 1, -1, -5, -(2**63)])
def test_numbers(seed: int) -> None:
    expected = keep(SHAPE, 0.4, seed)
    np.testing.assert_array_equal(drawn(seed), expected)
    np.testing.assert_array_equal(drawn(seed % 2**64), expected)
    np.testing.assert_array_equal(drawn(9, seed), keep(SHAPE, 0.4, 9, seed))
    word = np.uint64(seed % 2**64)
    np.testing.assert_array_equal(drawn(word), expected)
    np.testing.assert_array_equal(drawn(np.asarray(word)), expected)
    np.testing.assert_array_equal(drawn(np.asarray(word).astype(np.int64)), expected)
    with jax.enable_x64(True):
        for array in (jnp.asarray(word), jnp.asarray(word).astype(jnp.int64)):
            np.testing.assert_array_equal(drawn(array), expected)
            np.testing.assert_array_equal(jax.jit(lambda s: drawn_traced(s))(array), expected)


def drawn_traced(seed: Any, offset: Any = 0) -> Any:
    return bias_dropout_add(ONES, p=0.4, seed=seed, offset=offset) != 0


@pytest.mark.parametrize("value", [0, 100, -1, -128])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_arrays_of_any_integer_dtype_without_x64(value: int, dtype: str) -> None:
    """Arrays are traced or not; the sign of a small integer fills all 64 bits."""
    array = np.asarray(value).astype(dtype)
    seed = int(array)
    for given in (array, jnp.asarray(array), array[()]):
        np.testing.assert_array_equal(drawn(given), keep(SHAPE, 0.4, seed))
        np.testing.assert_array_equal(drawn(3, given), keep(SHAPE, 0.4, 3, seed))
    np.testing.assert_array_equal(
        jax.jit(drawn_traced)(jnp.asarray(array), jnp.asarray(array)), keep(SHAPE, 0.4, seed, seed)
    )


def test_keys_are_the_seed_they_were_made_from() -> None:
    expected = keep(SHAPE, 0.4, 1234)
    for key in (jax.random.key(1234), jax.random.PRNGKey(1234), np.asarray([0, 1234], np.uint32)):
        np.testing.assert_array_equal(drawn(key), expected)
        np.testing.assert_array_equal(jax.jit(drawn_traced)(key), expected)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(drawn(jax.random.key(2**40 + 3)), keep(SHAPE, 0.4, 2**40 + 3))
    high, low = (
        int(word) for word in jax.random.key_data(jax.random.key(1234).block_until_ready())
    )
    assert (high << 32 | low) == 1234


def test_keys_of_another_generator() -> None:
    first, second = jax.random.split(jax.random.key(5, impl="rbg"))
    low, high = (int(word) for word in jax.random.bits(first, (2,), np.uint32))
    np.testing.assert_array_equal(drawn(first), keep(SHAPE, 0.4, high << 32 | low))
    assert (drawn(first) != drawn(second)).any()


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_raw_keys_of_the_default_generator(impl: str) -> None:
    with jax.default_prng_impl(impl):
        raw, key = jax.random.PRNGKey(7), jax.random.key(7)
        for given in (raw, np.asarray(raw), flax.nnx.Variable(raw)):
            np.testing.assert_array_equal(drawn(given), drawn(key))
            traced = jax.jit(lambda seed: drawn_traced(seed))(given)
            np.testing.assert_array_equal(traced, drawn(key))
        raws, keys = jax.random.split(raw, 3), jax.random.split(key, 3)
        np.testing.assert_array_equal(jax.vmap(drawn_traced)(raws), jax.vmap(drawn_traced)(keys))
    message = r"seed has shape \[4\], .* or a key of jax.random \(a raw one of the generator"
    for given in (raw, np.asarray(raw), flax.nnx.Variable(raw)):
        with pytest.raises(ValueError, match=message):  # the default is threefry2x32 again
            drawn(given)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_reuse_of_a_key_is_seen(impl: str) -> None:
    def again(function: Any) -> Any:
        return lambda key: (drawn_traced(key), function(key))

    with jax.debug_key_reuse(True):
        for second in (drawn_traced, jax.random.bernoulli):
            for function in (again(second), jax.jit(again(second))):
                with pytest.raises(jax.errors.KeyReuseError):
                    function(jax.random.key(0, impl=impl))
        gradient = jax.grad(lambda x, key: bias_dropout_add(x, p=0.4, seed=key).sum())
        for function in (gradient, jax.jit(gradient)):
            key = jax.random.key(0, impl=impl)
            function(ONES, key)
            with pytest.raises(jax.errors.KeyReuseError):
                function(ONES, key)
        key = jax.random.key(0, impl=impl)
        jax.lax.map(lambda i: drawn_traced(key, i), jnp.arange(3))  # no reuse with offsets
        mask = drawn(key)
    np.testing.assert_array_equal(mask, drawn(jax.random.key(0, impl=impl)))


def test_a_new_seed_compiles_nothing() -> None:
    traces = []

    @jax.jit
    def function(seed: Any, offset: Any) -> Any:
        traces.append(None)
        return bias_dropout_add(ONES, p=0.25, seed=seed, offset=offset)

    outcomes = {np.asarray(function(seed, 3 * seed)).tobytes() for seed in range(5)}
    assert len(outcomes) == 5
    assert len(traces) == 1
    bias_dropout_add(ONES, p=0.25, seed=1, offset=1)
    with jax.no_tracing():
        for seed in range(5):
            bias_dropout_add(ONES, p=0.25, seed=seed, offset=seed + 1)


def test_offset_zero_is_no_offset() -> None:
    for zero in (0, np.int64(0), jnp.zeros((), jnp.int32)):
        np.testing.assert_array_equal(drawn(7, zero), keep(SHAPE, 0.4, 7))


def test_vmap_gives_every_batch_what_a_loop_would() -> None:
    x = np.ones((3, *SHAPE), np.float32)

    def masks(in_axes: Any, *arguments: Any) -> Any:
        return jax.vmap(lambda x, s: bias_dropout_add(x, p=0.4, seed=s), in_axes)(*arguments) != 0

    np.testing.assert_array_equal(masks((0, None), x, 11), [keep(SHAPE, 0.4, 11)] * 3)
    seeds = [keep(SHAPE, 0.4, seed) for seed in (4, -5, 6)]
    np.testing.assert_array_equal(masks((0, 0), x, jnp.asarray([4, -5, 6])), seeds)
    np.testing.assert_array_equal(masks((None, 0), x[0], jnp.asarray([4, -5, 6])), seeds)
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    expected = [keep(SHAPE, 0.4, seed) for seed in range(3)]
    np.testing.assert_array_equal(masks((None, 0), x[0], keys), expected)
    raw = jax.random.key_data(keys)
    np.testing.assert_array_equal(masks((0, 1), x, raw.T), expected)

    def offsets(x: Any, offset: Any) -> Any:
        return bias_dropout_add(x, p=0.4, seed=2, offset=offset) != 0

    nested = jax.vmap(jax.vmap(offsets, (None, 0)), (None, 0))
    expected = [[keep(SHAPE, 0.4, 2, 2 * i + j) for j in range(2)] for i in range(3)]
    np.testing.assert_array_equal(nested(x[0], jnp.arange(6).reshape(3, 2)), expected)


def test_the_step_of_a_scan_as_offset() -> None:
    def step(carry: Any, i: Any) -> Any:
        return carry + 1, bias_dropout_add(ONES, p=0.4, seed=8, offset=carry) != 0

    masks = jax.lax.scan(step, 0, None, length=3)[1]
    np.testing.assert_array_equal(masks, [keep(SHAPE, 0.4, 8, i) for i in range(3)])


def test_the_gradient_draws_the_mask_of_the_value() -> None:
    key = jax.random.key(3)
    y, pull = jax.vjp(lambda x: bias_dropout_add(x, p=0.4, seed=key, offset=5), ONES)
    np.testing.assert_array_equal(pull(jnp.asarray(ONES))[0], y)


def test_gradients_towards_a_seed_are_none() -> None:
    def loss(x: Any, seed: Any) -> Any:
        return bias_dropout_add(x, p=0.4, seed=seed).sum()

    dx, dseed = jax.grad(loss, (0, 1), allow_int=True)(jnp.asarray(ONES), jnp.asarray(3))
    assert dseed.dtype == jax.dtypes.float0
    np.testing.assert_array_equal(dx != 0, keep(SHAPE, 0.4, 3))


def test_no_seed_where_nothing_is_drawn() -> None:
    x, residual = ONES * 3, ONES
    for arguments in ({"p": 0.0}, {"p": 0}, {"p": 0.9, "training": False}):
        np.testing.assert_array_equal(bias_dropout_add(x, None, residual, **arguments), 4.0)
    np.testing.assert_array_equal(bias_dropout_add(x, p=1.0, seed=1), 0.0)
    np.testing.assert_array_equal(bias_dropout_add(x * np.nan, None, residual, p=1, seed=1), 1.0)


EXPECTED = "expected an integer"
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {},
        TypeError,
        "seed is None, expected an integer or a jax.random key where training and p > 0",
    ),
    ({"seed": 1.5}, TypeError, f"seed has type float, {EXPECTED}"),
    ({"seed": True}, TypeError, f"seed has type bool, {EXPECTED}"),
    ({"seed": "1"}, TypeError, f"seed has type str, {EXPECTED}"),
    ({"seed": 2**64}, ValueError, f"seed is {2**64}, {EXPECTED} from -2**63 to 2**64 - 1"),
    ({"seed": -(2**63) - 1}, ValueError, f"seed is {-(2**63) - 1}, {EXPECTED}"),
    ({"seed": jnp.ones(())}, TypeError, f"seed has dtype float32, {EXPECTED} dtype"),
    ({"seed": jnp.asarray(True)}, TypeError, f"seed has dtype bool, {EXPECTED} dtype"),
    ({"seed": np.ones(2, np.int64)}, ValueError, "seed has shape [2], expected a 0-dimensional"),
    (
        {"seed": jnp.ones(3, jnp.uint32)},
        ValueError,
        "seed has shape [3], expected a 0-dimensional array, or a key of jax.random",
    ),
    ({"seed": jax.random.split(jax.random.key(0))}, ValueError, "seed has shape [2], expected one"),
    ({"seed": 1, "offset": None}, TypeError, f"offset has type NoneType, {EXPECTED}"),
    ({"seed": 1, "offset": 0.0}, TypeError, f"offset has type float, {EXPECTED}"),
    ({"seed": 1, "offset": jax.random.key(0)}, TypeError, "offset is a key of jax.random"),
    ({"seed": 1, "offset": jnp.ones(2, jnp.uint32)}, ValueError, "offset has shape [2], expected"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED, ids=[r[-1] for r in REFUSED])
def test_refused_by_name(arguments: Any, error: Any, message: str) -> None:
    for _ in range(2):
        with pytest.raises(error) as raised:
            bias_dropout_add(ONES, **arguments)
        assert str(raised.value).startswith(f"bias_dropout_add: {message}")
