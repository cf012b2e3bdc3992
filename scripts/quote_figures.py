#!/usr/bin/env python3
"""Writes the figures of the README and of docs from the files that commands wrote.

Text between `<!-- figures -->` and `<!-- end of figures -->`, and the same with other marks, is
replaced. With --check nothing is written; exit status 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bridge.cli.bench import targets

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figures() -> str:
    """The benchmark's targets, met and missed alike, with the machine that they were taken on."""
    report: dict[str, Any] = json.loads((BENCHMARKS / "cpu.json").read_text())
    rows = [
        [line.op, line.what, line.measured, line.aim, "yes" if line.met else "**no**"]
        for line in targets.table(report)
    ]
    versions = report["versions"]
    where = (
        f"Measured by `python -m bridge bench` on {report['machine']['processor']}, "
        f"{report['options']['threads']} threads, torch {versions['torch']}, jax {versions['jax']} "
        f"(commit {report['commit'][:9]}). Every row, median and spread: "
        "[docs/benchmarks/cpu.json](docs/benchmarks/cpu.json), drawn in "
        "[cpu.svg](docs/benchmarks/cpu.svg)."
    )
    return "\n".join([table(["op", "speed", "measured", "aim", "reached"], rows), "", where])


def accuracy() -> str:
    """The accuracy program's rows."""
    rows = []
    for name in ("accuracy-single", "accuracy-half", "accuracy-double"):
        for row in json.loads((BENCHMARKS / f"{name}.json").read_text()):
            near = f"{row['window_abs']:.2g} within {row['window']:g}" if row["window"] else ""
            wrong = str(row["different"]) if row["different"] >= 0 else ""
            rows.append([row["name"], f"{row['max_ulp']:.3f}", near, wrong, f"{row['inputs']:,}"])
    header = ["function", "worst, units", "absolute, next to a zero", "not nearest", "inputs"]
    return table(header, rows)


def machine_code() -> str:
    """What the compiled kernels of sm_90 cost, counted in the cubin."""
    kernels = json.loads((BENCHMARKS / "cubin.json").read_text())["kernels"]
    rows = []
    for kernel in kernels:
        hot = kernel["arch"] == "90" and kernel["instructions_per_element"] is not None
        if not hot or kernel["kernel"].split()[1] not in ("bfloat16", "float32"):
            continue
        op, _, kind = kernel["kernel"].split()[:3]
        if op == "bias_gelu" and kind != "tanh":
            continue
        limit = f"≤ {kernel['limit']:g}" if kernel["limit"] is not None else ""
        spills = kernel["spill_store_bytes"] + kernel["spill_load_bytes"]
        count = f"{kernel['instructions_per_element']:.1f}"
        rows.append([kernel["kernel"], count, limit, str(kernel["registers"]), str(spills)])
    header = ["kernel, sm_90", "instructions an element", "limit", "registers", "bytes spilled"]
    return table(header, rows)


PAGES = (
    ("README.md", "figures", figures),
    ("docs/numerics.md", "accuracy", accuracy),
    ("docs/architecture.md", "machine code", machine_code),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for name, mark, write in PAGES:
        page = ROOT / name
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        text = page.read_text()
        before, rest = text.split(begin)
        quoted = f"{before}{begin}{write()}\n{end}{rest.split(end)[1]}"
        if quoted == text:
            continue
        stale += 1
        if check:
            print(f"{name} does not quote what docs/benchmarks holds: run scripts/quote_figures.py")
        else:
            page.write_text(quoted)
            print(f"{name} updated")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
