"""The bench as bars: GB/s of each contender beside what a copy reaches."""

from __future__ import annotations

from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot
from matplotlib.figure import Figure

COLOURS = {"bridge": "#1a7f37", "eager": "#b08800", "compile": "#cf6f1b", "jit": "#6e5494"}
NAMES = {"eager": "torch eager", "compile": "torch.compile", "jit": "jax.jit", "bridge": "bridge"}
TITLES = {"torch": "PyTorch", "jax": "JAX"}
SIZES = {"64×1024": "in cache", "4096×4096": "large"}


def draw(report: dict[str, Any]) -> Figure:
    """Returns a figure with a panel for each framework and size."""
    rows = [row for row in report["rows"] if not row["tiny"]]
    frameworks = [name for name in TITLES if any(row["framework"] == name for row in rows)]
    sizes = list(dict.fromkeys("×".join(map(str, row["shape"])) for row in rows))
    panels = [[_of(rows, framework, size) for size in sizes] for framework in frameworks]
    heights = [max(len(panel) for panel in line) for line in panels]
    figure, axes = pyplot.subplots(
        len(frameworks),
        len(sizes),
        figsize=(6.2 * len(sizes), 0.9 + 0.42 * sum(heights)),
        squeeze=False,
        height_ratios=heights,
        sharey="row",
        layout="constrained",
    )
    for line, framework in zip(axes, frameworks, strict=True):
        for axis, size in zip(line, sizes, strict=True):
            _panel(axis, _of(rows, framework, size), copies(rows, size))
            title = f"{TITLES[framework]}, {size} ({SIZES.get(size, '')})"
            axis.set_title(title, fontsize=11, loc="left")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False
    )
    return figure


def copies(rows: list[dict[str, Any]], size: str) -> dict[str, float]:
    """GB/s of the copies measured at a size, into old and into new memory."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if "copy" in row["timings"] and "×".join(map(str, row["shape"])) == size:
            found.setdefault(row["memory"], []).append(row["gigabytes_per_second"]["copy"])
    return {memory: median(values) for memory, values in found.items()}


def _of(rows: list[dict[str, Any]], framework: str, size: str) -> list[dict[str, Any]]:
    return [
        row
        for row in rows
        if row["framework"] == framework and "×".join(map(str, row["shape"])) == size
    ]


def _panel(axis: Any, rows: list[dict[str, Any]], copy: dict[str, float]) -> None:
    names = [name for name in NAMES if any(name in row["timings"] for row in rows)]
    names.sort(key=lambda name: name != "bridge")
    height = 0.8 / max(len(names), 1)
    for i, name in enumerate(names):
        present = [(y, row) for y, row in enumerate(rows) if name in row["timings"]]
        places = [y - 0.4 + height * (i + 0.5) for y, _ in present]
        values = [row["gigabytes_per_second"][name] for _, row in present]
        label = NAMES.get(name, name)
        axis.barh(places, values, height=height, color=COLOURS.get(name, "#57606a"), label=label)
        if name == "bridge":
            for place, value in zip(places, values, strict=True):
                axis.annotate(
                    f"{value:.0f}",
                    (value, place),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
    lines = {"old": ("--", "copy into old memory"), "new": (":", "copy into new memory")}
    for memory, value in copy.items():
        style, label = lines[memory]
        axis.axvline(value, color="#0550ae", linestyle=style, linewidth=1.3, label=label)
    axis.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8.5)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel("GB/s", fontsize=9)
    axis.tick_params(axis="x", labelsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.08)


def _label(row: dict[str, Any]) -> str:
    dtype = row["dtype"].replace("bfloat", "bf").replace("float", "f")
    old = {"torch": " out=", "jax": " donated"}[row["framework"]] if row["memory"] == "old" else ""
    return f"{row['what']}{old} {dtype} {row['approximate']}"
