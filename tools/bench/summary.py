"""The report in the terminal: a table for each op and framework, the tiny calls, the targets."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from bridge.cli.terminal import print_cells, print_method
from tools.bench.cases import CHAIN, FRAMEWORKS
from tools.bench.targets import PEER_NAMES, PEERS, further_call, table

METHOD = (
    "Median wall-clock time of a call from Python, its results waited for (torch on a CPU returns "
    "when they are there; jax.block_until_ready; on CUDA a sample queues its calls and waits for "
    "the last). Contenders of a row take turns in one process, on the same inputs and threads, "
    "after a warm-up that compiles. GB/s counts the fewest bytes: every array once that must be "
    "read or written, of a causal mask's upper half only the zeros that are written. 'new': every "
    "result in memory that its contender allocates, as in ordinary code; large ones of "
    "bridge.torch on a CPU lie in what its earlier results left. out= and donated: into memory "
    "that is there, where an operand that was given away gets its first values back, untimed. "
    "copy: torch's copy_ (out=) or clone (new) of x. Memory: the most that was allocated at once "
    "besides the operands, and what autograd keeps from the forward to the backward pass."
)


def show(report: dict[str, Any], console: Console) -> None:
    """Prints the report."""
    for op in dict.fromkeys(row["op"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["op"] == op]
        for framework, peers in PEERS.items():
            of_framework = [
                row for row in rows if row["framework"] == framework and row["part"] != "tiny"
            ]
            if of_framework:
                title = f"{op}, {FRAMEWORKS[framework]}"
                print_cells(console, title, *_timings((*peers, "shard_map"), of_framework))
    header = ["case", "", "peak", "kept for backward"]
    how: dict[str, Any] = {"left": (0, 1), "wrap": (0, 1)}
    print_cells(console, "Memory, MiB", header, memory_lines(report), group=1, **how)
    print_cells(console, "Tiny calls, µs", ["case", "median of a call"], _tiny(report), **how)
    header = ["op", "what", "measured", "target", ""]
    verdicts = {True: "[green]met[/]", False: "[red]missed[/]"}
    rows = [
        [line.op, line.what, line.measured, line.aim, verdicts[line.met]] for line in table(report)
    ]
    print_cells(console, "Targets", header, rows, group=1, **how)
    print_method(console, METHOD, report["notes"])
    seconds, options = report["seconds"], report["options"]
    console.print(f"{options['device']}, {options['threads']} threads, {seconds} s", style="dim")


def memory_lines(report: dict[str, Any]) -> list[list[str]]:
    """Returns case, contender, and MiB at the peak and of residuals, if memory was measured."""
    lines = []
    for row in report["rows"]:
        for name, taken in row.get("memory_bytes", {}).items():
            case = f"{row['op']} {row['label']}"
            both = [f"{taken[key] / 2**20:.1f}" if key in taken else "" for key in ("peak", "kept")]
            name = f"bridge in {FRAMEWORKS[row['framework']]}" if name == "bridge" else name
            lines.append([case, PEER_NAMES.get(name, name), *both])
    return lines


def _timings(
    peers: tuple[str, ...], rows: list[dict[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    with_copy = any("copy" in row["timings"] for row in rows)
    peers = tuple(peer for peer in peers if any(peer in row["speedup"] for row in rows))
    with_rate = any(row["gigabytes_per_second"] for row in rows)
    rates = [*(["GB/s"] if with_rate else []), *(["copy GB/s"] if with_copy else [])]
    header = ["case", "bridge", "spread", *rates]
    header += [f"× {peer}" for peer in peers]
    made = []
    for row in rows:
        timing, gbps = row["timings"]["bridge"], row["gigabytes_per_second"]
        spread = (timing["high"] - timing["low"]) / timing["median"]
        cells = [row["label"], duration(timing["median"]), f"{spread:.0%}"]
        if with_rate:
            cells.append(f"{gbps['bridge']:.1f}" if gbps else "")
        if with_copy:
            cells.append(f"{gbps['copy']:.1f}" if "copy" in gbps else "")
        made.append([*cells, *(_ratio(row["speedup"].get(peer)) for peer in peers)])
    return header, made


def _tiny(report: dict[str, Any]) -> list[list[str]]:
    made = []
    for row in (row for row in report["rows"] if row["part"] == "tiny"):
        timings = row["timings"]
        values = {name: timing["median"] * 1e6 for name, timing in timings.items()}
        if row["what"] == "chain":
            for name in [name for name in values if "×" not in name]:
                del values[f"{name} ×{CHAIN}"]
                values[f"{name}, per further call"] = further_call(row, name) * 1e6
        text = "   ".join(f"{name} {value:.2f}" for name, value in values.items())
        made.append([f"{row['framework']} {row['op']} {row['label']}", text])
    return made


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms"


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 1 else f"[red]{value:.2f}[/]"
