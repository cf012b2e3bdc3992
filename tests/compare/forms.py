"""Right ports of the models in `vision` and `language`, each with other operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compare import language, vision
from tests.compare.vision import NHWC, Params

NCHW = ("NCHW", "OIHW", "NCHW")


class ConvNeXt(nn.Module):
    """A block of a ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.gamma = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def depthwise(p: Params, x: Any, form: str) -> Any:
    weight, bias = p["conv.weight"], p["conv.bias"]
    if form == "shifts":
        padded = jnp.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0)))
        h, w = x.shape[1:3]
        y = sum(
            padded[:, i : i + h, k : k + w] * weight[:, 0, i, k] for i in range(7) for k in range(7)
        )
        return y + bias
    pads = ((3, 3), (3, 3))
    if form == "NCHW":
        y = jax.lax.conv_general_dilated(
            x.transpose(0, 3, 1, 2), weight, (1, 1), pads, dimension_numbers=NCHW,
            feature_group_count=8,
        )  # fmt: skip
        return (y + bias[:, None, None]).transpose(0, 2, 3, 1)
    kernel = weight.transpose(2, 3, 1, 0)
    return bias + jax.lax.conv_general_dilated(
        x, kernel, (1, 1), pads, dimension_numbers=NHWC, feature_group_count=8
    )


def convnext(p: Params, x: Any, form: str = "") -> Any:
    y = depthwise(p, x, form)
    mean = y.mean(-1, keepdims=True)
    if form == "rsqrt":
        y = (y - mean) * (jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-6) * p["norm.weight"])
        y = y + p["norm.bias"]
    else:
        var = (y * y).mean(-1, keepdims=True) - mean * mean
        y = (y - mean) / jnp.sqrt(var + 1e-6) * p["norm.weight"] + p["norm.bias"]
    y = y @ p["up.weight"].T + p["up.bias"]
    if form == "shifts":
        y = y * (0.5 * jax.lax.erfc(y * -(0.5**0.5)))
    elif form == "rsqrt":
        y = 0.5 * y * (1 + jax.lax.erf(y / 2**0.5))
    else:
        y = jax.nn.gelu(y, approximate=False)
    if form == "folded scale":
        weight, bias = p["down.weight"] * p["gamma"][:, None], p["down.bias"] * p["gamma"]
        return x + (y @ weight.T + bias)
    return x + (jnp.einsum("bhwi,oi->bhwo", y, p["down.weight"]) + p["down.bias"]) * p["gamma"]


def convolved(x: Any, weight: Any, stride: int, pad: int, dilation: int, form: str) -> Any:
    pads, steps, holes = ((pad, pad),) * 2, (stride,) * 2, (dilation,) * 2
    if form == "NCHW":
        y = jax.lax.conv_general_dilated(
            x.transpose(0, 3, 1, 2), weight, steps, pads, None, holes, dimension_numbers=NCHW
        )
        return y.transpose(0, 2, 3, 1)
    if form == "patches":
        y = jax.lax.conv_general_dilated_patches(
            x, weight.shape[2:], steps, pads, rhs_dilation=holes, dimension_numbers=NHWC
        )
        return y @ weight.reshape(len(weight), -1).T
    if form == "shifts":
        padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        n = (x.shape[1] + 2 * pad - 2 * dilation - 1) // stride + 1
        last = stride * (n - 1) + 1
        return sum(
            padded[:, i * dilation :, k * dilation :][:, :last:stride, :last:stride]
            @ weight[:, :, i, k].T
            for i in range(3)
            for k in range(3)
        )
    kernel = weight.transpose(2, 3, 1, 0)
    return jax.lax.conv_general_dilated(x, kernel, steps, pads, None, holes, dimension_numbers=NHWC)


def residual(p: Params, x: Any, form: str = "") -> Any:
    def norm(name: str, x: Any) -> Any:
        if form in ("folded norm", "shifts"):
            scale = p[name + ".weight"] / jnp.sqrt(p[name + ".running_var"] + 1e-5)
            return x * scale + (p[name + ".bias"] - p[name + ".running_mean"] * scale)
        return vision.batch_norm(p, name, x, "", False)[0]

    x = jax.nn.relu(norm("bn1", convolved(x, p["conv1.weight"], 2, 1, 1, form)))
    x = x + norm("bn2", convolved(x, p["conv2.weight"], 1, 2, 2, form))
    if form in ("shifts", "folded norm"):
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return sum(padded[:, i : i + 7 : 2, k : k + 7 : 2] for i in range(3) for k in range(3)) / 9
    window, strides, pads = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x / 9, 0.0, jax.lax.add, window, strides, pads)


