"""The ratio of a sampler and a trainer is exactly 1 for every token.

A small GPT samples tokens in PyTorch, one at a time, against a cache of keys and values, for a
batch of 1 and a batch of 7. A trainer in JAX computes the log-probabilities of the same tokens on
whole sequences. In reinforcement learning exp(trainer − sampler) weights each token; with
bridge's products and attention it is 1, since a token's number depends on the tokens before it
alone: not on the batch, the cache, the length of the sequence or the framework.

    python examples/zero_log_ratio.py
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import bridge.jax as bj
import bridge.torch as bt

SYMBOLS, LAYERS, HEADS, KEY_HEADS, HEAD, INNER = 96, 2, 4, 2, 16, 176
WIDTH = HEADS * HEAD
PROMPT, LENGTH = 5, 70

Weights = dict[str, Any]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random weights of a decoder with grouped queries."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0.0, 0.2, shape).astype(np.float32)

    made = {"symbols": normal(SYMBOLS, WIDTH), "out": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        made |= {
            f"{layer}.in": np.ones(WIDTH, np.float32),
            f"{layer}.qkv": normal(WIDTH + 2 * KEY_HEADS * HEAD, WIDTH),
            f"{layer}.projection": normal(WIDTH, WIDTH),
            f"{layer}.mid": np.ones(WIDTH, np.float32),
            f"{layer}.up": normal(2 * INNER, WIDTH),
            f"{layer}.down": normal(WIDTH, INNER),
        }
    return made


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of the rotary embedding, `[LENGTH, HEAD / 2]`."""
    turned = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


class Cache:
    """The keys and values of all tokens so far, of each layer."""

    def __init__(self) -> None:
        self.tokens = 0
        self._of_layer: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def extended(self, layer: int, key: Any, value: Any) -> tuple[Any, Any]:
        if layer in self._of_layer:
            before = self._of_layer[layer]
            key, value = (
                torch.cat([old, new], -2) for old, new in zip(before, (key, value), strict=True)
            )
        self._of_layer[layer] = key, value
        return key, value


def logits(ops: Any, w: Weights, angles: Any, ids: Any, cache: Cache | None = None) -> Any:
    """Returns the logits after each token of `ids`, `[batch, tokens, SYMBOLS]`.

    Args:
      ops: bridge.torch or bridge.jax.
      angles: the tables, in the framework's arrays.
      cache: holds the tokens before `ids`, and gets these.
    """
    batch, tokens = ids.shape
    first = 0 if cache is None else cache.tokens
    cos, sin = (table[first : first + tokens] for table in angles)
    x = ops.embedding(ids, w["symbols"])
    for layer in range(LAYERS):
        h = ops.linear(ops.rms_norm(x, w[f"{layer}.in"]), w[f"{layer}.qkv"])
        h = h.reshape(batch, tokens, HEADS + 2 * KEY_HEADS, HEAD).swapaxes(1, 2)
        key, value = h[:, HEADS : HEADS + KEY_HEADS], h[:, HEADS + KEY_HEADS :]
        query, key = ops.rotary(h[:, :HEADS], cos, sin), ops.rotary(key, cos, sin)
        if cache is not None:
            key, value = cache.extended(layer, key, value)
        h = ops.attention(query, key, value, causal=True).swapaxes(1, 2).reshape(x.shape)
        x = x + ops.linear(h, w[f"{layer}.projection"])
        h = ops.swiglu(ops.linear(ops.rms_norm(x, w[f"{layer}.mid"]), w[f"{layer}.up"]))
        x = x + ops.linear(h, w[f"{layer}.down"])
    if cache is not None:
        cache.tokens += tokens
    return ops.linear(ops.rms_norm(x, w["out"]), w["symbols"])


@torch.no_grad()
def sample(w: Weights, batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples tokens one at a time; returns `[batch, LENGTH]` and their log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    angles = [torch.from_numpy(table) for table in tables()]
    ids = torch.randint(SYMBOLS, (batch, PROMPT), generator=generator)
    cache, found = Cache(), []
    last = logits(bt, w, angles, ids, cache)[:, -1]
    while ids.shape[1] < LENGTH:
        token = torch.multinomial(last.softmax(-1), 1, generator=generator)
        found.append(bt.token_log_probs(last, token[:, 0]))
        ids = torch.cat([ids, token], 1)
        last = logits(bt, w, angles, token, cache)[:, -1]
    return ids, torch.stack(found, 1)


@jax.jit
def trained(w: Weights, ids: Any) -> Any:
    """Returns the log-probability of each token after the prompt, on whole sequences."""
    found = logits(bj, w, tuple(map(jnp.asarray, tables())), ids)
    return bj.token_log_probs(found[:, PROMPT - 1 : -1], ids[:, PROMPT:])


def ratios(batch: int, seed: int = 0) -> np.ndarray:
    """Returns exp(trainer − sampler) for every sampled token."""
    made = weights(seed)
    in_torch = {name: torch.from_numpy(value) for name, value in made.items()}
    ids, sampled = sample(in_torch, batch, seed)
    in_jax = {name: jnp.asarray(value) for name, value in made.items()}
    computed = np.asarray(trained(in_jax, jnp.asarray(ids.numpy().astype(np.int32))))
    assert np.array_equal(computed, sampled.numpy()), "the log-probabilities differ"
    return np.exp(computed - sampled.numpy())


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for batch in (1, 7):
        found = ratios(batch)
        print(
            f"batch {batch}: {found.size} tokens sampled in PyTorch and scored in JAX, ratio from "
            f"{found.min()} to {found.max()}"
        )
        assert (found == 1).all()


if __name__ == "__main__":
    main()
