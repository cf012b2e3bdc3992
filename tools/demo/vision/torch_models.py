"""ResNet-18, ConvNeXt-tiny, a vision transformer and a U-Net from torch.nn, with small widths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.demo.vision.scaling import scaled

CLASSES = 10


def conv(into: int, out: int, size: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    return nn.Conv2d(into, out, size, stride, padding, bias=False)


class BasicBlock(nn.Module):
    """Two convolutions and a residual branch."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(into, out, 3, stride, 1), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = conv(out, out, 3, 1, 1), nn.BatchNorm2d(out)
        self.is_narrow = stride == 1 and into == out
        if not self.is_narrow:
            self.down, self.bn = conv(into, out, 1, stride), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.is_narrow else self.bn(self.down(x))))


class ResNet18(nn.Module):
    """He et al., arXiv:1512.03385, with 8 channels in place of 64."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, width, 7, 2, 3), nn.BatchNorm2d(width)
        self.pool, blocks, into = nn.MaxPool2d(3, 2, 1), [], width
        for stage, out in enumerate(width * 2**i for i in range(4)):
            blocks += [BasicBlock(into, out, 2 if stage else 1), BasicBlock(out, out, 1)]
            into = out
        self.blocks, self.mean = nn.ModuleList(blocks), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(into, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.fc(self.mean(x).flatten(1))
        return y


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and an MLP of each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = scaled(self.down(self.act(self.up(y))), self.scale)
        return x + y.permute(0, 3, 1, 2)


class ConvNeXtTiny(nn.Module):
    """Liu et al., arXiv:2201.03545, with 8 channels in place of 96."""

    def __init__(self, width: int = 8, depths: tuple[int, ...] = (3, 3, 9, 3)) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width, eps=1e-6)
        widths = [width * 2**i for i in range(4)]
        self.norms = nn.ModuleList(nn.LayerNorm(w, eps=1e-6) for w in widths[:3])
        self.downs = nn.ModuleList(nn.Conv2d(w, 2 * w, 2, 2) for w in widths[:3])
        self.stages = nn.ModuleList(
            nn.ModuleList(ConvNeXtBlock(w) for _ in range(depth))
            for w, depth in zip(widths, depths, strict=True)
        )
        self.mean, self.norm = nn.AdaptiveAvgPool2d(1), nn.LayerNorm(widths[-1], eps=1e-6)
        self.fc = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for i, stage in enumerate(self.stages):
            if i:
                x = self.norms[i - 1](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
                x = self.downs[i - 1](x)
            for block in stage.children():
                x = block(x)
        y: Tensor = self.fc(self.norm(self.mean(x).flatten(1)))
        return y


class Layer(nn.Module):
    """A layer of the transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attend(h, h, h, need_weights=False)[0]
        y: Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return y


class ViT(nn.Module):
    """Dosovitskiy et al., arXiv:2010.11929, with a width of 32 and four layers."""

    def __init__(self, width: int = 32, layers: int = 4, heads: int = 4, places: int = 16) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 8, 8), nn.Embedding(1, width)
        self.places = nn.Embedding(places + 1, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        ids = torch.arange(x.shape[1] + 1).expand(x.shape[0], -1)
        # Rows of a table by number: the sum over the images is then the op's.
        x = torch.cat([self.first(ids[:, :1] * 0), x], 1) + self.places(ids)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.fc(self.norm(x[:, 0]))
        return y


class Double(nn.Module):
    """Two convolutions of a U-Net, each with its norm and activation."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(x)))
        y: Tensor = self.act(self.norm2(self.conv2(x)))
        return y


class UNet(nn.Module):
    """Ronneberger et al., arXiv:1505.04597, with two levels, GroupNorm and SiLU."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.deep = (
            Double(3, width),
            Double(width, 2 * width),
            Double(2 * width, 4 * width),
        )
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.larger = nn.Upsample(scale_factor=2, mode="bilinear")
        self.narrow = nn.Conv2d(2 * width, width, 1)
        self.back2, self.back1 = Double(4 * width, 2 * width), Double(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        x = self.up(self.deep(self.pool(second)))
        x = self.back2(torch.cat([second, x], 1))
        x = self.narrow(self.larger(x))
        y: Tensor = self.head(self.back1(torch.cat([first, x], 1)))
        return y
