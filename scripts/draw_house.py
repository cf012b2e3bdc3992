#!/usr/bin/env python3
"""Draws docs/architecture.svg: the rooms of the house and who stands on whom."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

INK, PAPER = "#1f2933", "#ffffff"
TORCH, JAX, SHARED, KERNEL = "#fde7dc", "#e0ecfb", "#e9f3e4", "#f4ecd8"

# x, y, width, height, colour, title, lines below it
ROOMS = [
    (0.2, 6.9, 4.5, 1.5, TORCH, "bridge.torch", "autograd.Function · dispatcher op · vmap"),
    (5.3, 6.9, 4.5, 1.5, JAX, "bridge.jax", "primitive · jvp · transpose · batching"),
    (0.2, 4.7, 9.6, 1.5, SHARED, "bridge.ops", "arguments · derivative rules · float64 reference"),
    (0.2, 2.5, 4.5, 1.5, SHARED, "DLPack door", "tensors read in place, their stream taken"),
    (5.3, 2.5, 4.5, 1.5, SHARED, "XLA FFI door", "handlers for cpu and CUDA, XLA's threads"),
    (0.2, 0.3, 4.5, 1.5, KERNEL, "CPU kernels", "x86-64 · v3 · v4 · aarch64, chosen at run time"),
    (5.3, 0.3, 4.5, 1.5, KERNEL, "CUDA kernels", "sm_80 · sm_90 · sm_100, loaded on demand"),
]
ARROWS = [
    ((2.45, 6.9), (2.45, 6.2)),
    ((7.55, 6.9), (7.55, 6.2)),
    ((2.45, 4.7), (2.45, 4.0)),
    ((7.55, 4.7), (7.55, 4.0)),
    ((2.45, 2.5), (2.45, 1.8)),
    ((7.55, 2.5), (7.55, 1.8)),
    ((4.2, 2.5), (5.8, 1.8)),
    ((5.8, 2.5), (4.2, 1.8)),
]


def main() -> None:
    plt.rcParams["svg.fonttype"] = "path"
    plt.rcParams["svg.hashsalt"] = "bridge"
    figure, axes = plt.subplots(figsize=(8.4, 6.6))
    for x, y, width, height, colour, title, text in ROOMS:
        box = FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=colour, ec=INK
        )
        axes.add_patch(box)
        middle = x + width / 2
        axes.text(
            middle, y + height * 0.64, title, ha="center", va="center", fontsize=13, color=INK
        )
        axes.text(middle, y + height * 0.28, text, ha="center", va="center", fontsize=9, color=INK)
    for start, end in ARROWS:
        axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": INK})
    note = "cpp/math: one source of IEEE arithmetic for both, so the bits agree"
    axes.text(5.0, 0.02, note, ha="center", va="center", fontsize=9.5, color=INK, style="italic")
    axes.set_xlim(0, 10)
    axes.set_ylim(-0.15, 8.55)
    axes.axis("off")
    figure.tight_layout(pad=0.2)
    path = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
    figure.savefig(path, facecolor=PAPER, metadata={"Date": None})


if __name__ == "__main__":
    main()
