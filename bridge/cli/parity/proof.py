"""`parity --export` and `--against`: a table of hashes, and its comparison with this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bridge import _native
from bridge.cli import machine, outputs
from bridge.cli.budget import Budget, Step, go_through
from bridge.cli.errors import CommandError
from bridge.cli.parity import differences, hashes, setting, table
from bridge.cli.parity.choice import EVERYTHING, FORMS, choose
from bridge.cli.parity.grid import SEED
from bridge.cli.parity.table import Table
from bridge.cli.rows import Recording
from bridge.cli.terminal import terminal
from bridge.lang.operations import VERSION

COMMAND = "parity table"


def run(chosen: argparse.Namespace) -> int:
    """Writes a table, or compares this machine with one, or both; returns the exit status.

    No table is written if the frameworks, or instruction sets, disagree.
    """
    if chosen.html is not None:
        raise CommandError("--html: tables of hashes have no page; --json has every row")
    outputs.check(chosen)
    other = table.read(chosen.against) if chosen.against is not None else None
    names = ("device", "quick", "isa", "threads", "all_isas", "ops", "forms")
    console = terminal()
    with Budget(chosen.seconds) as budget:
        found = measure(
            **{name: getattr(chosen, name) for name in names},
            against=None if chosen.export is not None else other,
            recording=Recording(chosen.jsonl),
            budget=budget,
        )
        if other is not None:
            found["against"] = {"file": str(chosen.against), **differences.find(found, other)}
        found["passed"] = not differences.reasons(found)
        if found["disagreeing"]:
            chosen = argparse.Namespace(**vars(chosen) | {"export": None})
        outputs.write(chosen, found, export=_write)
    differences.show(found, facts_of(found), console)
    outputs.name(chosen, console)
    return 0 if found["passed"] else 1


def measure(
    *,
    device: str = "cpu",
    quick: bool = False,
    isa: str | None = None,
    threads: int | None = None,
    all_isas: bool = False,
    ops: Sequence[str] = EVERYTHING,
    forms: Sequence[str] = FORMS,
    against: Table | None = None,
    recording: Recording | None = None,
    budget: Budget | None = None,
) -> dict[str, Any]:
    """Runs the cases of tables in each framework that is installed, and returns the report.

    Args:
      against: a table; cases without a row in it are not run.

    Raises:
      CommandError: if both frameworks, the device or the instruction set are missing, or if the
        table has no row of the chosen ops.
    """
    by_op, others = choose(ops, forms)
    if others and tuple(ops) != EVERYTHING:
        raise CommandError(f"--ops {' '.join(others)}: no ops, so there are no hashes of them")
    chosen = tuple(form for form in FORMS if any(form in of_op for of_op in by_op.values()))
    frameworks = setting.installed()
    packages = [machine.require(name) for name in frameworks]
    setting.require_device(device, frameworks)
    recording, budget = recording or Recording(), budget or Budget()
    asked = [*hashes.cases_with_hashes(quick, chosen)]
    if against is not None:
        theirs = {key[:3] for key in against.rows}
        asked = [c for c in asked if (c.form, c.dtypes, str(c.place)) in theirs]
    if not asked:
        raise CommandError("--against: the table has no row of the chosen ops in this version")
    with setting.forced(isa, threads):
        variants = setting.variants() if all_isas else []
        steps = [
            Step(
                case.op,
                (case.form, case.dtypes),
                f"hashes: {case.form}, {case.dtypes}",
                partial(hashes.in_json, case, device, frameworks, variants),
            )
            for case in asked
        ]
        recording.begin(
            {
                "schema": 1,
                "command": COMMAND,
                **machine.describe(),
                "options": {
                    "device": device,
                    "quick": quick,
                    "forms": chosen,
                    "variants": [variant.name for variant in variants],
                    "isa": _native.cpu_isa(),
                },
                "programs": VERSION,
                "seed": SEED,
                "frameworks": [f"{package.__name__} {package.__version__}" for package in packages],
                "cases": len(steps),
            }
        )
        recording.finish(complete=go_through(steps, recording, budget))
    return report(recording)


def report(recording: Recording) -> dict[str, Any]:
    """Returns the report of a recording; `disagreeing` has the rows without one common hash."""
    rows = [row for _, row in recording.rows()]
    disagreeing = [row for row in rows if not row["passed"]]
    return recording.facts() | {"rows": rows, "disagreeing": disagreeing}


def _write(report: dict[str, Any], path: Path) -> None:
    path.write_text(table_of(report).text(), encoding="utf-8")


def table_of(report: dict[str, Any]) -> Table:
    """Returns the table of a report whose rows have one hash each."""
    rows = {differences.key_of(row): next(iter(row["hashes"].values())) for row in report["rows"]}
    return Table(facts_of(report), rows)


def facts_of(report: dict[str, Any]) -> dict[str, str]:
    """Returns the facts about this machine and this run for a table."""
    versions, options, own = report["versions"], report["options"], report["machine"]
    others = (name for name in ("python", "numpy", "jaxlib", "ml_dtypes") if versions[name])
    isas = dict.fromkeys(name.split(",")[0] for name in options["variants"])
    gpu = own["gpu"] if options["device"] == "cuda" else None
    return {
        "bridge": versions["bridge"],
        "programs": str(report["programs"]),
        "seed": str(report["seed"]),
        "device": f"{options['device']}, {gpu}" if gpu else options["device"],
        "instruction set": ", ".join(isas) or options["isa"],
        "processor": f"{own['processor']}, {own['system']}",
        "frameworks": ", ".join(report["frameworks"]),
        "packages": ", ".join(f"{name} {versions[name]}" for name in others),
        "cases": f"{report['cases_done']} of {report['cases']}",
    }
