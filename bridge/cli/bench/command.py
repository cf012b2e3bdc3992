"""The bench command: runs the cases, prints tables and targets, writes JSON and the plot."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import bridge
from bridge.cli import machine
from bridge.cli.bench.cases import CHAIN, Case, cases
from bridge.cli.bench.targets import PEERS, geometric_mean, speedups, targets
from bridge.cli.bench.timing import interleave
from bridge.cli.main import CommandError
from bridge.cli.progress import bar, terminal

METHOD = (
    "Median wall-clock time of a call from Python, its results waited for (torch on a CPU returns "
    "when they are there; jax.block_until_ready; on CUDA a sample queues its calls and waits for "
    "the last). Contenders of a row take turns in one process, on the same inputs and threads, "
    "after a warm-up that compiles. GB/s counts the fewest bytes: two arrays for forward, three "
    "for backward, five for both. 'new': every result in newly allocated memory, as in ordinary "
    "code; out= and donated: into memory that is there. copy: torch's copy_ (out=) or clone (new) "
    "of x."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every timing")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot (.svg, .png, .pdf)")
    parser.add_argument("--quick", action="store_true", help="few cases, short")
    parser.add_argument(
        "--framework", choices=("torch", "jax"), action="append", help="only this one"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")


def run(options: argparse.Namespace) -> int:
    console = terminal()
    report = measure(
        device=options.device,
        quick=options.quick,
        frameworks=tuple(options.framework or ("torch", "jax")),
        with_compile=not options.no_compile,
    )
    show(report, console)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        console.print(f"every timing: {options.json}")
    if options.plot is not None:
        from bridge.cli.bench.plot import draw

        options.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(report).savefig(options.plot, bbox_inches="tight", dpi=150)
        console.print(f"plot: {options.plot}")
    return 0


def measure(
    *,
    device: str = "cpu",
    quick: bool = False,
    frameworks: tuple[str, ...] = ("torch", "jax"),
    with_compile: bool = True,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Runs the cases and returns the report, in JSON's types.

    Args:
      seconds: how long each case is sampled; None chooses by `quick`.

    Raises:
      CommandError: if no framework, or not the device, is there.
    """
    if device == "cuda" and not bridge.has_cuda():
        why = bridge.build_info().get("cuda_unavailable", "no device answers")
        raise CommandError(f"--device cuda: {why}")
    seconds = seconds if seconds is not None else 0.4 if quick else 1.0
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    begin = time.perf_counter()
    threads = None
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > 0.5 * machine.cores():
        notes.append(
            f"other work was running (load {busy:.1f} on {machine.cores()} cores): these timings "
            "are not to be relied on"
        )
    with bar() as progress:
        for framework in frameworks:
            try:
                machine.require(framework)
            except CommandError as error:
                notes.append(f"{framework} skipped: {error}")
                continue
            task = progress.add_task(f"bench {framework}: setting up", total=None)
            contenders = _contenders(framework, device, with_compile)
            chosen = list(cases(framework, quick))
            progress.update(task, total=len(chosen))
            for case in chosen:
                progress.update(task, description=f"bench {framework}: {case.label}")
                rows.append(_row(case, interleave(contenders.of(case), seconds)))
                progress.advance(task)
            notes += contenders.notes
            if framework == "torch":
                import torch

                threads = torch.get_num_threads()
    if not rows:
        raise CommandError("; ".join(notes))
    return {
        "schema": 1,
        "command": "bench",
        **machine.describe(),
        "options": {"device": device, "quick": quick, "threads": threads},
        "load_before": busy,
        "method": METHOD,
        "notes": notes,
        "seconds": round(time.perf_counter() - begin, 1),
        "rows": rows,
        "geometric_means": {
            peer: geometric_mean(speedups((r for r in rows if not r["tiny"]), peer))
            for framework in frameworks
            for peer in PEERS[framework]
        },
        "targets": [target.to_json() for target in targets(rows)],
    }


