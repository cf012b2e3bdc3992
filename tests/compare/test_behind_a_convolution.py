"""Parts behind a wrong convolution: its maps are square, so their axes show further on only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import bridge

LAYOUT = ("NHWC", "HWIO", "NHWC")


def _convolution(x: Any, layer: nn.Conv2d, padding: Any) -> Any:
    kernel = jnp.asarray(layer.weight.detach().numpy().transpose(2, 3, 1, 0))
    y = jax.lax.conv_general_dilated(x, kernel, layer.stride, padding, dimension_numbers=LAYOUT)  # plant: padding # fmt: skip # noqa: E501
    return y if layer.bias is None else y + jnp.asarray(layer.bias.detach().numpy())


def _norm(x: Any, eps: float) -> Any:
    return (x - jnp.zeros(8)) * jax.lax.rsqrt(jnp.ones(8) + eps)  # plant: eps


def _gelu(x: Any, tanh: bool) -> Any:
    return jax.nn.gelu(x, approximate=tanh)  # plant: gelu


class _Original(nn.Module):
    def __init__(self, bias: bool, norm: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(8, affine=False) if norm else nn.Identity()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=bias)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = nn.functional.gelu(self.norm(self.stem(x)))
        return self.head(self.conv(x).mean((2, 3)))


def _line(mistake: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(k for k, line in enumerate(lines, 1) if f"# plant: {mistake}" in line)


@pytest.mark.parametrize("norm", [False, True], ids=["relu", "norm"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("size", [16, 20])
def test_all_are_named(size: int, bias: bool, norm: bool) -> None:
    torch.manual_seed(size)
    original = _Original(bias, norm).eval()

    def port(x: Any) -> Any:
        x = _convolution(x, original.stem, "SAME")
        x = _gelu(_norm(x, 1e-3) if norm else x, True)
        x = _convolution(x, original.conv, [(1, 1), (1, 1)]).mean((1, 2))
        head = original.head
        return x @ head.weight.detach().numpy().T + head.bias.detach().numpy()

    x = np.random.default_rng(size).standard_normal((2, 3, size, size)).astype(np.float32)
    report = bridge.compare(original, port, x, jax_inputs=(x.transpose(0, 2, 3, 1),))
    first, *others = report.parts
    assert first.torch.module == "stem"
    assert first.cause.startswith("padding"), str(report)
    assert any("GELU: erf here, tanh there" in part.cause for part in others), str(report)
    found = {int(part.jax.source.rpartition(":")[2]) for part in report.parts}
    expected = {"padding", "gelu", *(["eps"] if norm else [])}
    assert {_line(mistake) for mistake in expected} == found, str(report)
