#!/usr/bin/env python3
"""Times kernels written by hand against generated ones, on one thread of an idle CPU.

Processes with one kind of kernel and with the other take turns, because a program has only one
kernel in a process. A figure is the median of the rounds of generated time over time by hand; its
spread is the difference of their quartiles. The record goes to
docs/benchmarks/hand-written-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/benchmarks/hand-written-cpu.json"
DTYPES = ("float32", "bfloat16")
# Rows and columns. Fewer than 2,048 elements would run on a narrower instruction set.
SHAPES = ((512, 8), (512, 64), (256, 128), (64, 1000), (64, 1024), (64, 4096), (16, 32000))


def cases() -> Iterator[tuple[str, list[Any], Any]]:
    """Yields a name, operands and the program of each case."""
    import torch

    from bridge.catalogue.softmax_programs import jacobian_program, softmax_program

    torch.manual_seed(0)
    for dtype in DTYPES:
        for shape in SHAPES:
            x, g = (torch.randn(shape).to(getattr(torch, dtype)) for _ in range(2))
            y = torch.softmax(x.double(), -1).to(x.dtype)
            mask, last = torch.rand(shape) < 0.2, torch.randint(0, shape[1], shape[:1])
            named: dict[str, tuple[list[Any], Any]] = {
                "softmax": ([x], softmax_program(0.7, dtype, (False, False))),
                "softmax with a mask": ([x, mask], softmax_program(0.7, dtype, (True, False))),
                "softmax with last columns": (
                    [x, last],
                    softmax_program(0.7, dtype, (False, True)),
                ),
                "Jacobian": ([y, g], jacobian_program(0.7, dtype, False)),
                "Jacobian with last columns": (
                    [y, g, last],
                    jacobian_program(0.7, dtype, True),
                ),
            }
            for name, (operands, params) in named.items():
                yield f"{name}, {dtype}, {shape[0]} x {shape[1]}", operands, params


def microseconds(side: str) -> dict[str, float]:
    """Returns the time of a call of each case by one kind of kernel: the least of many."""
    import torch

    from bridge import _native
    from bridge.catalogue.ahead_of_time import hand_written
    from bridge.ops import PROGRAM
    from bridge.torch._adapter.autograd import call

    torch.set_num_threads(1)
    if side == "generated":
        _native.forget_generated()
        for _, request, _ in hand_written():
            if request.dtypes[0] in DTYPES:
                request.compile()
    found = {}
    for name, operands, params in cases():
        before = _native.generated_calls()
        times = []
        for _ in range(60):
            since = time.perf_counter()
            for _ in range(4):
                call(PROGRAM, tuple(operands), params)
            times.append((time.perf_counter() - since) / 4)
        assert _native.generated_calls() > before, f"{name} ran in the interpreter"
        found[name] = 1e6 * min(times)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--side", choices=("hand", "generated"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(microseconds(options.side)))
        return 0
    from bridge.cli import machine

    rounds: dict[str, list[dict[str, float]]] = {"hand": [], "generated": []}
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "BRIDGE_COMPILE": "now"}
    for number in range(options.rounds):
        for side in ("hand", "generated")[:: 1 if number % 2 else -1]:
            command = [sys.executable, __file__, "--side", side]
            done = subprocess.run(
                command, env=variables, check=True, stdout=subprocess.PIPE, text=True
            )
            rounds[side].append(json.loads(done.stdout))
    rows = {}
    for name in rounds["hand"][0]:
        hand, generated = (np.array([one[name] for one in rounds[s]]) for s in rounds)
        ratio = np.sort(generated / hand)
        low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
        rows[name] = {
            "by hand, us": round(float(np.median(hand)), 2),
            "generated, us": round(float(np.median(generated)), 2),
            "ratio": round(float(middle), 3),
            "spread": round(float(high - low), 3),
        }
        print(f"{name:55} {rows[name]}")
    record = {
        "processor": machine.processor(),
        "threads": 1,
        "rounds": options.rounds,
        "rows": rows,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
