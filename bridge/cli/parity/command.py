"""The parity command: options, progress, table, files and exit status."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bridge import _native
from bridge.cli import machine, options
from bridge.cli.budget import Budget, Step, go_through, run_within
from bridge.cli.parity import accuracy, judge, proof, setting, summary
from bridge.cli.parity.choice import BORDER, EVERYTHING, FORMS, INVARIANCE, choose
from bridge.cli.parity.grid import OPS, cases
from bridge.cli.rows import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(
        parser,
        device=None,
        json="write every row",
        jsonl=None,
        seconds=None,
        html="write the table as a page",
        quick="a small part of the grid",
    )
    parser.add_argument("--isa", metavar="NAME", help="force an instruction set (see info)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch's thread count")
    parser.add_argument(
        "--all-isas",
        action="store_true",
        help="also compare with every instruction set, 1 and 2 threads, and a call in pieces",
    )
    words = "only these families of ops (--forms chooses single ops)"
    options.add_choice(parser, "ops", EVERYTHING, "OP", words)
    parser.add_argument(
        "--forms",
        nargs="+",
        default=FORMS,
        metavar="FORM",
        help=f"only these forms, and neither {INVARIANCE} nor {BORDER}: {', '.join(FORMS)}",
    )
    options.add(
        parser,
        export="write a table of hashes of all results, instead of their comparison with float64",
        against="compare the results of this machine with a table that --export wrote",
    )


def run(chosen: argparse.Namespace) -> int:
    if chosen.export is not None or chosen.against is not None:
        return proof.run(chosen)
    names = ("device", "quick", "isa", "threads", "all_isas", "ops", "forms")
    asked = partial(measure, **{name: getattr(chosen, name) for name in names})
    report = run_within(chosen, asked, summary.show, html=summary.write_page)
    return 0 if report["passed"] else 1


def measure(
    *,
    device: str = "cpu",
    quick: bool = False,
    isa: str | None = None,
    threads: int | None = None,
    all_isas: bool = False,
    ops: Sequence[str] = EVERYTHING,
    forms: Sequence[str] = FORMS,
    recording: Recording | None = None,
    budget: Budget | None = None,
) -> dict[str, Any]:
    """Runs the grid, or the part that the budget allows, and returns the report, in JSON's types.

    Raises:
      CommandError: if a framework, the device or the instruction set is missing.
    """
    chosen, others = choose(ops, forms)
    ops = [*chosen]
    torch, jax = machine.require("torch"), machine.require("jax")
    # Rows are split over these devices. If JAX has already started, fewer devices must do.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", 4)
    setting.require_device(device)
    recording, budget = recording or Recording(), budget or Budget()
    with setting.forced(isa, threads):
        variants = setting.variants() if all_isas else []
        steps = list(_steps(device, quick, chosen, variants, others))
        recording.begin(
            {
                "schema": 1,
                "command": "parity",
                **machine.describe(),
                "options": {
                    "device": device,
                    "quick": quick,
                    "forms": chosen,
                    "variants": [variant.name for variant in variants],
                    "isa": _native.cpu_isa(),
                    "threads": torch.get_num_threads(),
                },
                "bounds": judge.BOUNDS | accuracy.BOUNDS,
                "cases": len(steps),
                "cases_of": Counter(step.turn[0] for step in steps),
            }
        )
        recording.finish(complete=go_through(steps, recording, budget))
    return report(recording)


def _steps(
    device: str,
    quick: bool,
    forms: dict[str, tuple[str, ...]],
    variants: Sequence[setting.Variant],
    others: Sequence[str],
) -> Iterator[Step]:
    from bridge.cli.parity import border, invariance
    from bridge.cli.parity.measure import in_json

    for op, of_op in forms.items():
        for case in cases(quick, of_op):
            turn, rows = (case.form, case.dtypes), partial(in_json, case, device, variants, quick)
            yield Step(op, turn, f"parity: {case.form}, {case.dtypes}", rows)
    for entry, name in invariance.cases(quick) if INVARIANCE in others else ():
        rows = partial(invariance.in_json, entry, name, device, quick)
        yield Step(INVARIANCE, (INVARIANCE, entry), "parity: invariance", rows)
    for dtype in border.dtypes(quick) if BORDER in others else ():
        rows = partial(border.in_json, dtype, device)
        yield Step(BORDER, (BORDER, dtype), "parity: border", rows)


def report(recording: Recording) -> dict[str, Any]:
    """Returns the report of a recording."""
    every = recording.rows()
    rows = [row for op, row in every if op in OPS]
    facts = recording.facts()
    failed = {record["case"] for record in recording.records if not record["row"]["passed"]}
    return facts | {
        "passed": not failed,
        "cases_passed": facts["cases_done"] - len(failed),
        "summary": summary.aggregate(rows),
        INVARIANCE: [row for op, row in every if op == INVARIANCE],
        BORDER: [row for op, row in every if op == BORDER],
        "rows": rows,
    }
