"""Small language models in torch and their ports, with places for mistakes.

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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Decoder(nn.Module):
    """A decoder of two layers with grouped queries, rotary positions, a window, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.layers = nn.ModuleList([DecoderLayer() for _ in range(2)])
        self.norm = nn.RMSNorm(32, eps=1e-6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        n = ids.shape[1]
        angles = torch.arange(n)[:, None] * 0.1 ** (torch.arange(4) / 2)
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        apart = torch.arange(n)[:, None] - torch.arange(n)
        mask = (apart >= 0) & (apart < 5)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x) @ self.embed.weight.T


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.q, self.k = nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False)
        self.v, self.o = nn.Linear(32, 16, bias=False), nn.Linear(32, 32, bias=False)
        self.up, self.gate = nn.Linear(32, 48), nn.Linear(32, 48)
        self.down = nn.Linear(48, 32)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, n, d = x.shape
        y = self.norm(x)
        q = self.q(y).view(b, n, 4, 8).transpose(1, 2)
        k = self.k(y).view(b, n, 2, 8).transpose(1, 2)
        v = self.v(y).view(b, n, 2, 8).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def rms_norm(p: Params, name: str, x: Any) -> Any:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p[name + ".weight"]


def rotary(x: Any, cos: Any, sin: Any, m: str) -> Any:
    if m == "interleaved":
        a, b = x[..., ::2], x[..., 1::2]  # plant: interleaved
        c, s = cos[:, None, :4], sin[:, None, :4]
        return jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)  # plant: interleaved
    turned = jnp.concatenate([-x[..., 4:], x[..., :4]], -1)
    return x * cos[:, None] + turned * sin[:, None]


def decoder_layer(p: Params, name: str, x: Any, tables: Any, m: str, form: str) -> Any:
    b, n, d = x.shape
    cos, sin, mask = tables
    y = rms_norm(p, name + "norm", x)
    q = (y @ p[name + "q.weight"].T).reshape(b, n, 4, 8)
    k = (y @ p[name + "k.weight"].T).reshape(b, n, 2, 8)
    v = (y @ p[name + "v.weight"].T).reshape(b, n, 2, 8)
    q, k = rotary(q, cos, sin, m), rotary(k, cos, sin, m)
    if form == "grouped":
        scores = jnp.einsum("bqghd,bkgd->bghqk", q.reshape(b, n, 2, 2, 8), k) * 8**-0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        mixed = jnp.einsum("bghqk,bkgd->bqghd", weights, v).reshape(b, n, d)
    else:
        k, v = jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
        scores = jnp.where(mask, scores, -1e30)  # plant: mask, window
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(b, n, d)
    x = x + mixed @ p[name + "o.weight"].T
    gate = x @ p[name + "gate.weight"].T + p[name + "gate.bias"]
    up = x @ p[name + "up.weight"].T + p[name + "up.bias"]
    return x + (jax.nn.silu(gate) * up) @ p[name + "down.weight"].T + p[name + "down.bias"]


