"""Reads the files of docs/benchmarks, and writes tables in Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"

Report = dict[str, Any]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read(name: str) -> Any:
    return json.loads((BENCHMARKS / name).read_text())


def machine_of(report: Report) -> str:
    machine, versions = report["machine"], report["versions"]
    isa = report["build"]["cpu_isa"]
    where = f"{machine['processor']} ({isa}), {report['options']['threads']} threads"
    if report["options"]["device"] == "cuda":
        where = machine["gpu"]
    commit = (report["commit"] or "not known")[:9]
    return f"{where}, torch {versions['torch']}, jax {versions['jax']}, commit {commit}"


def of_gpus() -> dict[str, Any]:
    """Returns the records written by scripts/check_gpu.sh, by file."""
    records = {path.name: read(path.name) for path in sorted(BENCHMARKS.glob("*.json"))}
    return {
        name: record
        for name, record in records.items()
        if isinstance(record, dict) and record.get("command") == "check_gpu"
    }
