"""The shared parts of all plots: the backend, colours, frames, legends, and files."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot
from matplotlib.figure import Figure

from bridge.cli.page import paragraph

__all__ = ["GREY", "GRID", "OURS", "Figure", "legend_of", "open_frame", "pyplot"]

OURS, GREY, GRID = "#1a7f37", "#57606a", "#eaeef2"


def open_frame(axis: Any, grid: bool = True) -> None:
    """Leaves the frame open above and to the right."""
    axis.spines[["top", "right"]].set_visible(False)
    if grid:
        axis.grid(color=GRID)


def legend_of(axes: Iterable[Any]) -> dict[str, Any]:
    """Returns handles by label, each label once."""
    found: dict[str, Any] = {}
    for axis in axes:
        found |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    return found


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, bbox_inches="tight", dpi=150)


def on_page(figure: Figure, caption: str = "") -> str:
    """Returns the figure as SVG for a page, and closes it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    caption = f"<figcaption>{paragraph(caption, 'small')}</figcaption>" if caption else ""
    return f"<figure>{svg}{caption}</figure>"
