"""The report of the demo as one HTML page with its plots inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bridge.cli import machine, page
from bridge.cli.page import Section
from bridge.cli.parity import summary
from tools.bench.cases import FRAMEWORKS
from tools.bench.plot import draw as draw_bench
from tools.bench.summary import METHOD, duration, memory_lines
from tools.bench.targets import table
from tools.demo import gpt, text
from tools.demo.comparison import (
    EXPLANATION,
    HEADER,
    NEIGHBOURS,
    OPS,
    TRAINING_EXPLANATION,
    VISION_EXPLANATION,
    VISION_HEADER,
    comparison,
    neighbour_line,
    neighbours,
    training_comparison,
    vision_comparison,
)
from tools.demo.sentences import SUBJECT_OF, SUBJECTS
from tools.plots import OURS, Figure, on_page, open_frame, pyplot

OWN = {"torch": "#b08800", "jax": "#6e5494"}


def write(
    path: Path,
    found: dict[str, Any],
    training: dict[str, Any] | None,
    vision: dict[str, Any] | None,
    parity: dict[str, Any] | None,
    bench: dict[str, Any] | None,
) -> None:
    """Writes the page."""
    sections = [] if training is None else [_training(training)]
    sections += [] if vision is None else [_vision(vision)]
    sections += [_encoder(found), _neighbours(found)]
    if parity is not None:
        sections += _parity(parity)
    if bench is not None:
        sections += _bench(bench)
    sections.append(_machine())
    lead = page.paragraph(
        "One kernel library, two frameworks. The sentence encoder all-MiniLM-L6-v2 ran in PyTorch "
        "and in JAX from the same weights, and a small GPT was trained in both: once with all of "
        "its numbers computed by bridge, and once with the frameworks' own ops.",
        "lead",
    )
    page.write_page(path, "bridge: the same bits in PyTorch and JAX", sections, lead)


def _encoder(found: dict[str, Any]) -> Section:
    body = page.paragraph(
        f"{found['sentences']} sentences, {found['tokens']} tokens, padded to {found['longest']}."
    )
    body += page.table(HEADER, comparison(found))
    body += page.paragraph(EXPLANATION)
    return Section("The encoder in both frameworks", body + on_page(_draw_encoder(found)))


def _draw_encoder(found: dict[str, Any]) -> Figure:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 2.6), layout="constrained")
    places = np.arange(len(OPS))
    for i, (ops, colour) in enumerate((("bridge", OURS), ("own", "#8c959f"))):
        of = [found["agreement"][op] for op in OPS]
        shares = [100 * one["differing"][ops] / one["elements"] for one in of]
        bars = left.barh(places + 0.4 * i, shares, height=0.38, color=colour)
        left.bar_label(bars, [f"{s:.3g} %  {ops}" for s in shares], padding=4, fontsize=9)
    left.set_yticks(places + 0.2, OPS.values())
    left.set_title("Outputs whose bits differ, torch against JAX", fontsize=10, loc="left")
    places = np.arange(len(FRAMEWORKS))
    for i, ops in enumerate(("bridge", "own")):
        rates = [found["rates"][framework][ops] for framework in FRAMEWORKS]
        colours = [OURS if ops == "bridge" else OWN[f] for f in FRAMEWORKS]
        bars = right.barh(places + 0.4 * i, rates, height=0.38, color=colours)
        right.bar_label(bars, [f"{rate:.0f}  {ops}" for rate in rates], padding=4, fontsize=9)
    right.set_yticks(places + 0.2, FRAMEWORKS.values())
    right.set_title("Whole encoder, sentences per second", fontsize=10, loc="left")
    for axis in (left, right):
        axis.invert_yaxis()
        open_frame(axis, grid=False)
        axis.margins(x=0.3)
    return figure


def _training(training: dict[str, Any]) -> Section:
    body = page.paragraph(
        f"A GPT with RMSNorm, rotary embedding and SwiGLU, of {gpt.LAYERS} layers, width "
        f"{gpt.WIDTH}, dropout {gpt.P_DROP}, learns the characters of {text.SOURCE} "
        f"in {training['steps']} steps of {gpt.BATCH} × {gpt.LENGTH}."
    )
    body += on_page(_draw_training(training))
    body += page.table(HEADER, training_comparison(training))
    return Section("Training in both frameworks", body + page.paragraph(TRAINING_EXPLANATION))


def _vision(vision: dict[str, Any]) -> Section:
    body = page.table(VISION_HEADER, vision_comparison(vision))
    body += page.paragraph(VISION_EXPLANATION)
    lines = [
        [f"{name}, {FRAMEWORKS[framework]}", "; ".join(str(replaced).splitlines())]
        for name, found in vision.items()
        for framework, replaced in found["replaced"].items()
    ]
    body += page.details("Layers that replace found", page.table(["", "ops"], lines))
    return Section("Vision models in both frameworks", body)


def _draw_training(training: dict[str, Any]) -> Figure:
    figure, (losses, gaps) = pyplot.subplots(
        2, 1, figsize=(10, 5.6), layout="constrained", sharex=True, height_ratios=(3, 2)
    )
    curves = training["curves"]
    colours = {("bridge", f): OURS for f in FRAMEWORKS}
    colours |= {("own", f): OWN[f] for f in FRAMEWORKS}
    for ops, label in (("own", "own ops"), ("bridge", "bridge")):
        for framework, name in FRAMEWORKS.items():
            losses.plot(
                curves[ops][framework],
                color=colours[ops, framework],
                linestyle="--" if framework == "jax" else "-",
                linewidth=2.0 if framework == "torch" and ops == "bridge" else 1.1,
                label=f"{name}, {label}",
            )
        gap = np.abs(curves[ops]["torch"] - curves[ops]["jax"])
        colour = OURS if ops == "bridge" else "#8c959f"
        gaps.plot(gap, color=colour, linewidth=2.0 if ops == "bridge" else 1.0, label=label)
    gaps.set_yscale("symlog", linthresh=1e-5)  # which has a place for 0
    gaps.set_ylim(bottom=-2e-6)
    losses.set_title("Loss, nats per character", fontsize=10, loc="left")
    gaps.set_title("Difference of the loss, torch against JAX", fontsize=10, loc="left")
    gaps.set_xlabel("step")
    for axis in (losses, gaps):
        axis.legend(
            frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=4
        )
        open_frame(axis)
        axis.margins(x=0.01)
    return figure


def _neighbours(found: dict[str, Any]) -> Section:
    body = page.paragraph(neighbour_line(found)) + on_page(_draw_cosines(found))
    listing = page.table(NEIGHBOURS, neighbours(found))
    return Section("Nearest neighbours", body + page.details("Every sentence", listing))


def _draw_cosines(found: dict[str, Any]) -> Figure:
    figure, axis = pyplot.subplots(figsize=(6.6, 5.4), layout="constrained")
    image = axis.imshow(found["cosines"], cmap="Greens", vmin=0, vmax=1)
    subjects = list(SUBJECTS)
    starts = [SUBJECT_OF.index(subject) for subject in subjects]
    middles = [
        start + (len(SUBJECTS[s]) - 1) / 2 for start, s in zip(starts, subjects, strict=True)
    ]
    axis.set_xticks(middles, subjects, rotation=45, ha="right", fontsize=9)
    axis.set_yticks(middles, subjects, fontsize=9)
    for start in starts[1:]:
        axis.axhline(start - 0.5, color="white", linewidth=1)
        axis.axvline(start - 0.5, color="white", linewidth=1)
    axis.set_title("Cosine between sentences, by subject", fontsize=10, loc="left")
    figure.colorbar(image, shrink=0.8)
    return figure


def _parity(report: dict[str, Any]) -> list[Section]:
    (brief,) = summary.sections(report, brief=True)
    (full,) = summary.sections(report)
    plot = on_page(_draw_errors(report), "Logarithmic; further left is better.")
    return [Section("Parity", plot + brief.body + page.details("Every quantity", full.body))]


def _draw_errors(report: dict[str, Any]) -> Figure:
    """Draws the largest errors of value and gradient: bridge and the frameworks' own ops."""
    records = [r for r in report["summary"] if r["own_torch_ulp"] is not None]
    shown = [r for r in records if r["quantity"] in ("forward", "dx")]
    # In float64 the reference is no more accurate than the results.
    shown = [r for r in shown if r["dtypes"] != "float64"]
    by_op: dict[str, list[dict[str, Any]]] = {}
    for record in shown:
        by_op.setdefault(record["op"], []).append(record)
    figure, axes = pyplot.subplots(
        len(by_op),
        1,
        figsize=(10, 1.0 + 0.24 * len(shown)),
        layout="constrained",
        sharex=True,
        squeeze=False,
        height_ratios=[len(records) for records in by_op.values()],
    )
    series = (
        ("ulp", "bridge (both frameworks)", OURS, "o"),
        ("own_torch_ulp", "torch's own", OWN["torch"], "s"),
        ("own_jax_ulp", "JAX's own", OWN["jax"], "D"),
    )
    for axis, (op, records) in zip(axes[:, 0], by_op.items(), strict=True):
        places = np.arange(len(records))
        for key, label, colour, marker in series:
            values = [max(r[key], 0.1) for r in records]
            axis.plot(values, places, marker, color=colour, label=label, markersize=6)
        labels = [
            f"{summary.short(r['dtypes'])} {r['form']} "
            f"{'value' if r['quantity'] == 'forward' else 'gradient'}"
            for r in records
        ]
        axis.set_title(op, fontsize=10, loc="left")
        axis.set_xscale("log")
        axis.set_yticks(places, labels, fontsize=8.5)
        axis.set_ylim(len(records) - 0.4, -0.6)
        open_frame(axis)
        axis.set_axisbelow(True)
    axes[-1, 0].set_xlabel("largest error against float64, ULP of the dtype")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        frameon=False,
        fontsize=9,
        loc="outside upper right",
        ncols=3,
    )
    return figure


