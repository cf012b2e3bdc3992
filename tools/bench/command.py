"""The bench command: runs the cases, collects the report, writes JSON and the plot."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bridge.cli import machine, options
from bridge.cli.budget import Budget, Step, go_through, run_within
from bridge.cli.errors import CommandError
from bridge.cli.rows import Recording, unfinished
from tools.bench import several_devices
from tools.bench.cases import (
    BESIDE,
    BORDER,
    FRAMEWORKS,
    HUGGINGFACE,
    LARGE_BYTES,
    Case,
    enlarged,
)
from tools.bench.ops import OPS
from tools.bench.summary import METHOD, duration, show
from tools.bench.targets import PEERS, geometric_mean, speedups, targets
from tools.bench.timing import interleave

__all__ = ["METHOD", "add_arguments", "duration", "measure", "run", "show"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(
        parser,
        device=None,
        json="write every timing",
        jsonl=None,
        seconds=None,
        plot=None,
        quick="few cases, short",
    )
    parser.add_argument(
        "--large",
        action="store_true",
        help="arrays larger than any cache: 1 GiB on cuda and 256 MiB on cpu",
    )
    options.add_choice(parser, "ops", (*OPS, BORDER, HUGGINGFACE), "OP", "only these")
    parser.set_defaults(ops=(*OPS, BORDER))  # without models, which compile for minutes
    parser.add_argument(
        "--framework", choices=("torch", "jax"), action="append", help="only this one"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")


def run(chosen: argparse.Namespace) -> int:
    def asked(**how: Any) -> dict[str, Any]:
        report = measure(
            device=chosen.device,
            quick=chosen.quick,
            large=chosen.large,
            ops=chosen.ops,
            frameworks=tuple(chosen.framework or FRAMEWORKS),
            with_compile=not chosen.no_compile,
            **how,
        )
        main = [row for row in report["rows"] if row["part"] == "main"]
        if chosen.plot is not None and not any(row["bytes"] for row in main):
            report["notes"].append("no plot: nothing measured is held to the memory's speed")
            chosen.plot = None
        return report

    run_within(chosen, asked, show, plot=_plot)
    return 0


def _plot(report: dict[str, Any], path: Path) -> None:
    from tools.bench.plot import draw
    from tools.plots import save

    save(draw(report), path)


@contextlib.contextmanager
def _compiled_first() -> Iterator[None]:
    """Compiles before timing: the first call of a declared op waits for its compilation."""
    before = os.environ.get("BRIDGE_COMPILE")
    os.environ["BRIDGE_COMPILE"] = "now"
    try:
        yield
    finally:
        if before is None:
            del os.environ["BRIDGE_COMPILE"]
        else:
            os.environ["BRIDGE_COMPILE"] = before


@_compiled_first()
def measure(
    *,
    device: str = "cpu",
    quick: bool = False,
    large: bool = False,
    ops: Sequence[str] = (*OPS, BORDER),
    frameworks: Sequence[str] = tuple(FRAMEWORKS),
    with_compile: bool = True,
    recording: Recording | None = None,
    budget: Budget | None = None,
) -> dict[str, Any]:
    """Runs the cases, or the part that the budget allows, and returns the report, in JSON's types.

    Raises:
      CommandError: if there is no framework, or the device is missing.
    """
    if device == "cuda":
        machine.require_cuda()
    recording, budget = recording or Recording(), budget or Budget()
    # The time for the samples of each case. Calls on a GPU are queued, and vary less.
    seconds = 0.25 if device == "cuda" else 0.4 if quick else 0.7
    busy, notes = machine.load("these timings are")
    contenders = {}
    with_compile &= any(op in OPS for op in ops)
    for framework in frameworks:
        try:
            machine.require(framework)
        except CommandError as error:
            notes.append(f"{framework} skipped: {error}")
            continue
        contenders[framework] = _contenders(framework, device, with_compile)
    steps = list(_steps(contenders, ops, device, quick, large, seconds))
    if not steps:
        raise CommandError("; ".join(notes) or f"{', '.join(ops)}: no case for these options")
    ops = [op for op in ops if op in OPS]
    recording.begin(
        {
            "schema": 2,
            "command": "bench",
            **machine.describe(),
            "options": {
                "device": device,
                "quick": quick,
                "large": large,
                "ops": ops,
                "frameworks": list(frameworks),
                "threads": _threads() if "torch" in contenders else None,
            },
            "load_before": busy,
            "method": METHOD,
            "cases": len(steps),
            "notes": notes,
        }
    )
    complete = go_through(steps, recording, budget)
    notes = notes + [note for found in contenders.values() for note in found.notes]
    recording.finish(complete, notes=notes)
    return report(recording)


def _steps(
    contenders: dict[str, Any],
    ops: Sequence[str],
    device: str,
    quick: bool,
    large: bool,
    seconds: float,
) -> Iterator[Step]:
    for framework, found in contenders.items():
        for op in (op for op in ops if op in OPS):
            cases = list(OPS[op].cases(framework, quick))
            sharded = [case for case in cases if case.part == "sharded"]
            cases = [case for case in cases if case not in sharded]
            for case in enlarged(cases, LARGE_BYTES[device]) if large else cases:
                words = f"bench {framework}: {op} {case.label}"
                turn = ((framework, op, case.form),)
                yield Step(op, turn, words, partial(_rows, case, found, seconds))
            if sharded and not large:
                words = f"bench {framework}: {op} on several devices"
                rows = partial(_sharded_rows, device, sharded, seconds)
                yield Step(op, ((framework, op),), words, rows)
    if HUGGINGFACE in ops and "torch" in contenders and not large:
        from tools.bench import huggingface

        rows = partial(
            huggingface.rows, device, seconds, ("all",) if quick else (*huggingface.FORMS,)
        )
        yield Step(HUGGINGFACE, (HUGGINGFACE,), "bench: models of transformers", rows)
    if BORDER in ops and len(contenders) == 2 and not large:
        from tools.bench import border, border_from_jax, border_from_torch

        for part in (border, border_from_jax, border_from_torch):
            rows = partial(part.rows, device, seconds)
            yield Step(BORDER, (BORDER,), "bench: border", rows)


def _rows(case: Case, contenders: Any, seconds: float) -> Iterator[dict[str, Any]]:
    row = _row(case, interleave(contenders.of(case), seconds))
    if case.peak:
        row["memory_bytes"] = contenders.memory(case)
    yield row


def _sharded_rows(device: str, cases: list[Case], seconds: float) -> Iterator[dict[str, Any]]:
    timings = several_devices.timings(device, cases, seconds)  # empty with a single GPU
    yield from map(_row, cases, timings)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def report(recording: Recording) -> dict[str, Any]:
    """Returns the report of a recording."""
    rows = [row for _, row in recording.rows()]
    main = [row for row in rows if row["part"] == "main"]
    facts = recording.facts()
    shortfall = unfinished(facts)
    return facts | {
        "notes": [*facts["notes"], *([shortfall] if shortfall else [])],
        "rows": rows,
        "geometric_means": {
            op: {
                peer: geometric_mean(speedups((r for r in main if r["op"] == op), peer))
                for framework in facts["options"]["frameworks"]
                for peer in PEERS[framework]
            }
            for op in facts["options"]["ops"]
        },
        "targets": [target.to_json() for target in targets(rows)],
    }


def _contenders(framework: str, device: str, with_compile: bool) -> Any:
    if framework == "torch":
        from tools.bench.in_torch import Contenders

        return Contenders(device, with_compile)
    from tools.bench import in_jax

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
        "timings": {name: timing.to_json() for name, timing in timings.items()},
        "gigabytes_per_second": {
            name: moved / seconds / 1e9 for name, seconds in medians.items() if moved
        },
        "speedup": {name: medians[name] / medians["bridge"] for name in peers},
    }
