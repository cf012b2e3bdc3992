#!/usr/bin/env python3
"""Times convolutions, batch norm, pools and resizing in bridge, torch and XLA.

All runs of a row take turns in one process, again and again. torch and bridge in torch run with the
channels first and last, XLA and bridge in JAX with the channels last. A figure is the median over
rounds of another's time divided by bridge's in the same round; torch's time is that of its faster
layout in the round. Writes a JSON file.

    python scripts/compare_vision.py --json docs/benchmarks/cpu-vision.json
    python scripts/compare_vision.py --quick
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

# The scripts are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import turns
from scripts.vision_rows import FIRST, JAX, LAST, TORCH, XLA, Row, rows_of

# Quotients: the name, the columns of the other (the faster one counts), and bridge's column.
QUOTIENTS = (
    ("torch, channels first", TORCH, FIRST),
    ("torch, channels last", TORCH, LAST),
    ("jax", (XLA,), JAX),
)


def measured(row: Row, rounds: int, least: float) -> dict[str, Any]:
    """Returns the milliseconds of each run, and how many times as fast bridge is."""
    times = turns.in_turn(row.make(), rounds, least)
    found: dict[str, Any] = {"op": row.op, "what": row.what, "shape": row.shape}
    found |= {"milliseconds": turns.milliseconds(times), "times": {}, "spread": {}}
    for name, columns, own in QUOTIENTS:
        rivals = [min(each) for each in zip(*(times[c] for c in columns), strict=True)]
        found["times"][name], found["spread"][name] = turns.quotient(rivals, times[own])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small shapes, one round")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    options = parser.parse_args()
    import torch

    from bridge.cli.machine import describe

    torch.set_num_threads(options.threads)
    rounds, least = (1, 0.0) if options.quick else (options.rounds, 0.05)
    found = []
    for row in rows_of(options.quick):
        if options.only not in f"{row.op}, {row.what}, {row.shape}":
            continue
        found.append(measured(row, rounds, least))
        print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    means = means_of(found)
    print(json.dumps({"geometric means": means}))
    if options.json:
        chosen = {"threads": options.threads, "device": "cpu", "rounds": rounds}
        report = {**describe(), "options": chosen, "means": means, "rows": found}
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def means_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Returns the geometric means of the rows of each op."""
    found: dict[str, dict[str, float]] = {}
    for op in dict.fromkeys(row["op"] for row in rows):
        own = [row["times"] for row in rows if row["op"] == op]
        found[op] = {
            name: round(math.exp(statistics.mean(math.log(max(t[name], 1e-9)) for t in own)), 3)
            for name, *_ in QUOTIENTS
        }
    return found


if __name__ == "__main__":
    main()
