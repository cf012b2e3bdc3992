"""The bench as bars, op by op: GB/s of each contender, compared with a copy."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from bridge.cli.parity.summary import short
from tools.bench.cases import BYTES, FRAMEWORKS, OLD
from tools.bench.targets import PEER_NAMES
from tools.plots import GREY, OURS, Figure, legend_of, open_frame, pyplot

COLOURS = {"bridge": OURS, "eager": "#b08800", "compile": "#cf6f1b", "jit": "#6e5494"}
NAMES = {**PEER_NAMES, "bridge": "bridge"}
COPIES = {"old": ("--", "copy into old memory"), "new": (":", "copy into new memory")}
COLUMNS = 2
INCHES = 0.42  # for a row of bars

Rows = list[dict[str, Any]]


def draw(report: dict[str, Any]) -> Figure:
    """Returns a figure with a part for each op, and in it a panel for each framework and size."""
    parts = {}
    for op in dict.fromkeys(row["op"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["op"] == op]
        main = [row for row in rows if row["part"] == "main" and row["bytes"]]
        growth = [row for row in rows if row["part"] == "growth"]
        if main:
            parts[op] = _Part(op, main, growth)
    heights = [part.height for part in parts.values()]
    figure = pyplot.figure(figsize=(6.2 * COLUMNS, sum(heights)), layout="constrained")
    subfigures = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)
    for part, subfigure in zip(parts.values(), subfigures.flat, strict=True):
        part.draw(subfigure)
    return figure


class _Part:
    """The panels of an op, in lines of `COLUMNS`, with compared panels side by side."""

    def __init__(self, op: str, rows: Rows, growth: Rows) -> None:
        self.op, self.growth = op, growth
        self.panels = {}
        for size in dict.fromkeys(_size(row) for row in rows):
            for framework, name in FRAMEWORKS.items():
                panel = [r for r in rows if (r["framework"], _size(r)) == (framework, size)]
                if panel:
                    self.panels[f"{name}, {size}"] = (panel, _copies(rows, size))
        lines = list(self.panels.values())
        self.lines = [
            max(len(panel) for panel, _ in lines[i : i + COLUMNS])
            for i in range(0, len(lines), COLUMNS)
        ]
        if growth:
            self.lines.append(6)

    @property
    def height(self) -> float:
        return 0.9 + sum(0.75 + INCHES * max(line, 3) for line in self.lines)

    def draw(self, figure: Any) -> None:
        figure.suptitle(self.op, fontsize=14, x=0.01, ha="left", weight="bold")
        ratios = [0.75 + INCHES * max(line, 3) for line in self.lines]
        grid = figure.add_gridspec(len(self.lines), COLUMNS, height_ratios=ratios)
        axes = []
        for i, (title, (rows, copies)) in enumerate(self.panels.items()):
            axis = figure.add_subplot(grid[i // COLUMNS, i % COLUMNS])
            _bars(axis, rows, copies)
            axis.set_title(title, fontsize=11, loc="left")
            axes.append(axis)
        if self.growth:
            _lines(figure.add_subplot(grid[len(self.lines) - 1, :]), self.growth)
        handles = legend_of(axes)
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False
        )


def _size(row: dict[str, Any]) -> str:
    return "×".join(map(str, row["shape"]))


def _copies(rows: Rows, size: str) -> dict[str, float]:
    """Returns GB/s of the copies measured at a size, into old and into new memory."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if "copy" in row["timings"] and _size(row) == size:
            found.setdefault(row["memory"], []).append(_copy_rate(row))
    return {memory: median(values) for memory, values in found.items()}


def _copy_rate(row: dict[str, Any]) -> float:
    """Returns GB/s of the copy of a row: it reads and writes x, whatever the op moves."""
    return (
        2 * BYTES[row["dtype"]] * math.prod(row["shape"]) / row["timings"]["copy"]["median"] / 1e9
    )


def _bars(axis: Any, rows: Rows, copies: dict[str, float]) -> None:
    names = [name for name in NAMES if any(name in row["timings"] for row in rows)]
    names.sort(key=lambda name: name != "bridge")
    height = 0.8 / max(len(names), 1)
    for i, name in enumerate(names):
        present = [(y, row) for y, row in enumerate(rows) if name in row["timings"]]
        places = [y - 0.4 + height * (i + 0.5) for y, _ in present]
        values = [row["gigabytes_per_second"][name] for _, row in present]
        label = NAMES.get(name, name)
        axis.barh(places, values, height=height, color=COLOURS.get(name, GREY), label=label)
        if name == "bridge":
            for place, value in zip(places, values, strict=True):
                axis.annotate(
                    f"{value:.0f}" if value >= 10 else f"{value:.1f}",
                    (value, place),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
    for memory, value in copies.items():
        style, label = COPIES[memory]
        axis.axvline(value, color="#0550ae", linestyle=style, linewidth=1.3, label=label)
    axis.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8.5)
    axis.set_ylim(max(len(rows), 3) - 0.5, -0.5)
    axis.set_xlabel("GB/s", fontsize=9)
    axis.tick_params(axis="x", labelsize=8.5)
    open_frame(axis, grid=False)
    axis.margins(x=0.08)


def _label(row: dict[str, Any]) -> str:
    old = f" {OLD[row['framework']]}" if row["memory"] == "old" else ""
    return f"{row['what']}{old} {short(row['dtype'])} {row['form']}"


def _lines(axis: Any, rows: Rows) -> None:
    """Plots time per element against the length of a row, at the same number of elements."""
    lengths = [row["shape"][-1] for row in rows]
    for name in ("bridge", "eager", "copy"):
        values = [row["timings"][name]["median"] / math.prod(row["shape"]) * 1e9 for row in rows]
        axis.plot(lengths, values, "o-", color=COLOURS.get(name, "#0550ae"), label=NAMES.get(name))
        axis.annotate(
            NAMES.get(name, COPIES[rows[0]["memory"]][1]),
            (lengths[-1], values[-1]),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [_power(length) for length in lengths], fontsize=8.5)
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_ylabel("ns per element", fontsize=9)
    axis.set_xlabel("length of a row", fontsize=9)
    open_frame(axis)
    axis.margins(x=0.12)
    first = rows[0]
    elements = _power(math.prod(first["shape"]))
    title = f"PyTorch, {first['what']} {first['dtype']}, {elements} elements in longer rows"
    axis.set_title(title, fontsize=11, loc="left")


def _power(number: int) -> str:
    return f"{number >> 20} Mi" if number >= 1 << 20 else f"{number >> 10} Ki"
