"""Adds the results of scripts/check_gpu.sh to docs/benchmarks, and updates the docs' tables.

    python -m scripts.gpu.record check_gpu-truth.tar.gz check_gpu-speed.tar.gz ...

The record of a device, <device>.json, grows. If a stage is recorded again, it replaces its earlier
record.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from scripts.gpu.libraries import ROOT

BENCHMARKS = ROOT / "docs" / "benchmarks"
TABLES = ROOT / "docs" / "parity"
# Keys kept from a parity report; its rows are left out, which are many thousands.
PARITY = (
    *("date", "options", "seconds", "complete", "cases", "cases_done", "passed"),
    *("summary", "invariance"),
)

Record = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    for archive in parser.parse_args().archives:
        try:
            print(record(archive, BENCHMARKS))
        except (OSError, tarfile.TarError, ValueError) as error:
            print(f"record: {archive}: {error}", file=sys.stderr)
            return 2
    quote = [sys.executable, str(ROOT / "scripts" / "quote_figures.py")]
    return subprocess.run(quote, cwd=ROOT).returncode


def record(archive: Path, folder: Path, tables: Path = TABLES) -> Path:
    """Adds a stage's archive to the record of its device, and returns the record's path.

    A table of hashes becomes a file of `tables`.

    Raises:
      ValueError: if the archive is of a rehearsal, or of no stage.
    """
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(archive) as files:
            files.extractall(temporary, filter="data")
        found = Path(temporary)
        if not (found / "stage.json").exists():
            raise ValueError("no archive of check_gpu.sh: it has no stage.json")
        stage = json.loads((found / "stage.json").read_text())
        if stage["rehearsal"]:
            raise ValueError("a rehearsal says nothing of a GPU")
        name = "-".join("".join(c if c.isalnum() else " " for c in stage["device"].lower()).split())
        path = folder / f"{name}.json"
        kept: Record = {"schema": 1, "command": "check_gpu", "device": stage["device"]}
        kept |= {"stages": {}, "bench": {}, "parity": {}}
        if path.exists():
            kept = json.loads(path.read_text())
        kept["stages"][stage["stage"]] = {"commit": stage["commit"], "results": stage["results"]}
        for rows in sorted(found.glob("*.jsonl")):
            _add_rows(kept, rows, stage["commit"])
        if (found / "table.txt").exists():
            shutil.copyfile(found / "table.txt", tables / f"{name}.txt")
        path.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")
    return path


def _add_rows(kept: Record, rows: Path, commit: str | None) -> None:
    """Adds one file of JSON lines: from kernel_speed, or from a command of bridge."""
    lines = rows.read_text().split("\n")
    first = json.loads(lines[0]) if lines[0] else {}
    if first.get("record") == "device":
        # The last piece is empty, or half a line from a program that was stopped.
        records = [json.loads(line) for line in lines[1:-1]]
        kept["kernel_speed"] = {
            "commit": commit,
            "device": first,
            "rows": [line for line in records if line["record"] == "row"],
            "end": next((line for line in records if line["record"] == "end"), None),
        }
    elif first.get("header", {}).get("command") == "parity table":
        return  # it has a file of its own
    elif "header" in first:
        from bridge.cli import rows as bridge_rows

        report = bridge_rows.read(rows)
        report["commit"] = commit or report["commit"]
        command = report["command"]
        if command == "parity":
            report = {name: report[name] for name in PARITY} | {"rows": len(report["rows"])}
        kept[command][rows.stem] = report


if __name__ == "__main__":
    sys.exit(main())
