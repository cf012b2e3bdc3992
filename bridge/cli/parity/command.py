"""The parity command: options, progress, table, files and exit status."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bridge import _native
from bridge.cli import machine, options
from bridge.cli.budget import Budget, Step, go_through, run_within
from bridge.cli.errors import CommandError
from bridge.cli.info import usable_isas
from bridge.cli.parity import accuracy, judge, summary
from bridge.cli.parity.grid import OPS, cases
from bridge.cli.rows import Recording

if TYPE_CHECKING:
    from bridge.cli.parity.measure import Variant

# Parts of the grid besides ops: conversions between frameworks, and rows in other batches.
BORDER, INVARIANCE = "border", "invariance"
FORMS = tuple(form for forms in OPS.values() for form in forms)
EVERYTHING = (*OPS, INVARIANCE, BORDER)
MOST_THREADS = 1024  # far more threads would end the process


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


def run(chosen: argparse.Namespace) -> int:
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
    chosen, others = _chosen(ops, forms)
    ops = [*chosen]
    torch, jax = machine.require("torch"), machine.require("jax")
    # Rows are split over these devices. If JAX has already started, fewer devices must do.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", 4)
    if device == "cuda":
        _require_cuda(torch, jax)
    from bridge.cli.parity.measure import Variant

    recording, budget = recording or Recording(), budget or Budget()
    previous_isa, previous_threads = _native.cpu_isa(), torch.get_num_threads()
    try:
        if isa is not None:
            _force_isa(isa)
        if threads is not None:
            if not 1 <= threads <= MOST_THREADS:
                raise CommandError(f"--threads {threads}: expected 1 to {MOST_THREADS}")
            torch.set_num_threads(threads)
        isas = usable_isas() if all_isas else []
        variants = [Variant(name, count) for name in isas for count in (1, 2)]
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
    finally:
        _native.set_cpu_isa(previous_isa)
        torch.set_num_threads(previous_threads)
    return report(recording)


def _chosen(
    ops: Sequence[str], forms: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Returns the forms of each op, and the other parts of the grid; every named part is included.

    Raises:
      CommandError: if a form is unknown or belongs to another op, or a named op has none of the
        forms.
    """
    for form in forms:
        if form not in FORMS:
            expected = f"expected some of {', '.join(FORMS)}"
            hint = f"choose it with --ops {form}" if form in EVERYTHING else expected
            raise CommandError(f"--forms {form}: no form; {hint}")
    others = [name for name in (INVARIANCE, BORDER) if name in ops]
    chosen = {
        name: tuple(form for form in OPS[name] if form in forms)
        for name in dict.fromkeys(ops)
        if name in OPS
    }
    if tuple(forms) == FORMS:
        return chosen, others
    if tuple(ops) == EVERYTHING:
        return {name: of_op for name, of_op in chosen.items() if of_op}, []
    if others:
        raise CommandError(f"{', '.join(others)}: there are no forms of it to choose from")
    for form in forms:
        if not any(form in of_op for of_op in chosen.values()):
            raise CommandError(f"--forms {form}: no form of {', '.join(chosen)}")
    for name, of_op in chosen.items():
        if not of_op:
            raise CommandError(
                f"--ops {name}: no form named {', '.join(forms)}; its forms are "
                f"{', '.join(OPS[name])}"
            )
    return chosen, others


def _steps(
    device: str,
    quick: bool,
    forms: dict[str, tuple[str, ...]],
    variants: Sequence[Variant],
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


def _force_isa(name: str) -> None:
    try:
        _native.set_cpu_isa(name)
    except (ValueError, RuntimeError) as error:
        raise CommandError(
            f"--isa {name}: {error}; this machine can use {', '.join(usable_isas())}"
        ) from error


def _require_cuda(torch: Any, jax: Any) -> None:
    machine.require_cuda()
    if not torch.cuda.is_available():
        raise CommandError("--device cuda: this torch finds no CUDA device")
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        raise CommandError(f"--device cuda: this JAX finds no CUDA device ({error})") from error
