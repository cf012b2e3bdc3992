"""Starts the processes of a measurement, reads their output, and never hangs.

The processes are killed if none of them has reported a step for `patience` seconds. If one ends
early, the others are killed at once. They also die with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.cli.errors import CommandError

START_SECONDS = 120.0  # for a process that imports its framework on a busy machine

_ROOT = Path(__file__).resolve().parents[2]
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@dataclass(frozen=True)
class Plan:
    """The measured cases.

    Attributes:
      processes: numbers of processes.
      sizes: bytes that a rank contributes to an all-gather, or gets from a reduce-scatter.
      rule_bytes: bytes of a rank's array in the passes under each gradient rule.
      rule_rows: the number of its rows.
      seconds: the sampling time of each case.
      rounds: the number of samples of each case.
      patience: seconds without a report after which the processes are killed.
    """

    processes: tuple[int, ...]
    sizes: tuple[int, ...]
    rule_bytes: int
    rule_rows: int
    seconds: float
    rounds: int
    patience: float

    def cases(self, processes: int) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = [
            {"part": "transport", "collective": collective, "bytes": size}
            for collective in ("all-gather", "reduce-scatter")
            for size in self.sizes
        ]
        if processes == 1:
            return made
        passes = [("forward", "sum"), *(("backward", rule) for rule in ("sum", "mean", "local"))]
        shape = {"bytes": self.rule_bytes, "rows": self.rule_rows}
        return made + [{"part": "rule", "pass": p, "grad": r, **shape} for p, r in passes]

    def steps(self) -> int:
        return sum(self.rounds * len(self.cases(count)) for count in self.processes)


def measure(plan: Plan, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """Returns the rows of all cases; `advance(processes)` is called after each step.

    Raises:
      CommandError: a process failed, or no report arrived in time.
    """
    return [row for count in plan.processes for row in _run(plan, count, advance)]


def _run(plan: Plan, count: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bridge-scaling-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(count):
                processes.append(_start(plan, count, rank, folder))
            return _follow(plan, processes, folder, advance)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


def _start(plan: Plan, count: int, rank: int, folder: Path) -> subprocess.Popen[bytes]:
    task = {
        "parent": os.getpid(),
        "rank": rank,
        "processes": count,
        "store": str(folder / "store"),
        "cases": plan.cases(count),
        "seconds": plan.seconds,
        "rounds": plan.rounds,
        "timeout": START_SECONDS + plan.patience,
    }
    variables = {
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"errors{rank}").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tools.scaling.rank", json.dumps(task)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )


def _follow(
    plan: Plan,
    processes: list[subprocess.Popen[bytes]],
    folder: Path,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Reads until every process has closed its stdout."""
    rows: list[dict[str, Any]] = []
    pending = {rank: b"" for rank in range(len(processes))}
    deadline = time.monotonic() + START_SECONDS + plan.patience
    with selectors.DefaultSelector() as selector:
        for rank, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            events = selector.select(max(deadline - time.monotonic(), 0.0))
            if not events and time.monotonic() >= deadline:
                raise CommandError(
                    f"no report came from {len(processes)} Gloo processes for "
                    f"{plan.patience:g} s; they were ended{_said(folder, len(processes))}"
                )
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    _check_end(processes, key.data, folder)
                    continue
                *lines, pending[key.data] = (pending[key.data] + data).split(b"\n")
                for line in lines:
                    # Gloo prints lines too.
                    with contextlib.suppress(json.JSONDecodeError):
                        message = json.loads(line)
                        deadline = time.monotonic() + plan.patience
                        if "row" in message:
                            rows.append(message["row"])
                        else:
                            advance(len(processes))
    if len(rows) != len(plan.cases(len(processes))):
        raise CommandError(f"rank 0 of {len(processes)} ended without its report")
    return rows


def _check_end(processes: list[subprocess.Popen[bytes]], rank: int, folder: Path) -> None:
    try:
        code = processes[rank].wait(5.0)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        how = "hangs at its end" if code is None else f"ended with exit status {code}"
        said = _said(folder, len(processes), rank)
        raise CommandError(f"rank {rank} of {len(processes)} Gloo processes {how}{said}")


def _said(folder: Path, count: int, rank: int | None = None) -> str:
    """Returns the last line on stderr of a rank, or of the first rank with any output."""
    for which in range(count) if rank is None else (rank,):
        lines = (folder / f"errors{which}").read_text(errors="replace").strip().splitlines()
        if lines:
            return f"; rank {which} said: {lines[-1]}"
    return ""
