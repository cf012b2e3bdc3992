"""ResNet-18, ConvNeXt-tiny, a vision transformer and a U-Net from Flax NNX, with small widths.

The modules have the names of those in `torch_models`. Pools and `interpolate` are functions in JAX,
which `replace` cannot reach, so the models call those of bridge.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

import bridge.jax as bj
from tools.demo.vision.scaling import scaled
from tools.demo.vision.torch_models import CLASSES

_erf_gelu = partial(nnx.gelu, approximate=False)
_Layer = partial(nnx.LayerNorm, epsilon=1e-6)


def conv(
    into: int, out: int, size: int, stride: int = 1, padding: int = 0, *, rngs: nnx.Rngs
) -> nnx.Conv:
    """A convolution without a bias: SAME would pad one side more than torch at stride 2."""
    sizes, pads = (size, size), [(padding, padding)] * 2
    return nnx.Conv(into, out, sizes, stride, padding=pads, use_bias=False, rngs=rngs)


def batch_norm(width: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """A batch norm with torch's eps and momentum, which is 1 − Flax's."""
    return nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, rngs=rngs)


class BasicBlock(nnx.Module):
    """Two convolutions and a residual branch."""

    def __init__(self, into: int, out: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv1 = conv(into, out, 3, stride, 1, rngs=rngs)
        self.conv2 = conv(out, out, 3, 1, 1, rngs=rngs)
        self.bn1, self.bn2 = batch_norm(out, rngs), batch_norm(out, rngs)
        self.is_narrow = stride == 1 and into == out
        if not self.is_narrow:
            self.down, self.bn = conv(into, out, 1, stride, rngs=rngs), batch_norm(out, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nnx.relu(y + (x if self.is_narrow else self.bn(self.down(x))))


class ResNet18(nnx.Module):
    """He et al., arXiv:1512.03385, with 8 channels in place of 64."""

    def __init__(self, width: int = 8, *, rngs: nnx.Rngs) -> None:
        self.conv1, self.bn1 = conv(3, width, 7, 2, 3, rngs=rngs), batch_norm(width, rngs)
        blocks, into = [], width
        for stage, out in enumerate(width * 2**i for i in range(4)):
            blocks += [BasicBlock(into, out, 2 if stage else 1, rngs)]
            blocks += [BasicBlock(out, out, 1, rngs)]
            into = out
        self.blocks, self.fc = nnx.List(blocks), nnx.Linear(into, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = bj.max_pool(nnx.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.fc(bj.adaptive_avg_pool(x, 1).reshape(len(x), -1))


class ConvNeXtBlock(nnx.Module):
    """A depthwise convolution and an MLP of each place."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(width, width, (7, 7), padding=3, feature_group_count=width, rngs=rngs)
        self.norm, self.act = _Layer(width, rngs=rngs), _erf_gelu
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.scale = nnx.Param(jnp.full(width, 0.1))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.down(self.act(self.up(self.norm(self.conv(x)))))
        return x + scaled(y, self.scale[...])


class ConvNeXtTiny(nnx.Module):
    """Liu et al., arXiv:2201.03545, with 8 channels in place of 96."""

    def __init__(
        self, width: int = 8, depths: tuple[int, ...] = (3, 3, 9, 3), *, rngs: nnx.Rngs
    ) -> None:
        self.stem = nnx.Conv(3, width, (4, 4), 4, padding=0, rngs=rngs)
        self.stem_norm = _Layer(width, rngs=rngs)
        widths = [width * 2**i for i in range(4)]
        self.norms = nnx.List([_Layer(w, rngs=rngs) for w in widths[:3]])
        self.downs = nnx.List(
            [nnx.Conv(w, 2 * w, (2, 2), 2, padding=0, rngs=rngs) for w in widths[:3]]
        )
        self.stages = nnx.List(
            [
                nnx.List([ConvNeXtBlock(w, rngs) for _ in range(depth)])
                for w, depth in zip(widths, depths, strict=True)
            ]
        )
        self.norm = _Layer(widths[-1], rngs=rngs)
        self.fc = nnx.Linear(widths[-1], CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem_norm(self.stem(x))
        for i, stage in enumerate(self.stages):
            if i:
                x = self.downs[i - 1](self.norms[i - 1](x))
            for block in stage:
                x = block(x)
        return self.fc(self.norm(bj.adaptive_avg_pool(x, 1).reshape(len(x), -1)))


class Layer(nnx.Module):
    """A layer of the transformer."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        norm = partial(nnx.LayerNorm, width, epsilon=1e-5, rngs=rngs)
        self.norm1, self.norm2, self.act = norm(), norm(), _erf_gelu
        self.attend = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class ViT(nnx.Module):
    """Dosovitskiy et al., arXiv:2010.11929, with a width of 32 and four layers."""

    def __init__(
        self,
        width: int = 32,
        layers: int = 4,
        heads: int = 4,
        places: int = 16,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.patches = nnx.Conv(3, width, (8, 8), 8, padding=0, rngs=rngs)
        self.first = nnx.Embed(1, width, rngs=rngs)
        self.places = nnx.Embed(places + 1, width, rngs=rngs)
        self.layers = nnx.List([Layer(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.fc = nnx.Linear(width, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.patches(x).reshape(len(x), -1, self.patches.out_features)
        ids = jnp.broadcast_to(jnp.arange(x.shape[1] + 1), (len(x), x.shape[1] + 1))
        # Rows of a table by number: the sum over the images is then the op's.
        x = jnp.concatenate([self.first(ids[:, :1] * 0), x], 1) + self.places(ids)
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.norm(x[:, 0]))


class Double(nnx.Module):
    """Two convolutions of a U-Net, each with its norm and activation."""

    def __init__(self, into: int, out: int, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(into, out, (3, 3), padding=1, rngs=rngs)
        self.conv2 = nnx.Conv(out, out, (3, 3), padding=1, rngs=rngs)
        norm = partial(nnx.GroupNorm, out, 4, epsilon=1e-5, rngs=rngs)
        self.norm1, self.norm2, self.act = norm(), norm(), nnx.silu

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(x)))


class UNet(nnx.Module):
    """Ronneberger et al., arXiv:1505.04597, with two levels, GroupNorm and SiLU."""

    def __init__(self, width: int = 8, *, rngs: nnx.Rngs) -> None:
        self.first, self.second = Double(3, width, rngs), Double(width, 2 * width, rngs)
        self.deep = Double(2 * width, 4 * width, rngs)
        self.up = nnx.ConvTranspose(
            4 * width,
            2 * width,
            (2, 2),
            (2, 2),
            padding="VALID",
            transpose_kernel=True,
            rngs=rngs,
        )
        self.narrow = nnx.Conv(2 * width, width, (1, 1), rngs=rngs)
        self.back2, self.back1 = (
            Double(4 * width, 2 * width, rngs),
            Double(2 * width, width, rngs),
        )
        self.head = nnx.Conv(width, CLASSES, (1, 1), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        first = self.first(x)
        second = self.second(bj.max_pool(first, 2))
        x = self.up(self.deep(bj.max_pool(second, 2)))
        x = self.back2(jnp.concatenate([second, x], -1))
        x = self.narrow(bj.interpolate(x, scale_factor=2, mode="bilinear"))
        return self.head(self.back1(jnp.concatenate([first, x], -1)))
