"""The report as tables, each measured, fitted or modelled; the terminal and docs show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.cli.scaling.links import NODE, NVLINK

Report = dict[str, Any]

MEASURED, FITTED, MODELLED = "measured", "fitted", "modelled"


@dataclass(frozen=True)
class Table:
    """Cells as text.

    Attributes:
      name: by which docs ask for it.
      kind: MEASURED, FITTED or MODELLED.
      texts: how many columns, from the left, are words rather than numbers.
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


def duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if seconds < 0.9995 * limit:
            return f"{_figures(seconds * scale)} {unit}"
    raise AssertionError


def amount(count: float) -> str:
    """Bytes, in units of 1024."""
    if count == 0:
        return "0"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1023.5 or unit == "TiB":
            return f"{_figures(count)} {unit}"
        count /= 1024
    raise AssertionError


def _figures(value: float) -> str:
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def _percent(error: float) -> str:
    return f"{error:.0%}"


def _signed(error: float) -> str:
    return f"{error:+.0%}"


def _transport(report: Report, collective: str) -> list[dict[str, Any]]:
    rows = (row for row in report["measured"] if row["part"] == "transport")
    return [row for row in rows if row["collective"] == collective]


def _points(report: Report) -> Table:
    counts = sorted({row["processes"] for row in report["measured"]})
    rows = []
    for collective in report["fits"]:
        found = {(r["bytes"], r["processes"]): r for r in _transport(report, collective)}
        for size in sorted({size for size, _ in found}):
            times = [duration(found[size, n]["median"]) for n in counts]
            widest = max(counts)
            sent = found[size, widest]["sent_bytes"]
            rows.append([collective, amount(size), *times, "–" if sent is None else amount(sent)])
    names = [f"{n} process{'es' if n > 1 else ''}" for n in counts]
    header = ["collective", "part of a rank", *names, f"sent by a rank of {max(counts)}"]
    return Table("points", MEASURED, "Gloo on loopback, median of a call", header, rows)


def _fits(report: Report) -> Table:
    rows = []
    for collective, found in report["fits"].items():
        residuals = found["residuals"]
        rows.append(
            [
                collective,
                duration(found["overhead"]),
                duration(found["alpha"]),
                _rate(found["beta"]),
                _rate(found["copy"]),
                str(found["points"]),
                *(_percent(residuals[key]) for key in ("median", "rms", "worst")),
            ]
        )
    header = ["collective", "a call, c", "a step, α", "1 ÷ β", "copying, 1 ÷ κ", "points"]
    header += ["residual: median", "root mean square", "worst"]
    return Table("fits", FITTED, "Latency and bandwidth of this machine's Gloo", header, rows)


def _rate(seconds_per_byte: float) -> str:
    return f"{_figures(1e-9 / seconds_per_byte)} GB/s" if seconds_per_byte > 0 else "–"


