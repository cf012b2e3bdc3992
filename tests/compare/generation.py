"""A decoder step with caches that it writes in place, and a loop that generates text; their ports.

A line that ends in `# plant: name` is where the mistake of that name lies.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Params = dict[str, Any]
WIDTH, HEADS, PLACES, STEPS = 16, 2, 8, 6


class CachedStep(nn.Module):
    """Attention of one token with those before it, whose keys and values lie in caches."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.embed = nn.Embedding(20, WIDTH)
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.v, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, token: Tensor, place: Tensor, keys: Tensor, values: Tensor) -> Any:
        x = self.embed(token)
        q, k, v = (f(x).view(len(x), HEADS, -1) for f in (self.q, self.k, self.v))
        if self.way == "row":
            keys[:, place] = k
            values[:, place] = v
        else:
            keys.index_copy_(1, place.view(1), k[:, None])
            values.index_copy_(1, place.view(1), v[:, None])
        scores = torch.einsum("bhd,bnhd->bhn", q, keys) * (WIDTH // HEADS) ** -0.5
        scores = scores.masked_fill(torch.arange(PLACES) > place, float("-inf"))
        mixed = torch.einsum("bhn,bnhd->bhd", scores.softmax(-1), values)
        return (x + self.o(mixed.flatten(1))) @ self.embed.weight.T, keys, values


def cached_step(
    p: Params, token: Any, place: Any, keys: Any, values: Any, way: str, m: str = ""
) -> Any:
    x = p["embed.weight"][token]
    q, k, v = ((x @ p[f"{name}.weight"].T).reshape(len(x), HEADS, -1) for name in "qkv")
    at = place + (m == "position")
    if way == "update":
        keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, at, 0, 0))  # plant: position
        values = jax.lax.dynamic_update_slice(values, v[:, None], (0, at, 0, 0))  # plant: position
    elif way == "at":
        keys = keys.at[:, at].set(k)  # plant: position
        values = values.at[:, at].set(v)  # plant: position
    else:
        is_here = (jnp.arange(PLACES) == at)[:, None, None]
        keys = jnp.where(is_here, k[:, None], keys)  # plant: position
        values = jnp.where(is_here, v[:, None], values)  # plant: position
    scores = jnp.einsum("bhd,bnhd->bhn", q, keys) * (WIDTH // HEADS) ** -0.5
    scores = jnp.where(jnp.arange(PLACES) > place, -jnp.inf, scores)
    mixed = jnp.einsum("bhn,bnhd->bhd", jax.nn.softmax(scores, -1), values)
    x = x + mixed.reshape(len(x), WIDTH) @ p["o.weight"].T
    return x @ p["embed.weight"].T, keys, values


class Generator(nn.Module):
    """Returns tokens with the most likely next ones behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def logits(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.mix(x.mean(1, keepdim=True))
        x = x + self.down(F.gelu(self.up(x)))
        return x @ self.embed.weight.T

    def forward(self, ids: Tensor) -> Tensor:
        for _ in range(STEPS):
            token = self.logits(ids)[:, -1].argmax(-1)
            ids = torch.cat([ids, token[:, None]], 1)
        return ids


def logits(p: Params, x: Any, mean: Any, m: str) -> Any:
    x = x + mean @ p["mix.weight"].T
    inner = x @ p["up.weight"].T + p["up.bias"]
    inner = jax.nn.gelu(inner, approximate=m == "gelu")  # plant: gelu
    x = x + inner @ p["down.weight"].T + p["down.bias"]
    return x @ p["embed.weight"].T


def chosen(row: Any, m: str) -> Any:
    if m == "argmin":
        return jnp.argmin(row, -1)  # plant: argmin
    return jnp.argmax(row, -1)


def generated_by_scan(p: Params, ids: Any, m: str = "") -> Any:
    b, n = ids.shape

    def step(ids: Any, last: Any) -> Any:
        x = p["embed.weight"][ids]
        is_there = (jnp.arange(ids.shape[1]) <= last)[:, None]
        mean = jnp.where(is_there, x, 0).sum(1) / (last + 1)
        row = x[:, last - (m == "row")]  # plant: row
        token = chosen(logits(p, row, mean, m), m)
        return jax.lax.dynamic_update_slice(
            ids, token[:, None].astype(ids.dtype), (0, last + 1)
        ), None

    ids = jnp.concatenate([ids, jnp.zeros((b, STEPS), ids.dtype)], 1)
    return jax.lax.scan(step, ids, jnp.arange(n - 1, n - 1 + STEPS))[0]


def generated_by_a_loop(p: Params, ids: Any, m: str = "") -> Any:
    for _ in range(STEPS):
        x = p["embed.weight"][ids]
        x = logits(p, x, x.mean(1, keepdims=True), m)
        row = x[:, -2 if m == "row" else -1]  # plant: row
        ids = jnp.concatenate([ids, chosen(row, m)[:, None]], 1)
    return ids
