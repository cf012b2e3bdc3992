"""Runs the steps of a stage and stores their output, even if the stage is killed.

The results are two files, written again whenever a step ends and every few seconds in between, so
that a killed stage loses no finished work: `check_gpu-<stage>.tar.gz` with the log of each step and
every file written by the steps, and `summary.txt`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The ends of a log matter more than its middle; an archive must stay under 16 MiB.
MOST_LOG_BYTES = 400_000
REFRESH_SECONDS = 10.0


@dataclass(frozen=True)
class Step:
    """One command of a stage.

    Attributes:
      name: the name of the step and its log.
      command: program and arguments.
      seconds: the time limit. At the limit the step gets SIGTERM, and ten seconds later SIGKILL.
      needs_device: without a GPU the step can only be printed.
      needed: if True, the stage ends when the step fails.
      fails_with: the exit statuses that are failures; None: all but 0. Any other status, or a
        missing program, means that this machine cannot run the step, which is then skipped.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    needs_device: bool = False
    needed: bool = False
    fails_with: tuple[int, ...] | None = None


@dataclass
class Result:
    step: Step
    word: str  # passed, FAILED, skipped, running, printed
    seconds: float = 0.0
    why: str = ""


@dataclass
class Stage:
    """The steps of a stage during a run.

    Attributes:
      name: truth, speed or depth.
      device: the device, for the summary.
      logs: the folder for logs and for files written by steps.
      out: the folder for the results.
      budget: seconds for the whole stage; steps without time left fail.
      at_once: the number of steps of a group that may run side by side.
      rehearse: True to print steps that need a device.
      before: the beginning of the summary: earlier stages.
      commit: the checked commit, if known.
      environment: additional environment variables.
    """

    name: str
    device: str
    logs: Path
    out: Path
    budget: float
    at_once: int
    rehearse: bool = False
    before: str = ""
    commit: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._lock = threading.RLock()  # a signal may come while the main thread writes
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._ended = threading.Event()
        self.logs.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)

    def run(self, groups: Sequence[Sequence[Step]]) -> bool:
        """Runs group after group, the steps of a group side by side; returns True if all passed."""
        refresh = threading.Thread(target=self._refresh, daemon=True)
        refresh.start()
        try:
            for group in groups:
                with ThreadPoolExecutor(min(self.at_once, len(group))) as pool:
                    results = list(pool.map(self._step, group))
                if any(r.word == "FAILED" and r.step.needed for r in results):
                    break
        finally:
            self._ended.set()
            refresh.join()
            self.write()
        return not any(result.word in ("FAILED", "running") for result in self.results)

    def stop(self) -> None:
        """Ends running steps; called when the stage itself must end."""
        for process in list(self._processes):
            _signal(process, signal.SIGKILL)
        self._ended.set()
        self.write()

    def write(self) -> None:
        """Writes the summary and the archive."""
        with self._lock:
            summary = self.summary()
            _replace(self.logs / "summary.txt", summary.encode())
            _replace(self.logs / "stage.json", json.dumps(self._facts(), indent=1).encode())
            _replace(self.out / "summary.txt", (self.before + summary).encode())
            part = self.out / f".{self.name}.part"
            with tarfile.open(part, "w:gz", compresslevel=6) as archive:
                for path in sorted(self.logs.iterdir()):
                    if path.name.startswith(".") or not path.is_file():
                        continue
                    data = path.read_bytes()
                    _add(archive, path.name, _ends(data) if path.suffix == ".log" else data)
            part.replace(self.out / f"check_gpu-{self.name}.tar.gz")

    def _facts(self) -> dict[str, Any]:
        results = [
            {"step": r.step.name, "word": r.word, "seconds": round(r.seconds, 1), "why": r.why}
            for r in list(self.results)
        ]
        facts = {"stage": self.name, "device": self.device, "rehearsal": self.rehearse}
        return {**facts, "commit": self.commit, "results": results}

    def summary(self) -> str:
        seconds = time.monotonic() - self._begin
        what = "rehearsal of " if self.rehearse else ""
        lines = [f"{what}{self.name} on {self.device}: {seconds:.0f} s"]
        for result in list(self.results):
            took = f" ({result.seconds:.0f} s)" if result.seconds else ""
            why = f": {result.why}" if result.why else ""
            lines.append(f"  {result.word:<8} {result.step.name}{took}{why}")
        for result in list(self.results):
            if result.word == "FAILED" and (tail := self._tail(result.step, 15)):
                lines += [f"  -- end of {result.step.name}.log", *(f"  | {line}" for line in tail)]
        return "\n".join(lines) + "\n"

    def _tail(self, step: Step, count: int) -> list[str]:
        path = self.logs / f"{step.name}.log"
        if not path.exists():
            return []
        return path.read_text(errors="replace").splitlines()[-count:]

    def _refresh(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self.write()

    def _step(self, step: Step) -> Result:
        result = Result(step, "running")
        self.results.append(result)
        print(f"== {step.name}", flush=True)
        if self.rehearse and step.needs_device:
            result.word, result.why = "printed", " ".join(shlex.join(step.command).split())
            print(f"   needs a GPU: {result.why}", flush=True)
            return result
        begin = time.monotonic()
        left = self.budget - (begin - self._begin)
        limit = min(step.seconds, left)
        if limit < 5:
            result.word, result.why = "FAILED", f"no time left of {self.budget:.0f} s"
            return result
        result.why = self._run(step, limit)
        result.seconds = time.monotonic() - begin
        result.word = "FAILED" if result.why else "passed"
        if result.why.startswith("skipped"):
            result.word, _, result.why = result.why.partition(": ")
        for line in self._tail(step, 3):
            print(f"   {line}", flush=True)
        print(f"   {step.name}: {result.word}, {result.seconds:.0f} s {result.why}", flush=True)
        self.write()
        return result

    def _run(self, step: Step, limit: float) -> str:
        """Runs the command; returns "" or the reason of a failure."""
        path = self.logs / f"{step.name}.log"
        with path.open("wb") as log:
            try:
                process = subprocess.Popen(
                    step.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
            except OSError as error:
                skipped = "" if step.fails_with is None else "skipped: "
                return f"{skipped}{step.command[0]}: {error.strerror}"
            self._processes.add(process)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    _signal(process, signal.SIGKILL)
                    process.wait()
                return f"stopped at its limit of {limit:.0f} s"
            finally:
                _signal(process, signal.SIGKILL)  # processes that the command left running
                self._processes.discard(process)
        if status == 0:
            return ""
        if step.fails_with is not None and status not in step.fails_with:
            return f"skipped: exit status {status}, {' '.join(self._tail(step, 1))}"
        return f"exit status {status}"


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signals the process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


def _ends(data: bytes) -> bytes:
    if len(data) <= MOST_LOG_BYTES:
        return data
    half = MOST_LOG_BYTES // 2
    left_out = len(data) - 2 * half
    return b"%b\n... %d bytes left out ...\n%b" % (data[:half], left_out, data[-half:])


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(data), int(time.time())
    archive.addfile(member, io.BytesIO(data))
