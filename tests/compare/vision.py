"""Small vision models in torch and their ports, with places for mistakes.

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
NHWC = ("NHWC", "HWIO", "NHWC")


class Block(nn.Module):
    """A transformer layer of a vision model."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.square = nn.Linear(d, d, bias=False)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.square(self.proj(mixed))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """A vision transformer of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.pos = nn.Parameter(torch.randn(1, 16, 24))
        self.blocks = nn.ModuleList([Block(24, 4) for _ in range(2)])
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(1)


def norm(p: Params, name: str, x: Any, m: str, eps: float = 1e-5) -> Any:
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    if m == "variance":
        var = jnp.var(x, -1, keepdims=True, ddof=1)  # plant: variance
    elif m == "fast variance":
        var = (x * x).mean(-1, keepdims=True) - mean * mean  # plant: fast variance
    else:
        var = (centred * centred).mean(-1, keepdims=True)
    if m == "eps":
        scaled = centred / jnp.sqrt(var + 1e-3)  # plant: eps
    elif m == "eps outside":
        scaled = centred / (jnp.sqrt(var) + eps)  # plant: eps outside
    else:
        scaled = centred / jnp.sqrt(var + eps)
    return scaled * p[name + ".weight"] + p[name + ".bias"]


def linear(p: Params, name: str, x: Any, form: str = "") -> Any:
    if form == "einsum":
        y = jnp.einsum("oi,...i->...o", p[name + ".weight"], x)
    else:
        y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def heads(x: Any, count: int, m: str) -> Any:
    b, n, d = x.shape
    if m == "heads":
        return x.reshape(b, n, d // count, count).swapaxes(2, 3)  # plant: heads
    return x.reshape(b, n, count, d // count)


def attention(p: Params, name: str, x: Any, m: str, form: str) -> Any:
    b, n, d = x.shape
    if form == "three products":
        weights = jnp.split(p[name + "qkv.weight"], 3)
        biases = jnp.split(p[name + "qkv.bias"], 3)
        q, k, v = (x @ w.T + c for w, c in zip(weights, biases, strict=True))
    else:
        q, k, v = jnp.split(linear(p, name + "qkv", x, form), 3, -1)
    q, k, v = (heads(t, 4, m) for t in (q, k, v))
    if form == "fused attention":
        return jax.nn.dot_product_attention(q, k, v).reshape(b, n, d)
    if m == "swap":
        scores = jnp.einsum("bqhd,bkhd->bhqk", k, q) / (d // 4) ** 0.5  # plant: swap
    elif m == "scale":
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)  # plant: scale
    elif form == "einsum":
        scores = jnp.einsum("bkhd,bqhd->bhqk", k, q / (d // 4) ** 0.5)
    else:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (d // 4) ** 0.5
    if m == "softmax axis":  # noqa: SIM108 - the mistake has a line of its own
        weights = jax.nn.softmax(scores, 2)  # plant: softmax axis
    else:
        weights = jax.nn.softmax(scores, -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, n, d)


def block(p: Params, name: str, x: Any, m: str, form: str) -> Any:
    mixed = attention(p, name, norm(p, name + "norm1", x, m), m, form)
    if m == "bias":
        mixed = mixed @ p[name + "proj.weight"].T  # plant: bias
    else:
        mixed = linear(p, name + "proj", mixed, form)
    if m == "transposed":
        x = x + mixed @ p[name + "square.weight"]  # plant: transposed
    else:
        x = x + linear(p, name + "square", mixed, form)
    if m == "dropout":
        keep = jax.random.bernoulli(jax.random.key(0), 0.9, x.shape)  # plant: dropout
        x = jnp.where(keep, x / 0.9, 0)  # plant: dropout
    inner = linear(p, name + "fc1", norm(p, name + "norm2", x, ""), form)
    if m == "gelu":
        inner = jax.nn.gelu(inner, approximate=True)  # plant: gelu
    else:
        inner = jax.nn.gelu(inner, approximate=False)
    return x + linear(p, name + "fc2", inner, form)


def transformer(p: Params, x: Any, m: str = "", form: str = "") -> Any:
    kernel = p["patch.weight"].transpose(2, 3, 1, 0)
    x = jax.lax.conv_general_dilated(x, kernel, (4, 4), "VALID", dimension_numbers=NHWC)
    x = (x + p["patch.bias"]).reshape(len(x), 16, 24) + p["pos"]
    if form == "scan":
        rest = [name.removeprefix("blocks.0.") for name in p if name.startswith("blocks.0.")]
        stacked = {r: jnp.stack([p[f"blocks.{i}.{r}"] for i in range(2)]) for r in rest}
        x, _ = jax.lax.scan(lambda c, layer: (block(layer, "", c, m, ""), None), x, stacked)
    else:
        for i in range(2):
            x = block(p, f"blocks.{i}.", x, m, form)
    return norm(p, "norm", x, "").mean(1)


class Residual(nn.Module):
    """Convolutions, batch norm and pools, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=2, dilation=2, bias=False)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = x + self.bn2(self.conv2(x))
        return F.avg_pool2d(x, 3, 2, 1)


def batch_norm(p: Params, name: str, x: Any, m: str, is_training: bool) -> tuple[Any, Any, Any]:
    mean, var = p[name + ".running_mean"], p[name + ".running_var"]
    new_mean, new_var = mean, var
    if is_training:
        n = x.size // x.shape[-1]
        batch_mean = x.mean((0, 1, 2))
        batch_var = ((x - batch_mean) ** 2).mean((0, 1, 2))
        if m == "momentum":
            new_mean = 0.01 * batch_mean + 0.99 * mean  # plant: momentum
        else:
            new_mean = 0.1 * batch_mean + 0.9 * mean
        if m == "biased":
            new_var = 0.1 * batch_var + 0.9 * var  # plant: biased
        else:
            new_var = 0.1 * (batch_var * (n / (n - 1))) + 0.9 * var
        mean, var = batch_mean, batch_var
    y = (x - mean) / jnp.sqrt(var + 1e-5) * p[name + ".weight"] + p[name + ".bias"]
    return y, new_mean, new_var


def residual(p: Params, x: Any, m: str = "", is_training: bool = False) -> Any:
    kernel = p["conv1.weight"].transpose(2, 3, 1, 0)
    if m == "padding":
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=NHWC)  # plant: padding  # fmt: skip  # noqa: E501
    else:
        pads = ((1, 1), (1, 1))
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), pads, dimension_numbers=NHWC)
    x, mean1, var1 = batch_norm(p, "bn1", x, m, is_training)
    x = jax.nn.relu(x)
    kernel = p["conv2.weight"].transpose(2, 3, 1, 0)
    step, pad = ((1, 1), 1) if m == "dilation" else ((2, 2), 2)
    pads = ((pad, pad), (pad, pad))
    y = jax.lax.conv_general_dilated(x, kernel, (1, 1), pads, None, step, dimension_numbers=NHWC)  # plant: dilation  # fmt: skip  # noqa: E501
    y, mean2, var2 = batch_norm(p, "bn2", y, m, is_training)
    x = x + y
    window, strides, pads = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    total = jax.lax.reduce_window(x, 0.0, jax.lax.add, window, strides, pads)
    if m == "pool":
        ones = jnp.ones_like(x)
        x = total / jax.lax.reduce_window(ones, 0.0, jax.lax.add, window, strides, pads)  # plant: pool  # fmt: skip  # noqa: E501
    else:
        x = total / 9
    return (x, mean1, var1, mean2, var2) if is_training else x


class Resized(nn.Module):
    """Group norm and resizing, as in a U-Net, and a depthwise convolution, as in a ConvNeXt."""

    def __init__(self, mode: str, size: int, antialias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.GroupNorm(2, 8)
        self.mode, self.size, self.antialias = mode, size, antialias

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.conv(x)))
        return F.interpolate(x, (self.size,) * 2, mode=self.mode, antialias=self.antialias)


def resized(p: Params, x: Any, mode: str, size: int, m: str = "") -> Any:
    x = jax.lax.conv_general_dilated(
        x,
        p["conv.weight"].transpose(2, 3, 1, 0),
        (1, 1),
        ((3, 3), (3, 3)),
        dimension_numbers=NHWC,
        feature_group_count=8,
    )
    x = x + p["conv.bias"]
    b, h, w, c = x.shape
    groups = x.reshape(b, h, w, 2, c // 2)
    mean = groups.mean((1, 2, 4), keepdims=True)
    var = ((groups - mean) ** 2).mean((1, 2, 4), keepdims=True)
    x = ((groups - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
    x = jax.nn.silu(x * p["norm.weight"] + p["norm.bias"])
    shape = (b, size, size, c)
    if m == "bicubic":
        return jax.image.resize(x, shape, "cubic", antialias=False)  # plant: bicubic
    if m == "antialias":
        return jax.image.resize(x, shape, "linear", antialias=True)  # plant: antialias
    return jax.image.resize(x, shape, mode, antialias=False)
