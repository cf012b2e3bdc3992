"""Layers of Flax NNX that `replace` knows by their `__call__`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bridge.jax as bj
import bridge.jax.nnx
from bridge.jax.nnx import replace

Make = Callable[[nnx.Rngs], nnx.Module]

LAYERS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "linear": (partial(nnx.Linear, 5, 7), (2, 3, 5), "linear"),
    "linear without a bias": (partial(nnx.Linear, 5, 7, use_bias=False), (5,), "linear"),
    "linear of heads": (partial(nnx.LinearGeneral, 5, (2, 3)), (4, 2, 5), "linear"),
    "linear of two axes": (
        partial(nnx.LinearGeneral, (2, 3), 5, axis=(1, -1)),
        (4, 2, 5, 3),
        "linear",
    ),
    "conv 1d causal": (
        partial(nnx.Conv, 4, 6, 3, padding="CAUSAL", kernel_dilation=2),
        (2, 9, 4),
        "conv_general_dilated",
    ),
    "conv SAME": (partial(nnx.Conv, 4, 6, (3, 3), 2), (2, 7, 8, 4), "conv_general_dilated"),
    "conv in a circle": (
        partial(nnx.Conv, 4, 6, (3, 2), padding="CIRCULAR", feature_group_count=2),
        (7, 8, 4),
        "conv_general_dilated",
    ),
    "conv with a mask": (
        partial(
            nnx.Conv,
            2,
            3,
            (2, 2),
            padding=((1, 0), 2),
            mask=jnp.eye(2)[..., None, None] * jnp.ones((2, 3)),
        ),
        (2, 3, 5, 6, 2),
        "conv_general_dilated",
    ),
    "conv with spread input": (
        partial(nnx.Conv, 2, 3, (2, 2), input_dilation=2, padding=1),
        (2, 5, 6, 2),
        "conv_general_dilated",
    ),
    "conv 3d": (
        partial(nnx.Conv, 2, 3, (2, 2, 2), padding="REFLECT"),
        (1, 3, 4, 5, 2),
        "conv_general_dilated",
    ),
    "transposed": (partial(nnx.ConvTranspose, 4, 3, (3, 3), 2), (2, 4, 5, 4), "conv_transpose"),
    "transposed kernel": (
        partial(nnx.ConvTranspose, 4, 3, (2, 2), (2, 2), padding="VALID", transpose_kernel=True),
        (4, 5, 4),
        "conv_transpose",
    ),
    "transposed 1d": (
        partial(nnx.ConvTranspose, 4, 3, 3, padding=1, kernel_dilation=2),
        (2, 9, 4),
        "conv_transpose",
    ),
    "batch norm": (partial(nnx.BatchNorm, 4, momentum=0.8), (3, 5, 6, 4), "batch_norm"),
    "batch norm of dimension 1": (
        partial(nnx.BatchNorm, 4, axis=1, use_bias=False),
        (3, 4, 5),
        "batch_norm",
    ),
    "group norm": (partial(nnx.GroupNorm, 6, 3), (2, 4, 5, 6), "group_norm"),
    "groups of a size": (
        partial(nnx.GroupNorm, 6, None, 2, use_scale=False),
        (2, 3, 6),
        "group_norm",
    ),
    "layer norm": (partial(nnx.LayerNorm, 6), (2, 3, 6), "layer_norm"),
    "RMS norm": (partial(nnx.RMSNorm, 6), (2, 3, 6), "rms_norm"),
}


def close(found: Any, expected: Any, bound: float = 2e-5) -> None:
    scale = np.abs(np.asarray(expected, np.float64)).max(initial=0)
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * scale + 1e-6)


def run(layer: nnx.Module, x: jax.Array) -> Any:
    """Returns the result, the gradients along random cotangents, and the variables after it."""

    def loss(layer: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = layer(x)
        return (y * jnp.sin(jnp.arange(y.size)).reshape(y.shape)).sum(), y

    (_, y), found = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(layer, x)
    return y, *jax.tree.leaves(found), *jax.tree.leaves(nnx.state(layer))


@pytest.mark.parametrize("kind", LAYERS)
def test_values_and_gradients(kind: str) -> None:
    make, shape, op = LAYERS[kind]
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape) * 2 + 0.5, jnp.float32)
    mine, original = (make(rngs=nnx.Rngs(1)) for _ in range(2))
    for layer in (mine, original):
        if getattr(layer, "bias", None) is not None:
            layer.bias.set_value(
                jnp.arange(layer.bias.size, dtype=jnp.float32).reshape(layer.bias.shape)
            )
    replaced = replace(mine)
    assert replaced.done == {"": op}
    for one, other in zip(run(mine, x), run(original, x), strict=True):
        close(one, other, 2e-4)
    mine.eval()
    original.eval()
    close(nnx.jit(lambda layer, x: layer(x))(mine, x), original(x))
    half = x.astype(jnp.bfloat16)
    assert mine(half).dtype == original(half).dtype
    replaced.undo()
    assert type(mine) is type(original)
    nnx.update(mine, nnx.state(original))  # running statistics may differ in their last digits
    np.testing.assert_array_equal(mine(x), original(x))


def test_the_bits_of_the_ops() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 6, 4)), jnp.float32)
    layer = nnx.Linear(4, 7, rngs=nnx.Rngs(0))
    replace(layer)
    assert np.array_equal(layer(x), bj.linear(x, layer.kernel[...].T, layer.bias[...]))
    conv = nnx.Conv(4, 7, (3, 3), use_bias=False, rngs=nnx.Rngs(0))
    replace(conv)
    dims = ("NHWC", "HWIO", "NHWC")
    own = bj.conv_general_dilated(x, conv.kernel[...], (1, 1), "SAME", dimension_numbers=dims)
    assert np.array_equal(conv(x), own)


def test_embeddings() -> None:
    mine, original = (nnx.Embed(7, 4, rngs=nnx.Rngs(0)) for _ in range(2))
    assert replace(mine).done == {"": "embedding"}
    ids = jnp.array([[0, 6, -1], [3, 3, 7]])
    np.testing.assert_array_equal(mine(ids), original(ids))  # negative, and out of range
    np.testing.assert_array_equal(mine(ids.astype(jnp.uint8)), original(ids.astype(jnp.uint8)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)
    close(mine.attend(x), original.attend(x))
    assert np.array_equal(mine.attend(x), bj.linear(x, mine.embedding[...]))
    with pytest.raises(ValueError, match="integer"):
        mine(x)
    one, first = (nnx.Embed(1, 4, rngs=nnx.Rngs(0)) for _ in range(2))
    replace(one)
    np.testing.assert_array_equal(one(ids), first(ids))


def test_attention() -> None:
    make = partial(nnx.MultiHeadAttention, 2, 8, decode=False, normalize_qk=True)
    mine, original = (make(rngs=nnx.Rngs(0)) for _ in range(2))
    replaced = replace(mine)
    assert replaced.done["attention_fn"] == "attention"
    assert [*replaced.done.values()].count("linear") == 4
    assert not replaced.left
    assert replace(mine).before == replaced.done
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 8)), jnp.float32)
    mask = jnp.tril(jnp.ones((5, 5)))
    for named in ({}, {"mask": mask}, {"is_causal": True}):
        close(mine(x, **named), original(x, **named))
    replaced.undo()
    np.testing.assert_array_equal(mine(x), original(x))
    assert mine.attention_fn is nnx.dot_product_attention


def test_dropout_of_attention_stays() -> None:
    make = partial(nnx.MultiHeadAttention, 2, 8, decode=False, dropout_rate=0.5)
    mine, original = (make(rngs=nnx.Rngs(0)) for _ in range(2))
    replace(mine)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 8)), jnp.float32)
    for mode in (True, False):
        close(mine(x, deterministic=mode), original(x, deterministic=mode))


@pytest.mark.parametrize("function", ["silu", "sigmoid", "tanh", "leaky_relu", "elu", "hard_swish"])
def test_activations(function: str) -> None:
    model = nnx.Sequential(getattr(nnx, function))
    replaced = replace(model)
    assert list(replaced.done) == ["layers.0"]
    x = jnp.linspace(-8.0, 8.0, 30)
    close(model(x), getattr(nnx, function)(x))


def other_product(*given: Any, **named: Any) -> Any:
    return jax.lax.dot_general(*given, **named) * 2


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (partial(nnx.Linear, 2, 3, dot_general=other_product), "dot_general is given"),
        (
            partial(nnx.Linear, 2, 3, param_dtype=jnp.int8, kernel_init=nnx.initializers.ones),
            "its parameters are no",
        ),
        (partial(nnx.Conv, 2, 3, 2, conv_general_dilated=other_product), "conv_general_dilated is"),
        (partial(nnx.ConvTranspose, 2, 3, 2, padding="CIRCULAR"), "padding is 'CIRCULAR'"),
        (partial(nnx.BatchNorm, 2, axis=(0, 1)), "axis is (0, 1), expected one dimension"),
        (partial(nnx.GroupNorm, 4, 2, reduction_axes=(-1,)), "reduction_axes is given"),
        (partial(nnx.GroupNorm, 4, 2, epsilon=0.0), "epsilon is 0.0, expected a positive"),
        (partial(nnx.LinearGeneral, 2, 3, batch_axis={0: 4}), "batch_axis is given"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_layers_that_stay(make: Any, why: str) -> None:
    replaced = replace(make(rngs=nnx.Rngs(0)))
    assert not replaced.done
    assert replaced.left[""].startswith(why)


def test_settings_may_change() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6)), jnp.float32)
    mine, original = (nnx.LayerNorm(6, rngs=nnx.Rngs(0)) for _ in range(2))
    linear = nnx.Linear(6, 3, rngs=nnx.Rngs(0))
    replace(mine)
    replace(linear)
    linear.dot_general = other_product
    mine.epsilon = original.epsilon = 0.5
    close(mine(x), original(x))
    mine.reduction_axes = original.reduction_axes = (0, 1)
    np.testing.assert_array_equal(mine(x), original(x))
    close(linear(x), 2 * (x @ linear.kernel[...]))
    assert np.array_equal(mine(x, mask=x > 0), original(x, mask=x > 0))


def test_running_statistics_of_both_rules() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    flax, torchs, original = (nnx.BatchNorm(3, momentum=0.5, rngs=nnx.Rngs(0)) for _ in range(3))
    replace(flax)
    replace(torchs, unbiased=True)
    for layer in (flax, torchs, original):
        layer(x)
    close(flax.var[...], original.var[...])
    close(torchs.var[...], 0.5 + 0.5 * np.var(np.asarray(x), 0, ddof=1))
    close(torchs.mean[...], original.mean[...])
    given = jnp.zeros(3), jnp.ones(3)
    own = bj.batch_norm(x, *given, training=True, momentum=0.5, unbiased=True)
    assert np.array_equal(own[2], torchs.var[...])
    with pytest.raises(TypeError, match="batch_norm: unbiased is 1, expected True"):
        bj.batch_norm(x, *given, training=True, unbiased=1)  # type: ignore[arg-type]


def test_kinds_can_be_left_out() -> None:
    model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    assert replace(model, products=False).done == {"layers.1": "batch_norm"}
    assert bridge.jax.nnx.replace(model, norms=False).done == {"layers.0": "linear"}
