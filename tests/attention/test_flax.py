"""attention_fn in the place of Flax's own attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

nnx = pytest.importorskip("flax.nnx")

import bridge.jax  # noqa: E402
from bridge.jax.nnx import attention_fn  # noqa: E402


def drawn(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def test_layout_and_polarity(rng: np.random.Generator) -> None:
    q, k, v = drawn(rng, 2, 7, 4, 8), drawn(rng, 2, 9, 2, 8), drawn(rng, 2, 9, 2, 8)
    mask = jnp.asarray(rng.random((2, 1, 7, 9)) < 0.6).at[..., 0].set(True)
    ours = attention_fn(q, k, v, mask=mask)
    theirs = nnx.dot_product_attention(q, k, v, mask=mask)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    across = [x.swapaxes(1, 2) for x in (q, k, v)]
    assert np.array_equal(ours.swapaxes(1, 2), bridge.jax.attention(*across, mask=~mask))
    assert np.array_equal(ours, attention_fn(q, k, v, mask=mask.astype(jnp.float32)))


@pytest.mark.parametrize("keys", [5, 7, 9])
def test_causal_is_aligned_as_in_flax(keys: int, rng: np.random.Generator) -> None:
    q, k, v = drawn(rng, 2, 7, 4, 8), drawn(rng, 2, keys, 4, 8), drawn(rng, 2, keys, 4, 8)
    ours = attention_fn(q, k, v, is_causal=True)
    np.testing.assert_allclose(ours, nnx.dot_product_attention(q, k, v, is_causal=True), atol=2e-6)


def test_multi_head_attention_decodes_with_the_bits_of_the_whole(
    rng: np.random.Generator,
) -> None:
    """The products of the layers around are XLA's: each token goes through them alone."""
    length, d = 6, 16
    attend = nnx.MultiHeadAttention(
        4, d, rngs=nnx.Rngs(0), attention_fn=attention_fn, dropout_rate=0.5, deterministic=True
    )
    x = drawn(rng, 2, length, d)
    mask = nnx.make_causal_mask(x[..., 0])
    whole = attend(x, mask=mask, decode=False)
    plain = nnx.MultiHeadAttention(4, d, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(whole, plain(x, mask=mask, decode=False), atol=2e-6)
    attend.init_cache(x.shape)
    steps = [attend(x[:, i : i + 1], decode=True) for i in range(length)]
    np.testing.assert_allclose(jnp.concatenate(steps, 1), whole, atol=2e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bias": 0.0}, "bias is given, expected None"),
        ({"dropout_rate": 0.1}, "dropout_rate is 0.1 and deterministic is False, expected no"),
        ({"module": nnx.Module()}, "module is given, expected None"),
    ],
)
def test_refusals(given: dict[str, object], words: str) -> None:
    x = jnp.zeros((1, 2, 3, 4))
    with pytest.raises(ValueError, match=f"attention_fn: {words}"):
        attention_fn(x, x, x, **given)
    assert attention_fn(x, x, x, dropout_rate=0.1, deterministic=True).shape == x.shape
    rated = jax.jit(lambda rate: attention_fn(x, x, x, dropout_rate=rate, deterministic=True))
    assert rated(0.1).shape == x.shape
