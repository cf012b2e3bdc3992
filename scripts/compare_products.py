#!/usr/bin/env python3
"""Times bridge's matrix products beside those of torch and XLA, in turn, in one process.

For each shape the three run one after the other, again and again; a figure is the median of
bridge's time divided by the time of the other in the same round. Writes a JSON file.

    python scripts/compare_products.py --json docs/benchmarks/cpu-products.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any

# The scripts are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import turns

# m, k, n: large products, few rows, short contractions, and the layers of the demo's GPT.
SHAPES = [
    (2048, 1024, 4096),
    (2048, 4096, 1024),
    (1024, 1024, 1024),
    (512, 512, 512),
    (128, 512, 128),
    (1024, 64, 1024),
    (64, 1024, 1024),
    (8, 4096, 4096),
    (1, 4096, 4096),
    (1024, 128, 384),
    (1024, 128, 512),
    (1024, 512, 128),
    (128, 1024, 512),
]


def measured(m: int, k: int, n: int, transposed: bool, rounds: int) -> dict[str, Any]:
    import jax
    import torch

    import bridge.torch as bt

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator)
    b = (
        torch.randn(n, k, generator=generator).T
        if transposed
        else torch.randn(k, n, generator=generator)
    )
    x, y = jax.numpy.asarray(a.numpy()), jax.numpy.asarray(b.contiguous().numpy())
    if transposed:
        y = y.T.copy()
        product = jax.jit(lambda p, q: p @ q.T)
    else:
        product = jax.jit(lambda p, q: p @ q)
    runs = {
        "bridge": lambda: bt.matmul(a, b),
        "torch": lambda: a @ b,
        "xla": lambda: product(x, y).block_until_ready(),
    }
    least = min(0.2, max(0.02, 2 * m * k * n / 1e11 * 3))
    times = turns.in_turn(runs, rounds, least)
    found: dict[str, Any] = {"m": m, "k": k, "n": n, "transposed": transposed}
    for name, each in times.items():
        found[f"{name} gflops"] = round(2 * m * k * n / statistics.median(each) / 1e9, 1)
    for other in ("torch", "xla"):
        quotient = turns.quotient(times[other], times["bridge"])
        found[f"times {other}"], found[f"spread {other}"] = quotient
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=true"
    import torch

    from bridge.cli.machine import describe

    torch.set_num_threads(options.threads)
    rows = []
    for shape in SHAPES:
        for transposed in (False, True):
            rows.append(measured(*shape, transposed, options.rounds))
            print(json.dumps(rows[-1]), flush=True)
    means = {
        other: round(math.exp(statistics.mean(math.log(row[f"times {other}"]) for row in rows)), 3)
        for other in ("torch", "xla")
    }
    print(json.dumps({"geometric means": means}))
    if options.json:
        chosen = {"threads": options.threads, "device": "cpu"}
        report = {**describe(), "options": chosen, "means": means, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
