#!/usr/bin/env python3
"""Draws docs/parity.svg: the elements that differ between PyTorch and JAX, with and without bridge.

It computes each op on the same float32 operands on the CPU, forward and the gradient of x, by the
frameworks' own functions and by bridge's, and counts the elements with other bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

import bridge.jax as bj  # noqa: E402
import bridge.torch as bt  # noqa: E402

INK, GREY, OURS, PAPER = "#1f2933", "#7b8794", "#1a7f37", "#ffffff"
ROWS, COLUMNS = 256, 1024
F = torch.nn.functional
Function = Callable[[Any], Any]


def rms_norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def layer_norm(x: jax.Array) -> jax.Array:
    return jax.nn.standardize(x, epsilon=1e-5)


# Functions by name: torch's own, JAX's own, bridge's in torch and in JAX.
OPS: dict[str, tuple[Function, Function, Function, Function]] = {
    "gelu": (partial(F.gelu, approximate="tanh"), jax.nn.gelu, bt.bias_gelu, bj.bias_gelu),
    "softmax": (
        partial(F.softmax, dim=-1),
        jax.nn.softmax,
        partial(bt.scaled_softmax, scale=1.0),
        partial(bj.scaled_softmax, scale=1.0),
    ),
    "log_softmax": (
        partial(F.log_softmax, dim=-1),
        jax.nn.log_softmax,
        bt.log_softmax,
        bj.log_softmax,
    ),
    "rms_norm": (
        partial(F.rms_norm, normalized_shape=(COLUMNS,), eps=1e-6),
        rms_norm,
        bt.rms_norm,
        bj.rms_norm,
    ),
    "layer_norm": (
        partial(F.layer_norm, normalized_shape=(COLUMNS,)),
        layer_norm,
        bt.layer_norm,
        bj.layer_norm,
    ),
}


def in_torch(function: Function, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    """Returns the value and the gradient of x."""
    tensor = torch.from_numpy(x).requires_grad_()
    y = function(tensor)
    y.backward(torch.from_numpy(cotangent))
    return np.stack([y.detach().numpy(), tensor.grad.numpy()])


def in_jax(function: Function, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    """Returns the value and the gradient of x."""
    y, backward = jax.vjp(jax.jit(function), jnp.asarray(x))
    return np.stack([y, *jax.jit(backward)(jnp.asarray(cotangent))])


def differing(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the percentage of elements with other bits."""
    return 100 * float(np.mean(ours.view(np.uint32) != theirs.view(np.uint32)))


def measure() -> dict[str, tuple[float, float]]:
    """Returns percentages by op: with the frameworks' own functions, and with bridge's."""
    x, cotangent = np.random.default_rng(0).standard_normal((2, ROWS, COLUMNS), np.float32)
    found = {}
    for name, (torch_own, jax_own, ours_torch, ours_jax) in OPS.items():
        own = differing(in_torch(torch_own, x, cotangent), in_jax(jax_own, x, cotangent))
        ours = differing(in_torch(ours_torch, x, cotangent), in_jax(ours_jax, x, cotangent))
        found[name] = own, ours
        print(f"{name:<12} own {own:5.1f} %   bridge {ours:5.1f} %")
    return found


def draw(found: dict[str, tuple[float, float]]) -> None:
    plt.rcParams |= {"svg.fonttype": "path", "svg.hashsalt": "bridge", "text.color": INK}
    figure, axes = plt.subplots(figsize=(5.2, 3.4))
    places = np.arange(len(found))[::-1]
    for shift, label, colour, values in (
        (0.19, "torch's own beside JAX's own", GREY, [own for own, _ in found.values()]),
        (-0.19, "bridge in torch beside bridge in JAX", OURS, [ours for _, ours in found.values()]),
    ):
        bars = axes.barh(places + shift, values, 0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f %%", padding=3, color=colour, size=9)
    axes.set_yticks(places, found)
    axes.set_xlim(0, 100)
    axes.set_xlabel("elements that differ between PyTorch and JAX, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="upper center", ncols=1, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.87))
    figure.savefig(ROOT / "docs" / "parity.svg", facecolor=PAPER, metadata={"Date": None})


if __name__ == "__main__":
    draw(measure())
