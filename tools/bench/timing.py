"""Timing of contenders in turn, so that a change of the machine's load affects all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Contender:
    """One way to do the work of a case.

    Attributes:
      name: "bridge", "eager", "compile", "jit", "copy_", …
      run: does the work once and returns the results.
      wait: blocks until the results are computed.
      calls: the number of calls of the op in one `run`.
      queued: True if runs are queued on a device in order, and a sample waits only for the last
        run; otherwise each run is waited for before the next begins.
      restore: for a run that consumes its operands: restores, untimed, the operands of the first
        run. It is called before each run, and for queued runs before each sample.
    """

    name: str
    run: Callable[[], Any]
    wait: Callable[[Any], Any]
    calls: int = 1
    queued: bool = False
    restore: Callable[[], None] | None = None


@dataclass
class Timing:
    """Seconds per call: median and quartiles over rounds."""

    median: float
    low: float
    high: float
    rounds: int
    samples: list[float] = field(repr=False, default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "rounds": self.rounds,
        }


# A sample has as many runs as take this long: a shorter one would measure the clock and the loop.
SAMPLE_SECONDS = 2e-3
# A framework's idle workers spin for about a millisecond after its last call, and would take the
# cores from the next contender.
REST_SECONDS = 1.5e-3
# After a compilation, which forks the process, calls take milliseconds for a while.
SETTLING_SECONDS = 20e-3


def interleave(
    contenders: Sequence[Contender], seconds: float, least: int = 5, most: int = 60
) -> dict[str, Timing]:
    """Returns timings by name, from rounds in which each contender is sampled once.

    Args:
      seconds: the time limit, for all contenders together.
      least, most: bounds on the rounds.
    """
    repeats = {c.name: _warm_up(c) for c in contenders}
    samples: dict[str, list[float]] = {c.name: [] for c in contenders}
    start = time.perf_counter()
    rounds = 0
    while rounds < least or (rounds < most and time.perf_counter() - start < seconds):
        first = rounds % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            time.sleep(REST_SECONDS)
            samples[contender.name].append(_sample(contender, repeats[contender.name]))
        rounds += 1
    timings = {}
    for contender in contenders:
        values = [sample / contender.calls for sample in samples[contender.name]]
        low, median, high = statistics.quantiles(values, n=4)
        timings[contender.name] = Timing(median, low, high, rounds, values)
    return timings


def _warm_up(contender: Contender) -> int:
    """Compiles, touches memory, and returns the number of runs per sample."""
    _sample(contender, 1)
    settled = time.perf_counter() + SETTLING_SECONDS
    while time.perf_counter() < settled:
        _sample(contender, 1)
    repeats = 1
    while (once := _undisturbed(contender, repeats)) * repeats < SAMPLE_SECONDS:
        repeats = max(repeats + 1, min(100 * repeats, int(SAMPLE_SECONDS / max(once, 1e-9)) + 1))
    return repeats


def _undisturbed(contender: Contender, repeats: int) -> float:
    """Returns the least time of three: after one interrupted run, a sample would stay a single run.

    Such a sample measures mostly the cost of a call after a rest: cold caches and sleeping workers.
    """
    return min(_sample(contender, repeats) for _ in range(3))


def _sample(contender: Contender, repeats: int) -> float:
    """Returns seconds per run."""
    if contender.restore is None:
        return _stretch(contender, repeats) / repeats
    length = repeats if contender.queued else 1
    seconds = 0.0
    for _ in range(repeats // length):
        contender.restore()
        seconds += _stretch(contender, length)
    return seconds / repeats


def _stretch(contender: Contender, runs: int) -> float:
    """Returns the seconds of several runs, one after the other."""
    run, wait = contender.run, contender.wait
    start = time.perf_counter()
    if contender.queued:
        for _ in range(runs - 1):
            run()
        wait(run())
    else:
        for _ in range(runs):
            wait(run())
    return time.perf_counter() - start