def _bench(report: dict[str, Any]) -> list[Section]:
    targets = table(report)
    rows = [
        [line.op, line.what, line.measured, line.aim, "met" if line.met else "missed"]
        for line in targets
    ]
    styles = ["good" if line.met else "failed" for line in targets]
    body = on_page(draw_bench(report))
    body += page.table(["op", "target", "measured", "asked for", ""], rows, styles)
    if memory := memory_lines(report):
        header = ["case", "", "MiB at the peak", "kept for the backward pass"]
        body += page.table(header, memory)
    timings = []
    for row in report["rows"]:
        cells = [f"{name} {duration(t['median'])}" for name, t in row["timings"].items()]
        case = f"{row['op']} {row['label']}"
        timings.append([FRAMEWORKS[row["framework"]], case, ", ".join(cells)])
    listing = page.table(["framework", "case", "median of a call"], timings)
    body += page.details("Every timing", listing) + page.paragraph(METHOD, "small")
    body += "".join(page.paragraph(note, "small") for note in report["notes"])
    return [Section("Speed", body)]


def _machine() -> Section:
    facts = machine.describe()
    rows = [[name, str(value)] for name, value in facts["versions"].items() if value]
    rows += [[name, str(value)] for name, value in facts["machine"].items() if value]
    rows.append(["instruction set", facts["build"]["cpu_isa"]])
    rows += [["commit", facts["commit"]]] if facts["commit"] else []
    rows.append(["date", facts["date"]])
    return Section("Made with", page.table(["", ""], rows))
