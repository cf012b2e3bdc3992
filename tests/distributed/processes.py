"""Several processes that run checks together, for any framework, and never hang.

Importing a framework costs seconds, so one set of processes runs many checks. Each check is sent by
its name, "module:function", and called on every rank as `function(place, **arguments)`. Its result
or exception is pickled and sent back. If a rank does not answer in time, the stacks of its threads
are recorded, and all ranks of its set are killed. Ranks die with the process that made them.

    with Processes(2, "tests.distributed.torch_processes:join") as ranks:
        first, second = ranks.run("tests.distributed.gather_checks:values", dim=1)
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]

# For a set of processes that must import its framework on a busy machine.
START_SECONDS = 120.0
CHECK_SECONDS = 240.0


@dataclass(frozen=True)
class Place:
    """The place of a process among the others.

    Attributes:
      rank, world_size: this process's number, and the number of processes.
      directory: an empty folder that all processes share, for a file store.
      port: a TCP port of this machine that was free when the set was started.
    """

    rank: int
    world_size: int
    directory: Path
    port: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check on one rank.

    Attributes:
      kind: "returned", "raised", "died" or "hung".
      value: the returned value.
      error: the name of the exception's type, for "raised".
      text: the exception's message for "raised", else a description of the process's end.
      details: traceback, or the stacks of a rank that hung, and the printed output of the process.
    """

    kind: str
    value: Any = None
    error: str = ""
    text: str = ""
    details: str = ""


class RankFailed(AssertionError):
    """A check did not return on every rank."""


class Processes:
    """A set of processes, one per rank.

    Args:
      world_size: the number of processes.
      setup: "module:function", called on every rank as `function(place)` before the first check.
      environment: environment variables to set in them.
    """

    def __init__(
        self, world_size: int, setup: str, environment: dict[str, str] | None = None
    ) -> None:
        self.world_size = world_size
        self.usable = True
        self._folder = tempfile.TemporaryDirectory(prefix="bridge-ranks-")
        directory = Path(self._folder.name)
        (directory / "shared").mkdir()
        port = _free_port()
        self._ranks = [
            _Rank(Place(rank, world_size, directory / "shared", port), directory, environment or {})
            for rank in range(world_size)
        ]
        try:
            self.run(setup, timeout=START_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self, check: str, /, *, timeout: float = CHECK_SECONDS, **arguments: Any) -> list[Any]:
        """Returns the results of the check on each rank, in rank order.

        Raises:
          RankFailed: it did not return on every rank; the message has each rank's traceback.
        """
        outcomes = self.outcomes(check, timeout=timeout, **arguments)
        failed = [(i, o) for i, o in enumerate(outcomes) if o.kind != "returned"]
        if failed:
            parts = [
                f"rank {i} of {self.world_size} {o.kind}: {o.error} {o.text}\n{o.details}"
                for i, o in failed
            ]
            raise RankFailed(f"{check}({arguments})\n" + "\n".join(parts))
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self, check: str, /, *, timeout: float = CHECK_SECONDS, **arguments: Any
    ) -> list[Outcome]:
        """Returns the outcome of the check on each rank. Never raises for an error on a rank.

        If a rank died or hung, the set is closed and `usable` is False.
        """
        for rank in self._ranks:
            rank.send((check, arguments))
        deadline = time.monotonic() + timeout
        outcomes: dict[_Rank, Outcome] = {}
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.replies, selectors.EVENT_READ, rank)
            while len(outcomes) < self.world_size:
                remaining = deadline - time.monotonic()
                events = selector.select(max(remaining, 0.0))
                if not events and remaining <= 0:
                    break
                for key, _ in events:
                    rank = key.data
                    outcome = rank.receive()
                    if outcome is not None:
                        outcomes[rank] = outcome
                        selector.unregister(rank.replies)
        for rank in self._ranks:
            if rank not in outcomes:
                stacks = rank.kill_with_stacks()
                outcomes[rank] = Outcome("hung", text=f"no answer in {timeout} s", details=stacks)
        if any(outcome.kind in ("died", "hung") for outcome in outcomes.values()):
            self.close()
        return [outcomes[rank] for rank in self._ranks]

    def close(self) -> None:
        """Ends the processes, by force if they do not exit at once."""
        self.usable = False
        for rank in self._ranks:
            rank.hang_up()
        deadline = time.monotonic() + 2.0
        for rank in self._ranks:
            rank.end(max(deadline - time.monotonic(), 0.0))
        self._folder.cleanup()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Rank:
    """One process: pipes for checks and replies, and a file for its output."""

    def __init__(self, place: Place, directory: Path, environment: dict[str, str]) -> None:
        self._printed = directory / f"rank{place.rank}.txt"
        check_end, self._checks = os.pipe()
        self.replies, reply_end = os.pipe()
        os.set_blocking(self.replies, False)
        self._received = b""
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **environment,
        }
        command = [sys.executable, "-m", "tests.distributed.rank", str(check_end), str(reply_end)]
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=(check_end, reply_end),
            )
        os.close(check_end)
        os.close(reply_end)
        self.send(place)

    def send(self, message: Any) -> None:
        data = pickle.dumps(message)
        with contextlib.suppress(BrokenPipeError):  # the process died: `receive` reports it
            os.write(self._checks, struct.pack("<Q", len(data)) + data)

    def receive(self) -> Outcome | None:
        """Returns the reply once all of it has arrived."""
        while True:
            try:
                part = os.read(self.replies, 1 << 20)
            except BlockingIOError:
                break
            if not part:
                code = self._process.wait()
                how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
                return Outcome("died", text=how, details=self._tail())
            self._received += part
        if len(self._received) < 8:
            return None
        (size,) = struct.unpack("<Q", self._received[:8])
        if len(self._received) < 8 + size:
            return None
        reply = pickle.loads(self._received[8 : 8 + size])
        self._received = self._received[8 + size :]
        return Outcome(**reply)

    def kill_with_stacks(self) -> str:
        self._process.send_signal(signal.SIGUSR1)  # faulthandler prints the stacks of all threads
        time.sleep(0.3)
        self._process.kill()
        self._process.wait()
        return self._tail()

    def hang_up(self) -> None:
        for end in ("_checks", "replies"):
            descriptor = getattr(self, end)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, end, -1)

    def end(self, patience: float) -> None:
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        return self._printed.read_text(errors="replace")[-6000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