def _validation(report: Report) -> Table:
    rows = []
    for collective, found in report["validation"].items():
        for check in found:
            worst = max(check["errors"], key=lambda e: abs(e["error"]))
            where = f"{_signed(worst['error'])} at {amount(worst['bytes'])}"
            where += f", {worst['processes']} processes"
            numbers = [str(len(check["errors"])), _percent(check["median"]), _percent(check["rms"])]
            rows.append([collective, check["what"], *numbers, where])
    header = ["collective", "predicted", "points", "error: median", "root mean square", "worst"]
    return Table(
        "validation", FITTED, "Predictions of points that the fit has not seen", header, rows, 2
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
    header = ["pass", "grad", *(f"{n} processes" for n in counts)]
    header.append(f"sent by a rank of {max(counts, default=0)}")
    title = f"bridge.torch.all_gather of {amount(part)} on a rank, under each gradient rule"
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
    return Table("links", "published", "Links and device of the models", header, rows, 1, note)


def _link_name(row: dict[str, Any]) -> str:
    beyond = row["link"] == NVLINK.name and row["ranks"] > NODE
    return row["link"] + (" *" if beyond else "")


_BEYOND = f"* NVLink 4 joins {NODE} GPUs of a DGX H100; beyond, the row is what no machine has."


def _contrastive(report: Report) -> Table:
    model = report["contrastive"]
    grouped: dict[tuple[int, str], dict[tuple[str, str], Any]] = {}
    for row in model["rows"]:
        by_choice = grouped.setdefault((row["ranks"], row["link"]), {})
        by_choice[row["loss"], row["rule"]] = row
    rows = []
    for (ranks, _), by_choice in grouped.items():
        own, whole = by_choice["own rows", "sum"], by_choice["whole loss", "local"]
        fitting = [row for row in (own, whole) if row["fits"]]
        best = min(fitting, key=lambda row: row["seconds"]["total"], default=None)
        rows.append(
            [
                f"{ranks:,}",
                _link_name(own),
                "–" if ranks == 1 else own["algorithm"],
                duration(own["seconds"]["forward"]),
                duration(own["seconds"]["total"]),
                duration(whole["seconds"]["total"]),
                amount(own["memory_bytes"]["gathered"]),
                amount(own["memory_bytes"]["logits"]),
                amount(whole["memory_bytes"]["logits"]),
                "any" if ranks == 1 else f'"{best["rule"]}"' if best else "does not fit",
            ]
        )
    header = ["ranks", "link", "fastest algorithm", "gathers", '"sum", own rows: total']
    header += ['"local", whole loss: total', "gathered", "logits, own rows", "logits, whole"]
    header += ["choose"]
    title = (
        f"contrastive step, {model['batch']} pairs of width {model['width']} on a rank, on one rank"
    )
    note = (
        "Totals: gathers of both towers, their gradients' exchange, and the arithmetic of the "
        f'logits at its peak. "mean" with the whole loss sends what "sum" sends. {_BEYOND}'
    )
    return Table("contrastive", MODELLED, title, header, rows, 3, note)


def _sent(report: Report) -> Table:
    model = report["contrastive"]
    first = model["rows"][0]["link"]
    rows = [
        [
            f"{row['ranks']:,}",
            row["loss"],
            f'"{row["rule"]}"',
            amount(row["sent_bytes"]["forward"]),
            amount(row["sent_bytes"]["backward"]),
        ]
        for row in model["rows"]
        if row["link"] == first and row["ranks"] in (8, 512, 65_536)
    ]
    header = ["ranks", "loss", "grad", "sent forward", "sent backward"]
    return Table("sent", MODELLED, "what a rank sends under each right rule", header, rows, 3)


def _sequence(report: Report) -> Table:
    model = report["sequence"]
    rows = []
    for row in model["rows"]:
        communication, arithmetic = (row["seconds"][key] for key in ("communication", "arithmetic"))
        memory = row["memory_bytes"]
        rows.append(
            [
                f"{row['ranks']:,}",
                _link_name(row),
                "–" if row["ranks"] == 1 else row["algorithm"],
                duration(communication),
                duration(arithmetic),
                f"{communication / arithmetic:.2g}".replace("e+0", "e"),
                amount(memory["gathered"]),
                amount(memory["kept"]),
                amount(memory["kept_unsplit"]),
                "yes" if row["fits"] else "no",
            ]
        )
    header = ["ranks", "link", "fastest algorithm", "exchanges", "arithmetic", "ratio"]
    header += ["gathered", "kept, split", "kept, not split", "fits"]
    title = (
        f"a layer of width {model['width']:,}, {model['tokens']:,} tokens, sequence-parallel; "
        f"memory of {model['layers']} layers"
    )
    ends = ", ".join(
        f"{link}: {'none' if count is None else f'{count:,}'}"
        for link, count in model["break_even"].items()
    )
    note = (
        "Exchanges and arithmetic of one layer, forward and backward. Fewest ranks, in powers of "
        f"two, where exchanges take longer than arithmetic: {ends}. {_BEYOND}"
    )
    return Table("sequence", MODELLED, title, header, rows, 3, note)


def _copies(report: Report) -> Table:
    rows = [
        [row["form"], amount(row["extra_bytes"]), duration(row["extra_seconds"])]
        for row in report["sequence"]["copies"]
    ]
    header = ["gathered activation, several sequences, 8 ranks", "copied besides", "time of it"]
    return Table("copies", MODELLED, "tiled or stacked", header, rows)


MAKERS: dict[str, Callable[[Report], Table]] = {
    "points": _points,
    "fits": _fits,
    "validation": _validation,
    "rules": _rules,
    "links": _links,
    "contrastive": _contrastive,
    "sent": _sent,
    "sequence": _sequence,
    "copies": _copies,
}
