"""The report as a plot: measurements above, the model below; each panel names its kind."""

from __future__ import annotations

from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from tools.plots import GREY, Figure, legend_of, open_frame, pyplot
from tools.scaling.algorithms import ALGORITHMS, of_link
from tools.scaling.fit import Fit, points_of
from tools.scaling.links import LINKS, NODE, Link
from tools.scaling.quantities import amount, duration
from tools.scaling.sequence import Layers

Report = dict[str, Any]

PROCESS_COLOURS = (GREY, "#0550ae", "#1a7f37", "#cf6f1b", "#6e5494")
STYLES = {
    "ring": ("#0550ae", "-"),
    "recursive doubling": ("#1a7f37", "-"),
    "binomial tree": ("#cf6f1b", "-"),
    "hierarchical": ("#6e5494", "-"),
}
COUNTS = tuple(2**k for k in range(1, 17))


def draw(report: Report) -> Figure:
    """Returns three lines of three panels: this machine, a contrastive gather, a layer."""
    figure = pyplot.figure(figsize=(13.5, 11.5), layout="constrained")
    lines: Any = figure.subfigures(3, 1, hspace=0.02)
    _this_machine(lines[0], report)
    part = report["exchanges"]["part"]
    measured = [p for p in points_of(report, "all-gather") if p["bytes"] == part]
    _links(
        lines[1],
        f"Modelled: one all-gather of {amount(part)} from each device (contrastive example)",
        lambda link, name, n: ALGORITHMS[name](n, part, link),
        extras=lambda axis: _points(axis, measured),
    )
    layers = _layers(report)
    _links(
        lines[2],
        "Modelled: all-gathers and reduce-scatters of a sequence-parallel layer, "
        f"{layers.tokens:,} tokens of width {layers.width:,}",
        lambda link, name, n: layers.communication(n, link, name),
        extras=lambda axis: axis.plot(
            COUNTS,
            [layers.arithmetic(n) for n in COUNTS],
            color="#24292f",
            linestyle=":",
            label="arithmetic of the layer",
        ),
    )
    return figure


def _layers(report: Report) -> Layers:
    model = report["sequence"]
    names = ("tokens", "width", "layers", "batch", "itemsize")
    return Layers(**{name: model[name] for name in names})


def _points(axis: Any, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in rows if row["processes"] > 1]
    axis.plot(
        [row["processes"] for row in rows],
        [row["median"] for row in rows],
        "D",
        color="#cf222e",
        markersize=5,
        label="measured: Gloo on this machine",
        zorder=5,
    )


def _fit(report: Report, collective: str) -> Fit:
    found = report["fits"][collective]
    return Fit(*(found[name] for name in ("overhead", "copy", "alpha", "beta", "cores")))


def _this_machine(figure: Any, report: Report) -> None:
    machine = report["machine"]
    words = f"Measured: Gloo, {machine['processor']}, {machine['cores']} cores; lines are the fit"
    figure.suptitle(words, x=0.01, ha="left", weight="bold", fontsize=12)
    axes = figure.subplots(1, 3)
    for axis, collective in zip(axes[:2], report["fits"], strict=True):
        _sizes(axis, report, collective)
    names = legend_of(axes[:1])
    figure.legend(names.values(), names.keys(), loc="outside lower left", ncols=4, frameon=False)
    top = max(axis.get_ylim()[1] for axis in axes[:2])
    bottom = min(axis.get_ylim()[0] for axis in axes[:2])
    for axis in axes[:2]:
        axis.set_ylim(bottom, top)
    _errors(axes[2], report)


def _sizes(axis: Any, report: Report, collective: str) -> None:
    rows, found = points_of(report, collective), _fit(report, collective)
    sizes = sorted({row["bytes"] for row in rows})
    for i, n in enumerate(sorted({row["processes"] for row in rows})):
        colour = PROCESS_COLOURS[i % len(PROCESS_COLOURS)]
        mine = [row for row in rows if row["processes"] == n]
        axis.errorbar(
            [row["bytes"] for row in mine],
            [row["median"] for row in mine],
            yerr=[
                [row["median"] - row["low"] for row in mine],
                [row["high"] - row["median"] for row in mine],
            ],
            fmt="o",
            markersize=4,
            elinewidth=1,
            color=colour,
            label=f"{n} process{'es' if n > 1 else ''}",
        )
        dense = [sizes[0] * (sizes[-1] / sizes[0]) ** (k / 60) for k in range(61)]
        axis.plot(dense, [found.predict(n, size) for size in dense], color=colour, linewidth=1.2)
    worst = report["fits"][collective]["residuals"]
    title = (
        f"{collective}: residuals {worst['median']:.0%} in the median, {worst['worst']:.0%} at most"
    )
    axis.set_title(title, fontsize=10, loc="left")
    _logarithmic(axis, "bytes of a part", _size, 16)


