"""The parity command: options, progress, the table, the files, the exit status."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bridge
from bridge import _native
from bridge.cli import machine
from bridge.cli.info import usable_isas
from bridge.cli.main import CommandError
from bridge.cli.parity import accuracy, summary
from bridge.cli.parity.ops import OPS
from bridge.cli.progress import terminal, track

BORDER = "border"  # not an op: the tensors that go from one framework to the other
FORMS = tuple(form for op in OPS.values() for form in op.FORMS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the table as a page")
    parser.add_argument("--quick", action="store_true", help="a small part of the grid")
    parser.add_argument("--isa", metavar="NAME", help="force an instruction set (see info)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch's thread count")
    parser.add_argument(
        "--all-isas",
        action="store_true",
        help="repeat under every instruction set, on 1 and 2 threads and in pieces, same bits",
    )
    parser.add_argument(
        "--ops",
        nargs="+",
        choices=(*OPS, BORDER),
        default=(*OPS, BORDER),
        metavar="OP",
        help=f"only these: {', '.join((*OPS, BORDER))}",
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=FORMS,
        default=FORMS,
        metavar="FORM",
        help=f"only these forms of them: {', '.join(FORMS)}",
    )


def run(options: argparse.Namespace) -> int:
    console = terminal()
    report = measure(
        device=options.device,
        quick=options.quick,
        isa=options.isa,
        threads=options.threads,
        all_isas=options.all_isas,
        ops=options.ops,
        forms=options.forms,
    )
    summary.show(report, console)
    if options.json is not None:
        write_json(report, options.json)
        console.print(f"every row: {options.json}")
    if options.html is not None:
        from bridge.cli.page import write_page

        write_page(options.html, "bridge: parity", summary.sections(report))
        console.print(f"page: {options.html}")
    return 0 if report["passed"] else 1


def measure(
    *,
    device: str = "cpu",
    quick: bool = False,
    isa: str | None = None,
    threads: int | None = None,
    all_isas: bool = False,
    ops: Sequence[str] = (*OPS, BORDER),
    forms: Sequence[str] = FORMS,
) -> dict[str, Any]:
    """Runs the grid and returns the report, in JSON's types.

    Raises:
      CommandError: if a framework, the device or the instruction set is not there.
    """
    with_border = BORDER in ops and tuple(forms) == FORMS
    ops = [name for name in ops if name != BORDER]
    chosen = {name: tuple(f for f in OPS[name].FORMS if f in forms) for name in ops}
    if not with_border and not any(chosen.values()):
        raise CommandError(f"{', '.join(ops)}: no form named {', '.join(forms)}")
    torch, jax = machine.require("torch"), machine.require("jax")
    # Rows are spread over them. Too late where JAX has run already: then fewer do, or one.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", 4)
    if device == "cuda":
        _require_cuda(torch, jax)
    from bridge.cli.parity.measure import Variant, measure_all

    previous_isa, previous_threads = _native.cpu_isa(), torch.get_num_threads()
    try:
        if isa is not None:
            _force_isa(isa)
        if threads is not None:
            if threads < 1:
                raise CommandError(f"--threads {threads}: expected at least 1")
            torch.set_num_threads(threads)
        isas = usable_isas() if all_isas else []
        variants = [Variant(name, count) for name in isas for count in (1, 2)]
        grid = [case for name in ops for case in OPS[name].cases(quick, chosen[name])]
        start = time.perf_counter()
        rows = []
        for found in track(
            measure_all(grid, device, variants, own_quick=quick), "parity", len(grid)
        ):
            rows.extend(found)
        crossed = []
        if with_border:
            from bridge.cli.parity import border

            crossed = [crossing.to_json() for crossing in border.crossings(device, quick)]
        seconds = time.perf_counter() - start
        record = machine.describe()
        used = {"isa": _native.cpu_isa(), "threads": torch.get_num_threads()}
    finally:
        _native.set_cpu_isa(previous_isa)
        torch.set_num_threads(previous_threads)
    return {
        "schema": 1,
        "command": "parity",
        **record,
        "options": {
            "device": device,
            "quick": quick,
            "forms": chosen,
            "variants": [variant.name for variant in variants],
            **used,
        },
        "bounds": {name: OPS[name].BOUNDS for name in ops} | {"all": accuracy.BOUNDS},
        "seconds": round(seconds, 1),
        "passed": all(row.passed for row in rows) and all(row["passed"] for row in crossed),
        "summary": summary.aggregate(rows),
        "border": crossed,
        "rows": [row.to_json() for row in rows],
    }


def write_json(report: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")


def _force_isa(name: str) -> None:
    try:
        _native.set_cpu_isa(name)
    except (ValueError, RuntimeError) as error:
        raise CommandError(
            f"--isa {name}: {error}; this machine can use {', '.join(usable_isas())}"
        ) from error


def _require_cuda(torch: Any, jax: Any) -> None:
    if not bridge.has_cuda():
        why = bridge.build_info().get("cuda_unavailable", "no device answers")
        raise CommandError(f"--device cuda: {why}")
    if not torch.cuda.is_available():
        raise CommandError("--device cuda: this torch finds no CUDA device")
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        raise CommandError(f"--device cuda: this JAX finds no CUDA device ({error})") from error
