#!/usr/bin/env python3
"""Draws docs/row_sum.svg: the tree in which softmax adds up a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, GREY, PAPER = "#1f2933", "#7b8794", "#ffffff"
CHUNK, QUARTER, FOLD, MISSING = "#e0ecfb", "#fde7dc", "#e9f3e4", "#f5f7fa"
WIDTH, CHUNKS, LAST = 10.0, 5, 0.6  # chunks of the row, and the filled fraction of the last one


def box(axes: Any, x: float, y: float, width: float, height: float, colour: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec=INK, lw=0.9))


def text(axes: Any, x: float, y: float, words: str, size: float = 9, **options: Any) -> None:
    axes.text(x, y, words, **{"ha": "center", "va": "center", "color": INK, "size": size} | options)


def line(axes: Any, start: Any, end: Any, **options: Any) -> None:
    axes.plot(*zip(start, end, strict=True), **{"color": INK, "lw": 0.9} | options)


def arrow(axes: Any, start: Any, end: Any) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, color=INK, lw=0.9, **style))


def heading(axes: Any, y: float, words: str) -> None:
    text(axes, 0.0, y, words, size=10.5, ha="left", weight="bold")


def draw_row(axes: Any, y: float) -> None:
    heading(axes, y + 0.8, "A row is cut into chunks of 1024 columns")
    width = WIDTH / CHUNKS
    for i in range(CHUNKS):
        full = width if i < CHUNKS - 1 else width * LAST
        box(axes, i * width, y, full, 0.5, CHUNK)
        text(axes, i * width + full / 2, y + 0.25, f"chunk {i}")
        if full < width:
            rest = Rectangle((i * width + full, y), width - full, 0.5, fc=MISSING, ec=GREY, ls="--")
            axes.add_patch(rest)
            text(axes, i * width + (full + width) / 2, y + 0.25, "−0.0", color=GREY)
    for x, end in ((width, 0.0), (2 * width, WIDTH)):
        line(axes, (x, y), (end, y - 1.3), color=GREY, lw=0.7, ls=":")


def draw_quarters(axes: Any, y: float) -> None:
    width = WIDTH / 4
    for i in range(4):
        box(axes, i * width, y, width, 0.5, QUARTER)
        text(axes, i * width + width / 2, y + 0.25, f"e[{256 * i} … {256 * i + 255}]")
    middles = [width * (i + 0.5) for i in range(4)]
    pairs = [(middles[0] + middles[1]) / 2, (middles[2] + middles[3]) / 2]
    for i, middle in enumerate(middles):
        line(axes, (middle, y), (pairs[i // 2], y - 0.4))
    for pair in pairs:
        plus(axes, pair, y - 0.5)
        line(axes, (pair, y - 0.6), (WIDTH / 2, y - 0.85))
    plus(axes, WIDTH / 2, y - 0.95)
    text(axes, WIDTH / 2, y + 0.72, "In a chunk, four quarters are added, element by element.")


def plus(axes: Any, x: float, y: float) -> None:
    circle = FancyBboxPatch(
        (x - 0.05, y - 0.05), 0.1, 0.1, boxstyle="round,pad=0.06", fc=PAPER, ec=INK, lw=0.9
    )
    axes.add_patch(circle)
    text(axes, x, y, "+", size=10)


def draw_folds(axes: Any, y: float) -> None:
    """Draws bars of 256, 128, …, each the sum of the halves of the bar above."""
    left, width, height, step = WIDTH / 2 - 2.3, 4.6, 0.38, 0.78
    arrow(axes, (WIDTH / 2, y + 1.14), (WIDTH / 2, y + height))
    counts = ("256 sums", "128", "64", "32, 16, 8, 4, 2", "1: the sum of the chunk")
    for i, count in enumerate(counts):
        bottom, is_last = y - i * step, i == len(counts) - 1
        width = 0.12 if is_last else width
        box(axes, left, bottom, width, height, FOLD)
        text(axes, left - 0.15, bottom + height / 2, count, ha="right")
        if is_last:
            break
        middle = left + width / 2
        line(axes, (middle, bottom), (middle, bottom + height), ls="--", lw=0.7)
        below = left + (0.06 if i == len(counts) - 2 else width / 4)
        arrow(axes, (left + width / 4, bottom), (below, bottom - step + height))
        arrow(axes, (left + 3 * width / 4, bottom), (below, bottom - step + height))
        width /= 2
    words = "The upper half is added\nto the lower, eight times."
    text(axes, left + 4.75, y + height / 2, words, ha="left")


def draw_chunks(axes: Any, y: float) -> None:
    heading(axes, y + 0.62, "The chunks meet in a binary tree, where one without a partner stays")
    x = [1.0 + 2.0 * i for i in range(CHUNKS)]
    levels = [
        (["chunk 0", "chunk 1", "chunk 2", "chunk 3", "chunk 4"], x),
        (["0 + 1", "2 + 3", "4"], [2.0, 6.0, 9.0]),
        (["0 … 3", "4"], [4.0, 9.0]),
        (["the sum of the row"], [6.5]),
    ]
    for depth, (names, places) in enumerate(levels):
        bottom = y - depth * 0.85
        for i, (name, place) in enumerate(zip(names, places, strict=True)):
            half = 0.85 if depth == 3 else 0.55
            colour = CHUNK if depth < 3 else FOLD
            box(axes, place - half, bottom, 2 * half, 0.4, colour)
            text(axes, place, bottom + 0.2, name)
            if depth < 3:
                parent = levels[depth + 1][1][i // 2]
                line(axes, (place, bottom), (parent, bottom - 0.45))


def main() -> None:
    plt.rcParams["svg.fonttype"] = "path"
    plt.rcParams["svg.hashsalt"] = "bridge"
    figure, axes = plt.subplots(figsize=(8.4, 9.0))
    draw_row(axes, 10.3)
    draw_quarters(axes, 8.5)
    draw_folds(axes, 6.3)
    draw_chunks(axes, 2.05)
    axes.set_xlim(-0.1, WIDTH + 0.1)
    axes.set_ylim(-0.6, 11.4)
    axes.axis("off")
    figure.tight_layout(pad=0.2)
    path = Path(__file__).resolve().parent.parent / "docs" / "row_sum.svg"
    figure.savefig(path, facecolor=PAPER, metadata={"Date": None})


if __name__ == "__main__":
    main()
