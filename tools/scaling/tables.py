"""The report as tables, each measured, fitted or modelled; the terminal and docs show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.scaling.fit import points_of
from tools.scaling.links import NODE, NVLINK
from tools.scaling.quantities import amount, duration, percent, rate, signed

Report = dict[str, Any]

MEASURED, FITTED, MODELLED = "measured", "fitted", "modelled"


@dataclass(frozen=True)
class Table:
    """A table with cells of text.

    Attributes:
      name: the name by which the docs quote it.
      kind: MEASURED, FITTED or MODELLED.
      texts: the number of columns, from the left, that hold text instead of numbers.
    """

    name: str
    kind: str
    title: str
    header: list[str]
    rows: list[list[str]]
    texts: int = 1
    note: str = ""


def tables(report: Report) -> list[Table]:
    return [make(report) for make in MAKERS.values()]


def _points(report: Report) -> Table:
    counts = sorted({row["processes"] for row in report["measured"]})
    rows = []
    for collective in report["fits"]:
        found = {(r["bytes"], r["processes"]): r for r in points_of(report, collective)}
        for size in sorted({size for size, _ in found}):
            times = [duration(found[size, n]["median"]) for n in counts]
            widest = max(counts)
            sent = found[size, widest]["sent_bytes"]
            rows.append([collective, amount(size), *times, "–" if sent is None else amount(sent)])
    header = ["collective", "part of a rank", *(f"n = {n}" for n in counts)]
    header.append(f"sent by a rank, n = {max(counts)}")
    return Table(
        "points", MEASURED, "Gloo on loopback, n processes, median of a call", header, rows
    )


def _fits(report: Report) -> Table:
    rows = []
    for collective, found in report["fits"].items():
        residuals = found["residuals"]
        rows.append(
            [
                collective,
                duration(found["overhead"]),
                duration(found["alpha"]),
                rate(found["beta"]),
                rate(found["copy"]),
                str(found["points"]),
                *(percent(residuals[key]) for key in ("median", "rms", "worst")),
            ]
        )
    header = ["collective", "call c", "step α", "1 ÷ β", "copy 1 ÷ κ", "points"]
    header += ["residuals: median", "RMS", "worst"]
    return Table("fits", FITTED, "latency and bandwidth of this machine's Gloo", header, rows)


def _validation(report: Report) -> Table:
    rows = []
    for collective, found in report["validation"].items():
        for check in found:
            worst = max(check["errors"], key=lambda e: abs(e["error"]))
            where = f"{amount(worst['bytes'])} × {worst['processes']}"
            numbers = [str(len(check["errors"])), percent(check["median"]), percent(check["rms"])]
            rows.append([collective, check["what"], *numbers, signed(worst["error"]), where])
    header = ["collective", "predicted", "points", "median", "RMS", "worst", "at"]
    return Table(
        "validation",
        FITTED,
        "errors of predictions of points that the fit has not seen",
        header,
        rows,
        2,
    )


def _rules(report: Report) -> Table:
    found: dict[tuple[str, str], dict[int, Any]] = {}
    for row in report["measured"]:
        if row["part"] == "rule":
            found.setdefault((row["pass"], row["grad"]), {})[row["processes"]] = row
    counts = sorted({n for rows in found.values() for n in rows})
    lines = []
    for (which, rule), rows in found.items():
        words = "any" if which == "forward" else f'"{rule}"'
        times = [duration(rows[n]["median"]) if n in rows else "" for n in counts]
        sent = rows[max(rows)]["sent_bytes"]
        lines.append([which, words, *times, "–" if sent is None else amount(sent)])
    part = next((r["bytes"] for r in report["measured"] if r["part"] == "rule"), 0)
    header = ["pass", "grad", *(f"n = {n}" for n in counts)]
    header.append(f"sent by a rank, n = {max(counts, default=0)}")
    title = f"bridge.torch.all_gather of {amount(part)} from each rank"
    return Table("rules", MEASURED, title, header, lines, 2)


def _links(report: Report) -> Table:
    rows = [
        [
            link["name"],
            duration(link["alpha"]),
            f"{link['bandwidth'] / 1e9:g} GB/s",
            f"{link['reach']} devices" if link["reach"] else "any",
            link["source"],
        ]
        for link in report["links"]
    ]
    device = report["device"]
    note = (
        f"{device['name']}: {device['memory'] / 1e9:g} GB at "
        f"{device['memory_bandwidth'] / 1e12:g} TB/s, {device['flops'] / 1e12:g} TFLOP/s dense "
        f"bfloat16 ({device['source']}). Peaks: what follows from them is the least time."
    )
    header = ["link", "a step, α", "each way, 1 ÷ β", "joins", "source"]
    return Table("links", "published", "links and device of the models", header, rows, 1, note)


def _exchanges(report: Report) -> Table:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in report["exchanges"]["rows"]:
        found.setdefault((row["link"], row["ranks"]), {})[row["algorithm"]] = row["seconds"]
    names = ["ring", "recursive doubling", "binomial tree", "hierarchical"]
    rows = []
    for (link, ranks), times in found.items():
        best = min(times.values())
        cells = [
            f"{duration(times[name])}{' ◂' if times[name] == best else '  '}"
            if name in times
            else "–  "
            for name in names
        ]
        if ranks > 1:
            name = f"{link} *" if link == NVLINK.name and ranks > NODE else link
            rows.append([name, f"{ranks:,}", *cells])
    note = (
        "◂ the fastest. Hierarchical: recursive doubling over this link between nodes of "
        f"{NODE}, a ring over {NVLINK.name} inside. * {NVLINK.name} joins {NODE} GPUs in a DGX "
        "H100: beyond, the row describes no machine. A reduce-scatter of parts of this size takes "
        "as long."
    )
    title = f"an all-gather of {amount(report['exchanges']['part'])} from each device"
    return Table("exchanges", MODELLED, title, ["link", "devices", *names], rows, 1, note)


def _where(row: dict[str, Any]) -> str:
    if row["ranks"] == 1:
        return "alone"
    return NVLINK.name if row["ranks"] <= NODE else row["network"]


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drops rows that differ only in their network and do not use it."""
    return list({(row["ranks"], _where(row), row.get("rule")): row for row in rows}.values())


