"""Habits of published ports: caches, tables read while tracing, buckets, rotations in bfloat16."""

from __future__ import annotations

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bridge

LENGTH, WIDTH, HEADS = 9, 24, 3
X = np.random.default_rng(0).standard_normal((2, LENGTH, WIDTH)).astype(np.float32)


def weights_of(model: nn.Module) -> dict[str, Any]:
    return {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}


def randomized(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def lines(report: Any) -> list[str]:
    """Returns the last comment on each line of JAX that the report names."""
    return [part.jax.code.rpartition("# ")[2] for part in report.parts]


class Cached(nn.Module):
    """Reads keys and values from a cache of more rows than the text has."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        weights = torch.softmax(x @ self.key(x).mT, -1)
        return weights @ self.value(x)


CACHED = randomized(Cached())


def cached(x: Any, start: Any, mistake: str = "") -> Any:
    p = weights_of(CACHED)
    rows = jnp.zeros((x.shape[0], 16, WIDTH), x.dtype)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
    k = jax.lax.dynamic_update_slice(rows, x @ p["key.weight"].T + p["key.bias"], (0, start, 0))
    value = x @ p["value.weight"].T + p["value.bias"]
    if mistake:
        value = value * 1.25  # mistake
    v = jax.lax.dynamic_update_slice(rows, value, (0, start, 0))
    scores = jnp.einsum("bqc,bkc->bqk", x, k)
    is_filled = jnp.arange(16) < start + x.shape[1]
    return jax.nn.softmax(jnp.where(is_filled, scores, -jnp.inf)) @ v


@pytest.mark.parametrize("mistake", ["", "mistake"])
def test_indices_of_two_integer_types(mistake: str) -> None:
    start = jnp.zeros((), jnp.int32)
    with jax.enable_x64(True), pytest.raises(TypeError, match="integers of the same type"):
        cached(X, start)
    report = bridge.compare(CACHED, lambda x: cached(x, start, mistake), X * np.float32(1e-3))
    assert lines(report) == [mistake] * bool(mistake), str(report)
    assert any("traced in float32" in note for note in report.notes)


def test_a_number_in_the_code_is_none_of_float32_if_the_trace_is() -> None:
    report = bridge.compare(CACHED, lambda x: cached(x, jnp.int32(0)), X * np.float32(1e-3))
    assert not [note for note in report.notes if "held in float32" in note], report.notes
    assert report.error < 1e-12


class Predictor(nn.Module):
    """Puts one learned row behind the context for each position that is to be predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.last = nn.Parameter(torch.empty(1, 1, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([x, self.token.expand(x.shape[0], x.shape[1], WIDTH)], 1)
        return self.last(torch.tanh(rows * 0.5))


PREDICTOR = randomized(Predictor())


def predictor(x: Any, mistake: str = "") -> Any:
    p = weights_of(PREDICTOR)
    positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
    count = int(jnp.max(positions)) + 1
    rows = jnp.concatenate([x, jnp.tile(p["token"], (x.shape[0], count, 1))], 1)
    if mistake:
        rows = rows + 0.125  # mistake
    return jnp.tanh(rows * 0.5) @ p["last.weight"].T + p["last.bias"]


@pytest.mark.parametrize("mistake", ["", "mistake"])
def test_numbers_that_no_argument_changes_may_be_read(mistake: str) -> None:
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.make_jaxpr(predictor)(X)
    report = bridge.compare(PREDICTOR, lambda x: predictor(x, mistake), X)
    assert lines(report) == [mistake] * bool(mistake), str(report)
    number = inspect.getsourcelines(predictor)[1] + 3
    assert any(f"test_ports_of_others.py:{number} it reads" in note for note in report.notes)


class Buckets(nn.Module):
    """Adds a learned row by the distance to the first token: exact ones, then logarithmic ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        distance = torch.arange(x.shape[1])
        ratio = torch.log(distance.float() / 8) / math.log(128 / 8)
        large = torch.clamp(8 + (ratio * 8).long(), max=15)
        return x * 2 + self.table(torch.where(distance < 8, distance, large))


BUCKETS = randomized(Buckets())
LONG = np.random.default_rng(0).standard_normal((2, 40, WIDTH)).astype(np.float32)


def bucket(form: str, distance: Any) -> Any:
    if form == "float32 constant":
        ratio = jnp.log(distance.astype(jnp.float32) / 8) / math.log(128 / 8)
    elif form == "roots":
        ratio = 4 * jnp.log(jnp.sqrt(jnp.sqrt(distance / 8))) / jnp.log(128 / 8)
    elif form == "another base":
        ratio = jnp.log2(distance / 8) / jnp.log2(128 / 8)
    else:
        ratio = jnp.log(distance / 8) / jnp.log(128 / 8)
    scaled = ratio * 8
    if form == "mistake: rounded up":
        return 8 + jnp.ceil(scaled).astype(jnp.int32)  # mistake: rounded up
    if form == "mistake: another bucket":
        return 7 + scaled.astype(jnp.int32)  # mistake: another bucket
    return 8 + scaled.astype(jnp.int32)


def buckets(x: Any, form: str) -> Any:
    distance = jnp.arange(x.shape[1])
    large = jnp.minimum(bucket(form, jnp.maximum(distance, 1)), 15)
    return x * 2 + weights_of(BUCKETS)["table.weight"][jnp.where(distance < 8, distance, large)]


@pytest.mark.parametrize("form", ["", "float32 constant", "roots", "another base"])
def test_a_bucket_at_its_boundary_is_no_part(form: str) -> None:
    report = bridge.compare(BUCKETS, lambda x: buckets(x, form), LONG)
    assert not report.parts, str(report)


@pytest.mark.parametrize("form", ["mistake: rounded up", "mistake: another bucket"])
def test_another_bucket_is_a_part(form: str) -> None:
    report = bridge.compare(BUCKETS, lambda x: buckets(x, form), LONG)
    assert [part.jax.op for part in report.parts] == ["gather"], str(report)
    assert not [note for note in report.notes if "boundary" in note], report.notes


class Block(nn.Module):
    """Attention with rotary positions, but for the first token, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (HEADS, -1)).mT.mT for layer in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + self.o(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, rest = x.split((1, x.shape[-2] - 1), -2)
    a, b = rest.chunk(2, -1)
    return torch.cat([first, rest * cos + torch.cat([-b, a], -1) * sin], -2)


class Rotating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1] - 1, dtype=x.dtype)[:, None]
        angle = (position * 0.5 ** torch.arange(WIDTH // HEADS // 2)).repeat(1, 2)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin())
        return x


ROTATING = randomized(Rotating())
MISTAKES = ("q", "k", "cos", "sin", "gelu")


def rotating(x: Any, mistakes: tuple[str, ...]) -> Any:
    p = weights_of(ROTATING)
    position = jnp.arange(x.shape[1] - 1, dtype=x.dtype)[:, None]
    angle = jnp.tile(position * 0.5 ** jnp.arange(WIDTH // HEADS // 2), (1, 2))
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    for n in range(3):
        x = block(x, cos, sin, lambda name, n=n: p[f"blocks.{n}.{name}"], mistakes)
    return x


def block(x: Any, cos: Any, sin: Any, p: Any, mistakes: tuple[str, ...]) -> Any:
    def dense(x: Any, name: str) -> Any:
        return x @ p(f"{name}.weight").T + p(f"{name}.bias")

    def norm(x: Any, name: str) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-5) * p(f"{name}.weight") + p(f"{name}.bias")

    def turned(x: Any) -> Any:
        first, rest = jnp.split(x, [1], 1)
        a, b = jnp.split(rest, 2, -1)
        other = jnp.concatenate([-b, a], -1)
        rest = rest * cos[:, None] + other * sin[:, None]
        return jnp.concatenate([first, rest], 1).astype(v.dtype)

    y = norm(x, "norm1")
    q, k, v = (dense(y, name).reshape(*y.shape[:2], HEADS, -1) for name in "qkv")
    if "q" in mistakes:
        q = q.astype(jnp.bfloat16)  # q
    if "k" in mistakes:
        k = k.astype(jnp.bfloat16)  # k
    if "cos" in mistakes:
        cos = cos.astype(jnp.bfloat16)  # cos
    if "sin" in mistakes:
        sin = sin.astype(jnp.bfloat16)  # sin
    scores = jnp.einsum("bqhc,bkhc->bhqk", turned(q), turned(k)) / math.sqrt(WIDTH // HEADS)
    y = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + dense(y, "o")
    y = dense(norm(x, "norm2"), "fc1")
    y = jax.nn.gelu(y) if "gelu" in mistakes else jax.nn.gelu(y, approximate=False)  # gelu
    return x + dense(y, "fc2")


@pytest.mark.parametrize("count", range(len(MISTAKES) + 1))
def test_rotations_in_bfloat16_are_all_named_and_nothing_else(count: int) -> None:
    report = bridge.compare(ROTATING, lambda x: rotating(x, MISTAKES[:count]), X)
    assert lines(report) == list(MISTAKES[:count]), str(report)
    assert all(part.error < 0.02 for part in report.parts), str(report)
