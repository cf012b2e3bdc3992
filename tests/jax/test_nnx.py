"""The modules of Flax NNX: parameters, streams of seeds, and NNX's transforms."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bridge.jax as bj
from bridge.jax.nnx import BiasDropoutAdd, BiasGELU, FusedScaleMaskSoftmax, LayerNorm, RMSNorm
from tests.jax.cases import plain_softmax


class Block(nnx.Module):
    """A part of a transformer with all three modules."""

    def __init__(self, features: int, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(features, features, use_bias=False, rngs=rngs)
        self.gelu = BiasGELU(features, rngs=rngs)
        self.softmax = FusedScaleMaskSoftmax("causal", 0.5)
        self.bias = nnx.Param(jnp.zeros(features))
        self.add = BiasDropoutAdd(0.25, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.gelu(self.linear(x))
        scores = self.softmax(hidden @ hidden.T)
        return self.add(scores @ hidden, self.bias[...], x)


@pytest.fixture
def block() -> Block:
    return Block(6, nnx.Rngs(0, dropout=1))


@pytest.fixture
def x(rng: np.random.Generator) -> jax.Array:
    return jnp.asarray(rng.standard_normal((4, 6)), jnp.float32)


def test_bias_gelu(x: jax.Array) -> None:
    layer = BiasGELU(6, approximate="none", bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(3))
    assert layer.bias.shape == (6,)
    np.testing.assert_array_equal(layer(x), bj.bias_gelu(x, layer.bias[...], approximate="none"))
    np.testing.assert_array_equal(BiasGELU(6, rngs=nnx.Rngs(0)).bias[...], 0.0)
    without = BiasGELU(6, use_bias=False, rngs=nnx.Rngs(0))
    assert without.bias is None
    np.testing.assert_array_equal(without(x), bj.bias_gelu(x))
    half = BiasGELU(6, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert half.bias.dtype == jnp.float32
    assert half(x).dtype == jnp.bfloat16
    assert BiasGELU(6, param_dtype=jnp.float16, rngs=nnx.Rngs(0)).bias.dtype == jnp.float16


def test_bias_dropout_add_takes_its_seeds_from_the_stream(x: jax.Array) -> None:
    layer = BiasDropoutAdd(0.5, rngs=nnx.Rngs(dropout=7))
    stream = nnx.Rngs(dropout=7).dropout.fork()
    bias = jnp.arange(6.0)
    for _ in range(3):
        expected = bj.bias_dropout_add(x, bias, x, p=0.5, seed=stream())
        np.testing.assert_array_equal(layer(x, bias, x), expected)
    own = layer(x)
    assert (own != layer(x)).any()
    key = jax.random.key(2)
    expected = bj.bias_dropout_add(x, p=0.5, seed=key)
    np.testing.assert_array_equal(layer(x, rngs=key), expected)
    named = BiasDropoutAdd(0.5, rng_collection="noise")
    np.testing.assert_array_equal(
        named(x, rngs=nnx.Rngs(noise=4)), named(x, rngs=nnx.Rngs(noise=4).noise)
    )


def test_deterministic_as_in_dropout(x: jax.Array, block: Block) -> None:
    layer = BiasDropoutAdd(0.5, deterministic=True)
    np.testing.assert_array_equal(layer(x, None, x), 2 * x)
    np.testing.assert_array_equal(BiasDropoutAdd(0.0)(x), x)  # needs no stream
    block.eval()
    assert block.add.deterministic
    np.testing.assert_array_equal(block(x), block(x))
    block.train()
    assert (block(x) != block(x)).any()
    quiet = nnx.view(block, deterministic=True)
    np.testing.assert_array_equal(quiet(x), quiet(x))
    with pytest.raises(ValueError, match="deterministic is None in the constructor and in the"):
        BiasDropoutAdd(0.5, deterministic=None)(x)
    with pytest.raises(ValueError, match="rngs is None in the constructor and in the call"):
        BiasDropoutAdd(0.5)(x)


def test_jit_advances_the_stream(block: Block, x: jax.Array) -> None:
    twin = Block(6, nnx.Rngs(0, dropout=1))
    traces = []

    @nnx.jit
    def forward(model: Block, x: jax.Array) -> jax.Array:
        traces.append(None)
        return model(x)

    for _ in range(3):
        np.testing.assert_allclose(forward(block, x), twin(x), rtol=1e-5, atol=1e-6)
    assert len(traces) == 1


def test_gradients(block: Block, x: jax.Array) -> None:
    twin = Block(6, nnx.Rngs(0, dropout=1))

    def loss(model: Block, x: jax.Array) -> jax.Array:
        return (model(x) ** 2).sum()

    gradients = nnx.jit(nnx.grad(loss))(block, x)
    expected = nnx.grad(loss)(twin, x)
    assert set(nnx.to_pure_dict(gradients)) == {"linear", "gelu", "bias"}
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        assert np.abs(a).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_split_and_merge(block: Block, x: jax.Array) -> None:
    definition, parameters, rest = nnx.split(block, nnx.Param, ...)

    @jax.jit
    def forward(parameters: Any, rest: Any, x: jax.Array) -> Any:
        model = nnx.merge(definition, parameters, rest)
        return model(x), nnx.state(model, nnx.Not(nnx.Param))

    first, rest = forward(parameters, rest, x)
    second, _ = forward(parameters, rest, x)
    assert (first != second).any()
    twin = Block(6, nnx.Rngs(0, dropout=1))
    for value in (first, second):
        np.testing.assert_allclose(value, twin(x), rtol=1e-5, atol=1e-6)


def test_vmap_over_split_streams(x: jax.Array) -> None:
    layer = BiasDropoutAdd(0.5)

    @nnx.split_rngs(splits=4)
    @nnx.vmap(in_axes=(0, 0))
    def rows(rngs: nnx.Rngs, x: jax.Array) -> jax.Array:
        return layer(x, rngs=rngs)

    y = rows(nnx.Rngs(dropout=0), jnp.ones((4, 64)))
    assert len({row.tobytes() for row in np.asarray(y)}) == 4


def test_softmax(rng: np.random.Generator) -> None:
    scores = jnp.asarray(rng.standard_normal((2, 3, 4, 6)), jnp.float32)
    mask = jnp.asarray(rng.random((2, 1, 4, 6)) < 0.3)
    away = np.arange(6) - np.arange(4)[:, None] - 2
    for kind in ("padding", "causal", SimpleNamespace(name="padding_causal"), "arbitrary"):
        causal = "causal" in getattr(kind, "name", kind)
        for window, outside in (
            (None, np.zeros((4, 6), bool)),
            ((1, 0), (away < -1) | (away > 0)),
            ((-1, 1), away > 1),
        ):
            layer = FusedScaleMaskSoftmax(kind, 0.5, window)
            np.testing.assert_allclose(
                layer(scores), plain_softmax(scores, outside, 0.5, causal), rtol=1e-5, atol=1e-7
            )
            for given in (mask, mask.astype(jnp.uint8) * 7):
                np.testing.assert_allclose(
                    layer(scores, given),
                    plain_softmax(scores, mask | outside, 0.5, causal),
                    rtol=1e-5,
                    atol=1e-7,
                )
    np.testing.assert_array_equal(FusedScaleMaskSoftmax()(scores), bj.scaled_softmax(scores))
    sink = jnp.asarray(rng.standard_normal(3), jnp.float32)
    np.testing.assert_array_equal(
        FusedScaleMaskSoftmax("causal", 0.5)(scores, mask, softmax_offset=sink),
        bj.scaled_masked_softmax(scores, mask | (away > 0), 0.5, sink=sink),
    )
    with pytest.raises(ValueError, match="attn_mask_type is 'slanted', expected one of 'padding'"):
        FusedScaleMaskSoftmax("slanted")
    with pytest.raises(ValueError, match=r"window_size is \(1,\), expected a pair of integers"):
        FusedScaleMaskSoftmax(window_size=(1,))
    with pytest.raises(TypeError, match="FusedScaleMaskSoftmax: mask has dtype int32, expected"):
        FusedScaleMaskSoftmax()(scores, jnp.zeros((4, 6), jnp.int32))


@pytest.mark.parametrize("shape", [(4, 6), (6,), (2, 1, 4, 6), ()])
def test_softmax_without_promotion(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    scores = jnp.asarray(rng.standard_normal((2, 3, 4, 6)), jnp.float32)
    mask = jnp.asarray(rng.random(shape) < 0.3)
    layer = FusedScaleMaskSoftmax("causal", 0.5, (np.int64(1), 2))
    expected = layer(scores, mask), layer(scores, mask, jnp.ones(3))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for given in (mask, mask.astype(jnp.uint8) * 7):
            np.testing.assert_array_equal(layer(scores, given), expected[0])
            np.testing.assert_array_equal(layer(scores, given, jnp.ones(3)), expected[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", None])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("ours", "flax"), [(LayerNorm, nnx.LayerNorm), (RMSNorm, nnx.RMSNorm)])
def test_norms_return_the_dtype_that_flax_returns(
    ours: Any, flax: Any, own: bool, dtype: Any, rng: np.random.Generator
) -> None:
    """A user's `promote_dtype` gives the dtype of the computation; the result has `dtype`."""
    options: dict[str, Any] = {"dtype": None if dtype is None else jnp.dtype(dtype)}
    if own:
        options["promote_dtype"] = lambda arrays, dtype: tuple(
            None if a is None else a.astype(jnp.float32) for a in arrays
        )
    x = jnp.asarray(rng.normal(size=(5, 24)), dtype or "float32")
    layer, original = (module(24, rngs=nnx.Rngs(0), **options) for module in (ours, flax))
    y, expected = layer(x), original(x)
    assert y.dtype == expected.dtype
    bound = 4 * float(jnp.finfo(expected.dtype).eps)
    close = jnp.abs(y.astype(float) - expected.astype(float)) <= bound * jnp.abs(expected).max()
    assert bool(close.all())
    y, h = layer(x, residual=x)
    assert y.dtype == h.dtype == expected.dtype


def test_without_flax_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bridge.jax.nnx")
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=r"needs flax, .* pip install 'flax>="):
        import bridge.jax.nnx  # noqa: F401
