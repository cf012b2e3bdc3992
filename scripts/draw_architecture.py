#!/usr/bin/env python3
"""Draws docs/architecture.svg: the packages and their dependencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

INK, PAPER, GREY = "#1f2933", "#ffffff", "#52606d"
TORCH, JAX, SHARED, KERNEL = "#fde7dc", "#e0ecfb", "#e9f3e4", "#f4ecd8"
HEIGHT = 1.2
LEFT, MIDDLE, RIGHT, WHOLE = (0.0, 3.8), (4.1, 3.8), (8.2, 3.8), (0.0, 12.0)
HALVES = ((0.0, 5.85), (6.15, 5.85))

# The levels from top to bottom. Each box has x and width, colour, title and text.
LEVELS = [
    [
        (
            LEFT,
            TORCH,
            "bridge.torch: adapter",
            "autograd · dispatcher · DTensor\nfrom_jax · drop-ins",
        ),
        (MIDDLE, SHARED, "bridge.exchange", "to_torch · to_jax:\ntensors and trees of them"),
        (RIGHT, JAX, "bridge.jax: adapter", "primitives · sharded arrays\nfrom_torch · Flax NNX"),
    ],
    [
        (
            HALVES[0],
            SHARED,
            "bridge.op, bridge.catalogue: declarations",
            "Python functions of rows",
        ),
        (
            HALVES[1],
            SHARED,
            "bridge.ops: the op that runs programs",
            "shapes · derivative rules · reference",
        ),
    ],
    [
        (
            WHOLE,
            SHARED,
            "bridge.lang: programs",
            "tracing · derivatives · bytecode · C++ and CUDA C++ source · float64 reference",
        )
    ],
    [
        (HALVES[0], SHARED, "cpp/bindings: Python", "reads tensors in place, on their stream"),
        (HALVES[1], SHARED, "cpp/bindings: XLA", "FFI handlers for CPU and CUDA, on XLA's threads"),
    ],
    [(WHOLE, KERNEL, "cpp/include: C API", "structs and status codes")],
    [
        (LEFT, KERNEL, "interpreter", "runs the bytecode of any program,\non the CPU and on CUDA"),
        (
            MIDDLE,
            KERNEL,
            "generated kernels",
            "from one program, compiled by\nthe build or at run time",
        ),
        (
            RIGHT,
            KERNEL,
            "kernels written by hand",
            "of softmax, for the CPU and CUDA,\nwith the interpreter's bits",
        ),
    ],
    [
        (
            WHOLE,
            KERNEL,
            "cpp/math",
            "one source of IEEE arithmetic for CPU and CUDA, so the bits agree",
        )
    ],
]
STEP = 1.72
# The x coordinates of the arrows from each level to the next.
HALF_ARROWS, THIRD_ARROWS = (2.925, 9.075), (1.9, 6.0, 10.1)
ARROWS = [(1.9, 10.1), HALF_ARROWS, HALF_ARROWS, HALF_ARROWS, THIRD_ARROWS, THIRD_ARROWS]


def draw_box(axes: Any, place: tuple[float, float], y: float, *how: str) -> None:
    (x, width), (colour, title, words) = place, how
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, y), width, HEIGHT, boxstyle=shape, fc=colour, ec=INK))
    centre = {"ha": "center", "va": "center"}
    above, below = (0.93, 0.42) if "\n" in words else (0.78, 0.4)
    axes.text(x + width / 2, y + above, title, fontsize=12, color=INK, **centre)
    axes.text(x + width / 2, y + below, words, fontsize=9, color=GREY, **centre)


def main() -> None:
    plt.rcParams["svg.fonttype"] = "path"
    plt.rcParams["svg.hashsalt"] = "bridge"
    figure, axes = plt.subplots(figsize=(8.8, 8.8))
    top = STEP * (len(LEVELS) - 1)
    for depth, boxes in enumerate(LEVELS):
        for place, *how in boxes:
            draw_box(axes, place, top - depth * STEP, *how)
    for depth, places in enumerate(ARROWS):
        bottom = top - depth * STEP
        for x in places:
            end = {"xy": (x, bottom - STEP + HEIGHT), "xytext": (x, bottom)}
            axes.annotate("", **end, arrowprops={"arrowstyle": "-|>", "color": INK})
    # Both frameworks read the exchange, and neither adapter does.
    for x, end in ((4.1, 3.8), (7.9, 8.2)):
        at = top + HEIGHT / 2
        style = {"arrowstyle": "-|>", "color": INK}
        axes.annotate("", xy=(end, at), xytext=(x, at), arrowprops=style)
    axes.set_xlim(-0.1, 12.1)
    axes.set_ylim(-0.1, top + HEIGHT + 0.1)
    axes.axis("off")
    figure.tight_layout(pad=0.2)
    path = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
    figure.savefig(path, facecolor=PAPER, metadata={"Date": None})


if __name__ == "__main__":
    main()