def _errors(axis: Any, report: Report) -> None:
    """Plots predicted over measured, for points outside the fit."""
    markers = {"all-gather": "o", "reduce-scatter": "s"}
    colours = ("#cf222e", "#8c959f", "#0550ae")
    legend: dict[str, Any] = {}
    for collective, checks in report["validation"].items():
        for check, colour in zip(checks, colours, strict=False):
            axis.plot(
                [error["bytes"] for error in check["errors"]],
                [error["predicted"] / error["measured"] for error in check["errors"]],
                markers[collective],
                color=colour,
                markersize=4.5,
                alpha=0.8,
            )
            legend[check["what"]] = Line2D([], [], marker="D", linestyle="", color=colour)
        legend[collective] = Line2D([], [], marker=markers[collective], linestyle="", color="k")
    axis.axhline(1, color="#24292f", linewidth=0.8)
    axis.set_title("predicted ÷ measured, of points held out", fontsize=10, loc="left")
    _logarithmic(axis, "bytes of a part", _size, 16)
    axis.set_yscale("log", base=2)
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, 0.5), max(high, 2) * (high / low) ** 0.6)  # leaves room for the legend
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.legend(legend.values(), legend.keys(), frameon=False, fontsize=8, loc="upper left")


def _size(count: float) -> str:
    return _plain(amount(count))


def _links(figure: Any, title: str, seconds: Any, extras: Any) -> None:
    """Draws a panel for each link, with a line for each algorithm."""
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=12)
    axes = figure.subplots(1, len(LINKS), sharey=True)
    for axis, link in zip(axes, LINKS, strict=True):
        for name in of_link(link):
            _line(axis, link, name, seconds)
        extras(axis)
        axis.set_title(
            f"{link.name}: α {duration(link.alpha)}, {link.bandwidth / 1e9:g} GB/s",
            fontsize=10,
            loc="left",
        )
        _logarithmic(axis, "devices", lambda n: f"{n:,.0f}", 2)
        axis.set_xticks([2, 8, 64, 512, 4096, 65_536])
        if link.reach is not None:
            axis.axvspan(link.reach, COUNTS[-1] * 1.5, color="#f6f8fa", zorder=0)
            axis.set_xlim(right=COUNTS[-1] * 1.5)
            axis.text(
                link.reach * 1.3,
                0.03,
                f"no machine joins so many:\na DGX H100 joins {NODE}",
                transform=axis.get_xaxis_transform(),
                fontsize=8.5,
                color=GREY,
            )
    _legend_below(figure, axes)


def _legend_below(figure: Any, axes: Any) -> None:
    """Draws one legend for all panels, with the algorithms first."""
    found = legend_of(axes)
    names = sorted(found, key=lambda name: list(STYLES).index(name) if name in STYLES else 9)
    handles = [found[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=6, frameon=False)


def _line(axis: Any, link: Link, name: str, seconds: Any) -> None:
    colour, style = STYLES[name]
    times = [seconds(link, name, n) for n in COUNTS]
    real = [n for n in COUNTS if link.reach is None or n <= link.reach]
    axis.plot(real, times[: len(real)], linestyle=style, color=colour, label=name, linewidth=1.6)
    if len(real) < len(COUNTS):
        start = len(real) - 1
        axis.plot(COUNTS[start:], times[start:], linestyle="--", color=colour, linewidth=1.0)


def _logarithmic(axis: Any, words: str, show: Any, base: int) -> None:
    axis.set_xscale("log", base=base)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: show(x)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain(duration(y))))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(words, fontsize=9)
    axis.tick_params(labelsize=8.5)
    open_frame(axis)


def _plain(text: str) -> str:
    """Returns 10 µs for 10.0 µs."""
    number, _, unit = text.partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}" if unit else text