def _contrastive(report: Report) -> Table:
    model = report["contrastive"]
    grouped: dict[tuple[int, str], dict[str, Any]] = {}
    for row in _once(model["rows"]):
        grouped.setdefault((row["ranks"], _where(row)), {})[row["rule"]] = row
    rows = []
    for (ranks, where), rules in grouped.items():
        own, whole = rules["sum"], rules["local"]
        fitting = [row for row in (own, whole) if row["fits"]]
        best = min(fitting, key=lambda row: row["seconds"]["total"], default=None)
        rows.append(
            [
                f"{ranks:,}",
                where,
                duration(own["seconds"]["forward"]),
                *(duration(rules[rule]["seconds"]["total"]) for rule in ("sum", "local", "mean")),
                amount(own["memory_bytes"]["gathered"]),
                amount(own["memory_bytes"]["logits"]),
                amount(whole["memory_bytes"]["logits"]),
                _choice(ranks, best),
            ]
        )
    header = ["ranks", "link", "gathers", 'own, "sum"', 'whole, "local"', 'whole, "mean"']
    header += ["memory, gathered", "logits, own", "logits, whole", "choose"]
    title = (
        f"a contrastive step on a rank, {model['batch']} pairs of width {model['width']} on each"
    )
    note = (
        "Gathers of both towers by the fastest algorithm; then the step under each loss (own rows, "
        "or the whole loss on every rank) with a rule that gives its right gradients: gathers, "
        "exchange of gradients, and arithmetic of the logits at the device's peak. Chosen: the "
        "fastest that fits in memory with its cotangents."
    )
    return Table("contrastive", MODELLED, title, header, rows, 2, note)


def _choice(ranks: int, best: dict[str, Any] | None) -> str:
    if ranks == 1:
        return "any"
    return f'"{best["rule"]}"' if best else "none fits"


def _sent(report: Report) -> Table:
    model = report["contrastive"]
    rows = [
        [
            f"{row['ranks']:,}",
            row["loss"],
            f'"{row["rule"]}"',
            amount(row["sent_bytes"]["forward"]),
            amount(row["sent_bytes"]["backward"]),
        ]
        for row in {(row["ranks"], row["rule"]): row for row in model["rows"]}.values()
        if row["ranks"] in (8, 512, 65_536)
    ]
    header = ["ranks", "loss", "grad", "sent forward", "sent backward"]
    return Table("sent", MODELLED, "what a rank sends under each right rule", header, rows, 3)


def _sequence(report: Report) -> Table:
    model = report["sequence"]
    rows = []
    for row in _once(model["rows"]):
        times, memory = row["seconds"], row["memory_bytes"]
        ratio = times["communication"] / times["arithmetic"]
        rows.append(
            [
                f"{row['ranks']:,}",
                _where(row),
                duration(times["communication"]),
                duration(times["arithmetic"]),
                f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}",
                amount(memory["part"]),
                amount(memory["kept"]),
                amount(memory["kept_unsplit"]),
                "yes" if row["fits"] else "no",
            ]
        )
    header = ["ranks", "link", "exchanges", "arithmetic", "ratio", "part"]
    header += ["kept, split", "kept, not split", "fits"]
    title = (
        f"a layer of width {model['width']:,} on {model['tokens']:,} tokens; "
        f"memory on a rank of {model['layers']} layers"
    )
    ends = ", ".join(
        f"{count or 'none'} ({network})" for network, count in model["break_even"].items()
    )
    note = (
        "Exchanges (6 all-gathers and 4 reduce-scatters) and arithmetic of one layer, forward and "
        f"backward. A gathered activation is {amount(model['rows'][0]['memory_bytes']['gathered'])}"
        " on every rank, for as long as a block runs. Fewest ranks, in powers of two, whose "
        f"exchanges take longer than their arithmetic: {ends}."
    )
    return Table("sequence", MODELLED, title, header, rows, 2, note)


def _copies(report: Report) -> Table:
    rows = [
        [row["form"], amount(row["extra_bytes"]), duration(row["extra_seconds"])]
        for row in report["sequence"]["copies"]
    ]
    title = "tiled or stacked, a gathered activation of several sequences, 8 ranks"
    return Table("copies", MODELLED, title, ["form", "copied besides", "time of it"], rows)


MAKERS: dict[str, Callable[[Report], Table]] = {
    "points": _points,
    "fits": _fits,
    "validation": _validation,
    "rules": _rules,
    "links": _links,
    "exchanges": _exchanges,
    "contrastive": _contrastive,
    "sent": _sent,
    "sequence": _sequence,
    "copies": _copies,
}