def decoder(p: Params, ids: Any, m: str = "", form: str = "") -> Any:
    x = p["embed.weight"][ids]
    n = ids.shape[1]
    angles = jnp.arange(n)[:, None] * 0.1 ** (jnp.arange(4) / 2)
    angles = jnp.concatenate([angles, angles], -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if m == "rounded":
        cos, sin = cos.astype(jnp.bfloat16), sin.astype(jnp.bfloat16)  # plant: rounded
    apart = jnp.arange(n)[:, None] - jnp.arange(n)
    mask = (apart >= (1 if m == "mask" else 0)) & (apart < (6 if m == "window" else 5))
    if m == "mask":
        mask = mask | (apart == 0) & (jnp.arange(n) == 0)
    for i in range(2):
        if form == "remat":
            x = jax.checkpoint(
                lambda x, i=i: decoder_layer(p, f"layers.{i}.", x, (cos, sin, mask), m, "")
            )(x)
        else:
            x = decoder_layer(p, f"layers.{i}.", x, (cos, sin, mask), m, form)
    x = rms_norm(p, "norm", x)
    if m == "untied":
        return x @ p["head"].T  # plant: untied
    return x @ p["embed.weight"].T


class EncoderDecoder(nn.Module):
    """An encoder with relative positions and a decoder that looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.bias = nn.Embedding(8, 2)
        self.enc, self.dec = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.embed(source)
        n = source.shape[1]
        apart = (torch.arange(n)[:, None] - torch.arange(n)).clamp(-3, 4) + 3
        q, k, v = self.enc(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) + self.bias(apart).permute(2, 0, 1)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        y = self.dec(self.embed(target))
        y = y + (y @ x.transpose(1, 2)).softmax(-1) @ x
        return F.cross_entropy(
            (y @ self.embed.weight.T).flatten(0, 1), target.flatten(), label_smoothing=0.1
        )


def encoder_decoder(p: Params, source: Any, target: Any, m: str = "") -> Any:
    x = p["embed.weight"][source]
    n = source.shape[1]
    apart = jnp.clip(jnp.arange(n)[:, None] - jnp.arange(n), -3, 4) + 3
    qkv = x @ p["enc.weight"].T + p["enc.bias"]
    q, k, v = (qkv.reshape(*x.shape[:2], 3, 2, 8)[:, :, i] for i in range(3))
    bias = p["bias.weight"][apart].transpose(2, 0, 1)
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias, -1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    y = p["embed.weight"][target] @ p["dec.weight"].T + p["dec.bias"]
    y = y + jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", y, x), -1) @ x
    logs = jax.nn.log_softmax(y @ p["embed.weight"].T, -1)
    picked = jnp.take_along_axis(logs, target[..., None], -1)[..., 0]
    if m == "smoothing":
        return -picked.mean()  # plant: smoothing
    return -(0.9 * picked + 0.1 * logs.mean(-1)).mean()


class Experts(nn.Module):
    """A mixture of four experts, of which each token takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == k)
            out.index_add_(0, row, expert(x[row]) * weights[row, slot, None])
        return out


def experts(p: Params, x: Any, m: str = "") -> Any:
    gates = jax.nn.softmax(x @ p["router.weight"].T, -1)
    weights, chosen = jax.lax.top_k(gates, 2)
    if m != "router":
        weights = weights / weights.sum(-1, keepdims=True)
    w = jnp.stack([p[f"experts.{k}.weight"] for k in range(4)])
    b = jnp.stack([p[f"experts.{k}.bias"] for k in range(4)])
    each = jnp.einsum("nd,kod->nko", x, w) + b
    picked = jnp.take_along_axis(each, chosen[..., None], 1)
    return (picked * weights[..., None]).sum(1)  # plant: router


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def recurrent(p: Params, x: Any, m: str = "") -> Any:
    bias = p["lstm.bias_ih_l0"] + p["lstm.bias_hh_l0"]

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        gates = row @ p["lstm.weight_ih_l0"].T + h @ p["lstm.weight_hh_l0"].T + bias
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * (c if m == "cell" else jnp.tanh(c))  # plant: cell
        return (h, c), h

    zero = jnp.zeros((len(x), 12), x.dtype)
    _, rows = jax.lax.scan(step, (zero, zero), x.swapaxes(0, 1))
    return rows.swapaxes(0, 1)


def params_of(model: nn.Module, dtype: Any = None) -> Params:
    """Gives all parameters random numbers, and returns them for JAX."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.randn_like(value) * 0.4 + ("norm" in name or "bn" in name))
        for _, value in model.named_buffers():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5)
    if dtype is not None:
        model.to(dtype)
    return {
        name: jnp.asarray(value.detach().float().numpy(), jnp.dtype(str(value.dtype)[6:]))
        for name, value in model.state_dict().items()
        if value.is_floating_point()
    }