def _contenders(framework: str, device: str, with_compile: bool) -> Any:
    if framework == "torch":
        from bridge.cli.bench.in_torch import Contenders

        return Contenders(device, with_compile)
    from bridge.cli.bench import in_jax

    return in_jax.Contenders(device)


def _row(case: Case, timings: dict[str, Any]) -> dict[str, Any]:
    medians = {name: timing.median for name, timing in timings.items()}
    peers = [name for name in medians if name not in ("bridge", "copy", "add") and "×" not in name]
    return {
        "op": case.op,
        "framework": case.framework,
        "what": case.what,
        "dtype": case.dtype,
        "approximate": case.form,
        "shape": list(case.shape),
        "memory": case.memory,
        "tiny": case.is_tiny,
        "label": case.label,
        "bytes": case.bytes,
        "timings": {
            name: {
                "median": timing.median,
                "low": timing.low,
                "high": timing.high,
                "rounds": timing.rounds,
            }
            for name, timing in timings.items()
        },
        "gigabytes_per_second": {
            name: case.bytes / seconds / 1e9 for name, seconds in medians.items() if case.bytes
        },
        "speedup": {name: medians[name] / medians["bridge"] for name in peers},
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Prints a table for each framework, the tiny calls, and the targets."""
    for framework, peers in PEERS.items():
        rows = [row for row in report["rows"] if row["framework"] == framework]
        if rows:
            console.print(_table(framework, peers, [row for row in rows if not row["tiny"]]))
    _show_tiny(report, console)
    _show_targets(report, console)
    console.print(f"[dim]{METHOD}[/]", highlight=False)
    for note in report["notes"]:
        console.print(f"[yellow]{note}[/]", highlight=False)
    seconds, options = report["seconds"], report["options"]
    console.print(f"{options['device']}, {options['threads']} threads, {seconds} s", style="dim")


def _table(framework: str, peers: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    title = {"torch": "PyTorch", "jax": "JAX"}[framework]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("case", no_wrap=True)
    for heading in ("bridge", "spread", "GB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    with_copy = any("copy" in row["timings"] for row in rows)
    if with_copy:
        table.add_column("copy GB/s", justify="right", no_wrap=True)
    for peer in peers:
        table.add_column(f"× {peer}", justify="right", no_wrap=True)
    for row in rows:
        timing, gbps = row["timings"]["bridge"], row["gigabytes_per_second"]
        spread = (timing["high"] - timing["low"]) / timing["median"]
        cells = [row["label"], duration(timing["median"]), f"{spread:.0%}", f"{gbps['bridge']:.1f}"]
        if with_copy:
            cells.append(f"{gbps['copy']:.1f}" if "copy" in gbps else "")
        table.add_row(*cells, *(_ratio(row["speedup"].get(peer)) for peer in peers))
    return table


def _show_tiny(report: dict[str, Any], console: Console) -> None:
    rows = [row for row in report["rows"] if row["tiny"]]
    if not rows:
        return
    table = Table(title="Tiny calls, µs", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("case")
    table.add_column("median of a call")
    for row in rows:
        timings = row["timings"]
        values = {name: timing["median"] * 1e6 for name, timing in timings.items()}
        if row["what"] == "chain":
            for name in ("bridge", "jit"):
                further = (values.pop(f"{name} ×{CHAIN}") - values[name]) / (CHAIN - 1)
                values[f"{name}, per further call"] = further
        text = "   ".join(f"{name} {value:.2f}" for name, value in values.items())
        table.add_row(f"{row['framework']} {row['label']}", text)
    console.print(table)


def _show_targets(report: dict[str, Any], console: Console) -> None:
    table = Table(title="Targets", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    for heading in ("measured", "target", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for target in report["targets"]:
        if target["value"] is None:
            continue
        sign = "≤" if target["at_most"] else "≥"
        style = "green" if target["met"] else "red"
        table.add_row(
            target["what"],
            f"{target['value']:.2f} {target['unit']}",
            f"{sign} {target['limit']:g} {target['unit']}",
            f"[{style}]{'met' if target['met'] else 'missed'}[/]",
        )
    console.print(table)


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms"


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 1 else f"[red]{value:.2f}[/]"
