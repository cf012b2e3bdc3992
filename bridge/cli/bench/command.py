"""The bench command: runs the cases, collects the report, writes JSON and the plot."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bridge
from bridge.cli import machine
from bridge.cli.bench import several_devices
from bridge.cli.bench.cases import BESIDE, Case
from bridge.cli.bench.ops import OPS
from bridge.cli.bench.summary import METHOD, duration, show
from bridge.cli.bench.targets import PEERS, geometric_mean, speedups, targets
from bridge.cli.bench.timing import interleave
from bridge.cli.main import CommandError
from bridge.cli.progress import bar, terminal

BORDER = "border"  # not an op: the tensors that go from one framework to the other

__all__ = ["METHOD", "add_arguments", "duration", "measure", "run", "show"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every timing")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot (.svg, .png, .pdf)")
    parser.add_argument("--quick", action="store_true", help="few cases, short")
    parser.add_argument(
        "--ops",
        nargs="+",
        choices=(*OPS, BORDER),
        default=(*OPS, BORDER),
        metavar="OP",
        help=f"only these: {', '.join((*OPS, BORDER))}",
    )
    parser.add_argument(
        "--framework", choices=("torch", "jax"), action="append", help="only this one"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")


def run(options: argparse.Namespace) -> int:
    console = terminal()
    report = measure(
        device=options.device,
        quick=options.quick,
        ops=options.ops,
        frameworks=tuple(options.framework or ("torch", "jax")),
        with_compile=not options.no_compile,
    )
    show(report, console)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        console.print(f"every timing: {options.json}")
    if options.plot is not None and not any(row["part"] == "main" for row in report["rows"]):
        console.print("no plot: what was measured is calls alone", style="yellow")
    elif options.plot is not None:
        from bridge.cli.bench.plot import draw

        options.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(report).savefig(options.plot, bbox_inches="tight", dpi=150)
        console.print(f"plot: {options.plot}")
    return 0


def measure(
    *,
    device: str = "cpu",
    quick: bool = False,
    ops: Sequence[str] = (*OPS, BORDER),
    frameworks: tuple[str, ...] = ("torch", "jax"),
    with_compile: bool = True,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Runs the cases and returns the report, in JSON's types.

    Args:
      seconds: how long each case is sampled; None chooses by `quick` and `device`.

    Raises:
      CommandError: if no framework, or not the device, is there.
    """
    if device == "cuda" and not bridge.has_cuda():
        why = bridge.build_info().get("cuda_unavailable", "no device answers")
        raise CommandError(f"--device cuda: {why}")
    if seconds is None:
        # A GPU's calls are queued, and steadier.
        seconds = 0.25 if device == "cuda" else 0.4 if quick else 0.7
    with_border = BORDER in ops
    ops = [op for op in ops if op != BORDER]
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
        for framework in frameworks if ops else ():
            try:
                machine.require(framework)
            except CommandError as error:
                notes.append(f"{framework} skipped: {error}")
                continue
            task = progress.add_task(f"bench {framework}: setting up", total=None)
            contenders = _contenders(framework, device, with_compile)
            cases = [case for op in ops for case in OPS[op].cases(framework, quick)]
            sharded = [case for case in cases if case.part == "sharded"]
            progress.update(task, total=len(cases))
            for case in (case for case in cases if case not in sharded):
                progress.update(task, description=f"bench {framework}: {case.op} {case.label}")
                row = _row(case, interleave(contenders.of(case), seconds))
                if case.peak:
                    row["memory_bytes"] = contenders.memory(case)
                rows.append(row)
                progress.advance(task)
            timings = several_devices.timings(device, sharded, seconds)
            rows += [_row(case, timing) for case, timing in zip(sharded, timings, strict=False)]
            progress.advance(task, len(sharded))
            notes += contenders.notes
            if framework == "torch":
                import torch

                threads = torch.get_num_threads()
    if with_border and set(frameworks) == {"torch", "jax"}:
        try:
            rows += _border(device, seconds)
        except CommandError as error:
            notes.append(f"border skipped: {error}")
    if not rows:
        raise CommandError("; ".join(notes))
    main = [row for row in rows if row["part"] == "main"]
    return {
        "schema": 2,
        "command": "bench",
        **machine.describe(),
        "options": {"device": device, "quick": quick, "ops": ops, "threads": threads},
        "load_before": busy,
        "method": METHOD,
        "notes": notes,
        "seconds": round(time.perf_counter() - begin, 1),
        "rows": rows,
        "geometric_means": {
            op: {
                peer: geometric_mean(speedups((r for r in main if r["op"] == op), peer))
                for framework in frameworks
                for peer in PEERS[framework]
            }
            for op in ops
        },
        "targets": [target.to_json() for target in targets(rows)],
    }


def _border(device: str, seconds: float) -> list[dict[str, Any]]:
    for framework in ("torch", "jax"):
        machine.require(framework)
    from bridge.cli.bench import border, border_from_jax, border_from_torch

    parts = (border, border_from_jax, border_from_torch)
    return [row for part in parts for row in part.rows(device, seconds)]


def _contenders(framework: str, device: str, with_compile: bool) -> Any:
    if framework == "torch":
        from bridge.cli.bench.in_torch import Contenders

        return Contenders(device, with_compile)
    from bridge.cli.bench import in_jax

    return in_jax.Contenders(device)


def _row(case: Case, timings: dict[str, Any]) -> dict[str, Any]:
    medians = {name: timing.median for name, timing in timings.items()}
    peers = [name for name in medians if name not in ("bridge", *BESIDE) and "×" not in name]
    moved = OPS[case.op].bytes(case)
    return {
        "op": case.op,
        "framework": case.framework,
        "what": case.what,
        "dtype": case.dtype,
        "form": case.form,
        "shape": list(case.shape),
        "memory": case.memory,
        "part": case.part,
        "label": case.label,
        "bytes": moved,
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
            name: moved / seconds / 1e9 for name, seconds in medians.items() if moved
        },
        "speedup": {name: medians[name] / medians["bridge"] for name in peers},
    }
