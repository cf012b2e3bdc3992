"""The scaling command: measures, fits, models, shows; writes JSON and the plot."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from bridge.cli import machine, options, outputs
from bridge.cli.errors import CommandError
from bridge.cli.progress import bar
from bridge.cli.terminal import terminal
from tools.scaling.algorithms import of_link
from tools.scaling.contrastive import Contrastive
from tools.scaling.fit import fit, points_of, summary, validation
from tools.scaling.links import H100, LINKS, NETWORKS
from tools.scaling.measure import Plan, measure
from tools.scaling.sequence import Layers, copies
from tools.scaling.summary import METHOD, show

COLLECTIVES = ("all-gather", "reduce-scatter")
MOST_PROCESSES = 16
MOST = 1 << 31  # limit of each number in the options
MOST_BYTES = 1 << 28  # limit of a measured part; each process gathers the parts of all
COUNTS = (1, 2, 8, 64, 512, 4096, 65_536)  # numbers of devices in the tables
POWERS = tuple(2**k for k in range(17))
SIZES = (64, 1 << 10, 1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23)
QUICK_SIZES = (64, 1 << 13, 1 << 17, 1 << 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, json="write every number", plot=None, quick="few sizes, short")
    parser.add_argument(
        "--processes", type=int, default=4, metavar="N", help="measure 1 to N processes (default 4)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="read the measurements from a file of --json, and only compute the model",
    )
    parser.add_argument(
        "--batch", type=int, default=Contrastive.batch, help="pairs on a rank (default %(default)s)"
    )
    parser.add_argument(
        "--width",
        type=int,
        default=Contrastive.width,
        help="width of an embedding (default %(default)s)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=Layers.tokens,
        help="tokens of a sequence (default %(default)s)",
    )
    parser.add_argument(
        "--hidden", type=int, default=Layers.width, help="width of a layer (default %(default)s)"
    )
    parser.add_argument(
        "--layers", type=int, default=Layers.layers, help="number of layers (default %(default)s)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="kill the processes after this time without a report (default %(default)g)",
    )


def run(chosen: argparse.Namespace) -> int:
    for name in ("batch", "width", "tokens", "hidden", "layers", "patience"):
        if not 0 < getattr(chosen, name) <= MOST:
            value = getattr(chosen, name)
            raise CommandError(f"--{name} is {value}, expected more than 0 and at most {MOST:,}")
    if not 2 <= chosen.processes <= MOST_PROCESSES:
        raise CommandError(
            f"--processes is {chosen.processes}, expected 2 to {MOST_PROCESSES}: one process "
            "sends nothing, and too many processes share too few cores"
        )
    task = Contrastive(chosen.batch, chosen.width)
    if task.part > MOST_BYTES and not chosen.source:
        raise CommandError(
            f"--batch {chosen.batch} of --width {chosen.width} is {task.part:,} bytes on a rank, "
            f"expected at most {MOST_BYTES:,}, because they are sent on this machine"
        )
    layers = Layers(chosen.tokens, chosen.hidden, chosen.layers)
    outputs.check(chosen)
    report = _read(chosen.source) if chosen.source else _measured(chosen, task)
    report |= modelled(report, task, layers)
    outputs.write(chosen, report, plot=_plot)
    console = terminal()
    show(report, console)
    outputs.name(chosen, console)
    return 0


def _plot(report: dict[str, Any], path: Path) -> None:
    from tools.plots import save
    from tools.scaling.plot import draw

    save(draw(report), path)


def _measured(chosen: argparse.Namespace, task: Contrastive) -> dict[str, Any]:
    machine.require("torch")
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise CommandError("this build of torch has no Gloo, which the measurement needs")
    sizes = QUICK_SIZES if chosen.quick else SIZES
    plan = Plan(
        processes=tuple(range(1, chosen.processes + 1)),
        sizes=tuple(sorted({*sizes, task.part})),
        rule_bytes=task.part,
        rule_rows=task.batch,
        seconds=0.1 if chosen.quick else 0.5,
        rounds=3 if chosen.quick else 7,
        patience=chosen.patience,
    )
    busy, notes = machine.load("what was measured is")
    begin = time.perf_counter()
    with bar() as progress:
        task_id = progress.add_task("scaling: starting processes", total=plan.steps())

        def advance(processes: int) -> None:
            words = f"scaling: {processes} process{'es' if processes > 1 else ''}"
            progress.update(task_id, advance=1, description=words)

        rows = measure(plan, advance)
    return {
        "schema": 1,
        "command": "scaling",
        **machine.describe(),
        "options": {"device": "cpu", "quick": chosen.quick, "threads": 1},
        "load_before": busy,
        "notes": notes,
        "seconds": round(time.perf_counter() - begin, 1),
        "measured": rows,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        with outputs.naming("from", path):
            report = json.loads(path.read_text())
    except ValueError as error:
        raise CommandError(f"--from {path}: {error}") from error
    if not isinstance(report, dict) or report.get("command") != "scaling":
        raise CommandError(f"--from {path}: not a file that `scaling --json` wrote")
    return report


def modelled(report: dict[str, Any], task: Contrastive, layers: Layers) -> dict[str, Any]:
    """Returns the conclusions from the measurements and from published figures."""
    cores = report["machine"]["cores"]
    fits, validations = {}, {}
    for collective in COLLECTIVES:
        points = points_of(report, collective)
        found = fit(points, cores)
        errors = found.errors(points)
        fits[collective] = {**found.to_json(), "points": len(points), "residuals": summary(errors)}
        validations[collective] = validation(points, cores)
    return {
        "method": METHOD,
        "fits": fits,
        "validation": validations,
        "links": [link.to_json() for link in LINKS],
        "device": H100.to_json(),
        "exchanges": {
            "part": task.part,
            "rows": [
                {
                    "ranks": n,
                    "link": link.name,
                    "algorithm": name,
                    "seconds": time(n, task.part, link),
                }
                for link in LINKS
                for n in COUNTS
                for name, time in of_link(link).items()
            ],
        },
        "contrastive": {
            "batch": task.batch,
            "width": task.width,
            "itemsize": task.itemsize,
            "rows": [row for n in COUNTS for link in NETWORKS for row in task.choices(n, link)],
        },
        "sequence": {
            "tokens": layers.tokens,
            "width": layers.width,
            "layers": layers.layers,
            "batch": layers.batch,
            "itemsize": layers.itemsize,
            "rows": [layers.row(n, link) for n in COUNTS for link in NETWORKS],
            "break_even": {
                link.name: layers.break_even(link, tuple(2**k for k in range(17)))
                for link in NETWORKS
            },
            "copies": copies(layers, 8),
        },
    }
