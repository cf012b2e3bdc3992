"""Measures the speed of every op's kernels on a GPU, compared with a copy on the same device.

    python -m scripts.gpu.kernel_speed [--jsonl FILE] [--seconds N] [--only PATTERN]
    python -m scripts.gpu.kernel_speed --list | --list-profile   the rows, or the rows to profile
    python -m scripts.gpu.kernel_speed --profile NAME            one call, for a profiler:
      ncu --profile-from-start off --clock-control none python -m scripts.gpu.kernel_speed …

Each call is on arrays far larger than the L2 cache, compiled before it is timed, and launched one
by one and as a CUDA graph. GB/s counts the fewest bytes that a call must move, as in `bench`. The
important rows come first, and each is written as soon as it is measured, so that an early end loses
nothing. With `--device cpu` the rows are small, and nothing is captured: this shows only that each
row runs. Exit status: 0, also if the time was over before all rows were measured (the last record
says so); 1 if a row failed; 2 for a bad argument; 3 without a device.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tools.bench.cases import BYTES, LARGE_BYTES, Case
from tools.bench.ops import OPS

COLUMNS = (4096, 65536, 1024, 16384, 256, 4099)
FEW_ROWS = (64, 262144)  # rows too long for one block
DTYPES = ("bfloat16", "float32", "float16")
PASSES = ("forward", "backward")
# Profiled rows, with every kind of loop: columns, short rows, rows with column sums, long rows.
PROFILED = (
    "softmax.masked.forward.bfloat16.4096",
    "catalogue.rms_norm.backward.bfloat16.4096",
    "catalogue.swiglu packed.forward.bfloat16.4096",
    "bias_gelu.tanh.backward.bfloat16.4096",
)
SAMPLES, SAMPLE_SECONDS = 7, 5e-3
MAXIMUM_QUERIES = 4096


@dataclass(frozen=True)
class Row:
    case: Case
    columns: str

    @property
    def name(self) -> str:
        case = self.case
        return f"{case.op}.{case.form}.{case.what}.{case.dtype}.{self.columns}"


def rows(array_bytes: int) -> Iterator[Row]:
    """Yields rows in the order of timing: every op at one shape, then the less important rows."""
    every = [case for op in OPS.values() for case in op.cases("torch", False)]
    # Matrix products are left out: their kernels are torch's.
    chosen = [case for case in every if case.part == "main" and OPS[case.op].bytes(case)]
    forms = list(dict.fromkeys((case.op, case.form) for case in chosen))
    shapes = [*((columns, None) for columns in COLUMNS), (FEW_ROWS[1], FEW_ROWS[0])]
    for (columns, few), dtype, (op, form), what in itertools.product(shapes, DTYPES, forms, PASSES):
        has_queries = op == "softmax" and form != "plain"
        if (has_queries and few) or (dtype == "float16" and columns != COLUMNS[0]):
            continue
        count = array_bytes // (columns * BYTES[dtype])
        shape: tuple[int, ...] = (max(1, few or count), columns)
        if has_queries:
            queries = max(1, min(columns, MAXIMUM_QUERIES, count))
            heads = max(1, min(16, count // queries))
            shape = (max(1, count // (queries * heads)), heads, queries, columns)
        label = str(columns) if few is None else f"{few}x{columns}"
        yield Row(Case(op, "torch", what, dtype, form, shape), label)


class Device:
    """Runs and times work on the CPU.

    Attributes:
      array_bytes: the approximate size of an array of a row.
    """

    array_bytes = 1 << 16

    def describe(self) -> dict[str, Any]:
        from bridge.cli import machine

        return machine.describe()

    def scope(self) -> Any:
        return contextlib.nullcontext()

    def launches(self, run: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
        """Returns the ways to launch a call."""
        return {"one_by_one": run}

    def seconds(self, run: Callable[[], Any], count: int) -> float:
        """Returns the seconds of one run, the mean of `count` runs."""
        start = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - start) / count

    def profile(self, run: Callable[[], Any]) -> None:
        run()


class Cuda(Device):
    """Runs and times work on a CUDA stream of its own, which can capture a graph."""

    array_bytes = LARGE_BYTES["cuda"]

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.stream = torch.cuda.Stream()

    def scope(self) -> Any:
        return self.cuda.stream(self.stream)

    def launches(self, run: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
        graph = self.cuda.CUDAGraph()
        self.cuda.synchronize()
        with self.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            run()
        return {"one_by_one": run, "graph": graph.replay}

    def seconds(self, run: Callable[[], Any], count: int) -> float:
        begin, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / count

    def profile(self, run: Callable[[], Any]) -> None:
        self.cuda.synchronize()
        self.cuda.profiler.start()
        run()
        self.cuda.synchronize()
        self.cuda.profiler.stop()


def call_of(row: Row, device: str) -> Callable[[], Any]:
    """Returns a row's call, on existing operands.

    Raises:
      RuntimeError: if the call omits a part of its results, or they are not finite.
    """
    import torch

    from tools.bench.in_torch import Contenders

    run = Contenders(device, with_compile=False).of(row.case)[0].run
    found = run()
    for result in found if isinstance(found, tuple) else (found,):
        if not bool(torch.isfinite(result).all()):
            raise RuntimeError("a result is not finite")
    return run


def timed(
    device: Device, run: Callable[[], Any], moved: int, of_copy: float | None
) -> dict[str, Any]:
    """Returns seconds and GB/s of each way to launch a call."""
    times = {}
    for name, launch in device.launches(run).items():
        once = device.seconds(launch, 1)
        count = max(3, min(256, int(SAMPLE_SECONDS / max(once, 1e-7))))
        samples = [device.seconds(launch, count) for _ in range(SAMPLES)]
        low, median, high = statistics.quantiles(samples, n=4)
        times[name] = {
            "seconds": median,
            "lower_quartile": low,
            "upper_quartile": high,
            "samples": SAMPLES,
            "gb_per_second": moved / median * 1e-9,
        }
        if of_copy is not None:
            times[name]["of_copy"] = moved / median * 1e-9 / of_copy
    return times


def copied(device: Device, name: str) -> dict[str, Any]:
    """Returns the row of a copy, which the other rows are compared with."""
    import torch

    x = torch.ones(device.array_bytes, dtype=torch.uint8, device=name)
    y = torch.empty_like(x)
    record = {"record": "row", "name": "copy", "op": "copy", "kind": "copy", "dtype": "uint8"}
    times = timed(device, lambda: y.copy_(x), 2 * x.numel(), None)
    return {**record, "shape": [x.numel()], "bytes": 2 * x.numel(), **times}


def measure(chosen: argparse.Namespace, device: Device, asked: list[Row]) -> int:
    """Measures the rows, and writes each; returns the number of failed rows."""
    began = time.perf_counter()
    file: IO[str] | None = chosen.jsonl.open("w") if chosen.jsonl else None

    def write(record: dict[str, Any]) -> None:
        if file is not None:
            print(json.dumps(record), file=file, flush=True)

    longest, measured, failed = 0.0, 0, 0
    with contextlib.closing(file) if file is not None else contextlib.nullcontext():
        write(
            {
                "record": "device",
                **device.describe(),
                "array_bytes": device.array_bytes,
                "rows": len(asked),
            }
        )
        copy = copied(device, chosen.device)
        write(copy)
        copy_rate = max(
            copy[name]["gb_per_second"] for name in ("one_by_one", "graph") if name in copy
        )
        print(f"a copy reaches {copy_rate:.0f} GB/s", flush=True)
        for row in asked:
            start = time.perf_counter()
            if start - began + longest >= chosen.seconds:
                break
            case = row.case
            record = {
                "record": "row",
                "name": row.name,
                "op": case.form if case.op == "catalogue" else case.op,
                "kind": f"{case.what} {case.form}",
                "dtype": case.dtype,
                "shape": list(case.shape),
                "bytes": OPS[case.op].bytes(case),
            }
            try:
                run = call_of(row, chosen.device)
                record |= timed(device, run, record["bytes"], copy_rate)
                times = record["one_by_one"]
                said = f"{times['seconds'] * 1e6:10.2f} µs {100 * times['of_copy']:6.1f} %"
                measured += 1
            except Exception as error:  # errors of a device, a driver or a compiler
                record["error"] = f"{type(error).__name__}: {error}".split("\n")[0]
                said = f"FAILED: {record['error']}"
                failed += 1
            write(record)
            print(f"{row.name:72} {'×'.join(map(str, case.shape)):>20} {said}", flush=True)
            longest = max(longest, time.perf_counter() - start)
        seconds = time.perf_counter() - began
        write(
            {
                "record": "end",
                "complete": measured + failed == len(asked),
                "measured": measured,
                "failed": failed,
                "rows": len(asked),
                "copy_gb_per_second": copy_rate,
                "seconds": seconds,
            }
        )
    print(f"{measured} of {len(asked)} rows measured, {failed} failed, in {seconds:.1f} s")
    return failed


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"no regular expression: {error}") from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kernel_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jsonl", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--only", type=_pattern, default="", help="pattern for names of rows")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--list-profile", action="store_true")
    parser.add_argument("--profile")
    chosen = parser.parse_args(arguments)
    if not chosen.seconds >= 0:
        parser.error(f"--seconds is {chosen.seconds}, expected a number from 0")
    if chosen.list_profile:
        print(*PROFILED, sep="\n")
        return 0
    kind = Cuda if chosen.device == "cuda" else Device
    every = list(rows(kind.array_bytes))
    asked = [row for row in every if chosen.only.search(row.name)]
    if chosen.profile:
        asked = [row for row in every if row.name == chosen.profile]
    if not asked:
        parser.error(f"no row is called {chosen.profile or chosen.only.pattern!r}")
    if chosen.list:
        for row in asked:
            moved = OPS[row.case.op].bytes(row.case) * 1e-6
            print(f"{row.name:72} {'×'.join(map(str, row.case.shape)):>24} {moved:9.1f} MB moved")
        return 0
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("kernel_speed: no CUDA device answers", file=sys.stderr)
        return 3
    os.environ["BRIDGE_COMPILE"] = "now"
    device = kind()
    with device.scope():
        if chosen.profile:
            device.profile(call_of(asked[0], chosen.device))
            return 0
        return 1 if measure(chosen, device, asked) else 0


if __name__ == "__main__":
    sys.exit(main())