def resized(p: Params, x: Any, form: str = "", size: int = 24) -> Any:
    y = depthwise(p, x, form)
    b, h, w, c = y.shape
    if form == "two axes":
        groups = y.reshape(b, h * w, 2, c // 2)
        mean, var = (f(groups, (1, 3), keepdims=True) for f in (jnp.mean, jnp.var))
        y = ((groups - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(y.shape)
    else:
        groups = y.reshape(b, h, w, 2, c // 2)
        mean = jnp.einsum("bhwgc->bg", groups) / (h * w * c // 2)
        square = jnp.einsum("bhwgc,bhwgc->bg", groups, groups) / (h * w * c // 2)
        mean, root = (t[:, None, None, :, None] for t in (mean, jnp.sqrt(square - mean**2 + 1e-5)))
        y = ((groups - mean) / root).reshape(y.shape)
    y = y * p["norm.weight"] + p["norm.bias"]
    y = y / (1 + jnp.exp(-y)) if form == "two axes" else jax.nn.silu(y)
    if form in ("matrices", "shifts"):
        rows = jax.image.resize(jnp.eye(h), (size, h), "linear", antialias=False).astype(y.dtype)
        y = jnp.einsum("ih,bhwc->biwc", rows, y)
        return jnp.einsum("kw,biwc->bikc", rows, y)
    return jax.image.resize(y, (b, size, size, c), "linear", antialias=False)


def decoder(p: Params, ids: Any, form: str = "") -> Any:
    n = ids.shape[1]
    angles = jnp.arange(n)[:, None] * 0.1 ** (jnp.arange(4) / 2)
    table = jnp.exp(1j * angles)[:, None]
    apart = jnp.arange(n)[:, None] - jnp.arange(n)
    mask = (apart >= 0) & (apart < 5)

    def turned(x: Any) -> Any:
        y = (x[..., :4] + 1j * x[..., 4:]) * table
        return jnp.concatenate([y.real, y.imag], -1).astype(x.dtype)

    def layer(x: Any, own: Params) -> Any:
        y = language.rms_norm(own, "norm", x)
        shape = (*x.shape[:2], -1, 8)
        if form == "one product":
            every = y @ jnp.concatenate([own[f"{k}.weight"] for k in "qkv"]).T
            q, k, v = (t.reshape(shape) for t in jnp.split(every, [32, 48], -1))
        else:
            q, k, v = (jnp.einsum("oi,bni->bno", own[f"{t}.weight"], y) for t in "qkv")
            q, k, v = (t.reshape(shape) for t in (q, k, v))
        mixed = jax.nn.dot_product_attention(turned(q), turned(k), v, mask=mask[None, None])
        x = x + mixed.reshape(x.shape) @ own["o.weight"].T
        both = [
            jnp.concatenate([own[f"{k}.{t}"] for k in ("gate", "up")]) for t in ("weight", "bias")
        ]
        gate, up = jnp.split(x @ both[0].T + both[1], 2, -1)
        return x + (gate * jax.nn.sigmoid(gate) * up) @ own["down.weight"].T + own["down.bias"]

    def part(i: int) -> Params:
        start = f"layers.{i}."
        return {k.removeprefix(start): v for k, v in p.items() if k.startswith(start)}

    x = jax.nn.one_hot(ids, 40, dtype=p["embed.weight"].dtype) @ p["embed.weight"]
    if form == "scan":
        stacked = jax.tree_util.tree_map(lambda *layers: jnp.stack(layers), part(0), part(1))
        x, _ = jax.lax.scan(lambda x, own: (layer(x, own), None), x, stacked)
    else:
        x = layer(layer(x, part(0)), part(1))
    return jnp.einsum("vd,bnd->bnv", p["embed.weight"], language.rms_norm(p, "norm", x))


def encoder_decoder(p: Params, source: Any, target: Any, form: str = "") -> Any:
    def embedded(name: str, ids: Any) -> Any:
        if form == "one hot":
            weight = p[name + ".weight"]
            return jax.nn.one_hot(ids, len(weight), dtype=weight.dtype) @ weight
        return jnp.take(p[name + ".weight"], ids, 0)

    x = embedded("embed", source)
    b, n, d = x.shape
    apart = jnp.clip(jnp.arange(n)[:, None] - jnp.arange(n), -3, 4) + 3
    bias = embedded("bias", apart).transpose(2, 0, 1)
    if form == "three products":
        weights, biases = jnp.split(p["enc.weight"], 3), jnp.split(p["enc.bias"], 3)
        q, k, v = (x @ w.T + c for w, c in zip(weights, biases, strict=True))
    else:
        q, k, v = jnp.split(jnp.einsum("oi,bni->bno", p["enc.weight"], x) + p["enc.bias"], 3, -1)
    q, k, v = (t.reshape(b, n, 2, 8) for t in (q, k, v))
    if form == "fused attention":
        mixed = jax.nn.dot_product_attention(q, k, v, bias[None], scale=1.0)
    else:
        scores = jnp.einsum("bkhd,bqhd->bhqk", k, q) + bias
        powers = jnp.exp(scores - scores.max(-1, keepdims=True))
        mixed = jnp.einsum("bkhd,bhqk->bqhd", v, powers) / powers.sum(-1).swapaxes(1, 2)[..., None]
    x = x + mixed.reshape(b, n, d)
    y = embedded("embed", target) @ p["dec.weight"].T + p["dec.bias"]
    y = y + jax.nn.softmax(y @ x.swapaxes(1, 2), -1) @ x
    logits = y @ p["embed.weight"].T
    if form == "logsumexp":
        picked = jnp.take_along_axis(logits, target[..., None], -1)[..., 0]
        smooth = 0.9 * picked + 0.1 * logits.mean(-1)
        return (jax.scipy.special.logsumexp(logits, -1) - smooth).mean()
    wanted = 0.9 * jax.nn.one_hot(target, 30, dtype=logits.dtype) + 0.1 / 30
    return -(wanted * jax.nn.log_softmax(logits, -1)).sum(-1).mean()


def experts(p: Params, x: Any, form: str = "") -> Any:
    gates = jax.nn.softmax(x @ p["router.weight"].T, -1)
    weights, chosen = jax.lax.top_k(gates, 2)
    weights = weights / weights.sum(-1, keepdims=True)
    share = jnp.einsum("nk,nke->ne", weights, jax.nn.one_hot(chosen, 4, dtype=x.dtype))
    w = jnp.stack([p[f"experts.{k}.weight"] for k in range(4)])
    b = jnp.stack([p[f"experts.{k}.bias"] for k in range(4)])
    if form == "loop":
        out = jnp.zeros_like(x)
        for k in range(4):
            out = out + (x @ w[k].T + b[k]) * share[:, k, None]
        return out
    if form == "vmap":
        each = jax.vmap(lambda w, b: x @ w.T + b)(w, b)
        return jnp.einsum("eno,ne->no", each, share)
    if form == "scan":

        def add(out: Any, own: Any) -> Any:
            return out + (x @ own[0].T + own[1]) * own[2][:, None], None

        return jax.lax.scan(add, jnp.zeros_like(x), (w, b, share.T))[0]
    rows = jnp.einsum("nkoi,ni->nko", w[chosen], x) + b[chosen]
    return jnp.einsum("nko,nk->no", rows, weights)


def recurrent(p: Params, x: Any, form: str = "") -> Any:
    ours, theirs = p["lstm.weight_ih_l0"], p["lstm.weight_hh_l0"]
    bias = p["lstm.bias_ih_l0"] + p["lstm.bias_hh_l0"]
    every = x @ ours.T + p["lstm.bias_ih_l0"]

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        if form == "input first":
            gates = row + h @ theirs.T + p["lstm.bias_hh_l0"]
            i, f, g, o = jnp.split(gates, 4, -1)
        elif form == "four products":
            i, f, g, o = (
                row @ ours[k : k + 12].T + h @ theirs[k : k + 12].T + bias[k : k + 12]
                for k in range(0, 48, 12)
            )
        else:
            gates = jnp.concatenate([row, h], -1) @ jnp.concatenate([ours, theirs], 1).T + bias
            i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    rows = (every if form == "input first" else x).swapaxes(0, 1)
    zero = jnp.zeros((len(x), 12), x.dtype)
    if form == "loop":
        carry, found = (zero, zero), []
        for row in rows:
            carry, h = step(carry, row)
            found.append(h)
        return jnp.stack(found, 1)
    return jax.lax.scan(step, (zero, zero), rows)[1].swapaxes(0, 1)


# port: its forms beside the one in `vision` or `language`
FORMS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "convnext": (convnext, ["", "shifts", "NCHW", "rsqrt", "folded scale"]),
    "residual": (residual, ["NCHW", "patches", "shifts", "folded norm"]),
    "upsampled": (resized, ["two axes", "matrices", "shifts", "NCHW"]),
    "decoder": (decoder, ["", "one product", "scan"]),
    "encoder_decoder": (
        encoder_decoder,
        ["three products", "fused attention", "one hot", "logsumexp"],
    ),
    "experts": (experts, ["", "loop", "vmap", "scan"]),
    "recurrent": (recurrent, ["one product", "input first", "four products", "loop"]),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "convnext": ConvNeXt,
    "upsampled": partial(vision.Resized, "bilinear", 24),
}
