"""Times several contenders in turn, so that a change of the machine's mood meets all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Contender:
    """Something that does the work of a case.

    Attributes:
      name: "bridge", "eager", "compile", "jit", "copy_", …
      run: does it once and returns the results.
      wait: blocks until the results are there.
      calls: how many calls of the op one `run` makes.
      queued: runs are queued on a device in order, and a sample waits for the last alone; otherwise
        each is waited for before the next begins.
      restore: for a run that uses its operands up: puts back, untimed, what the first run saw. It
        is called before each run, and where runs are queued before each sample.
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


# A sample is as many runs as take this long: below, the clock and the loop would be measured.
SAMPLE_SECONDS = 2e-3
# A framework's idle workers keep spinning for about a millisecond after its last call, and would
# take the cores from whoever is next.
REST_SECONDS = 1.5e-3
# Behind a compiler, for which the process was forked, calls take milliseconds for a while.
SETTLING_SECONDS = 20e-3


def interleave(
    contenders: Sequence[Contender], seconds: float, least: int = 5, most: int = 60
) -> dict[str, Timing]:
    """Returns timings by name, from rounds in which each contender is sampled once.

    Args:
      seconds: how long to go on, for all contenders together.
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
    """Compiles, touches memory, and returns how many runs make a sample."""
    _sample(contender, 1)
    settled = time.perf_counter() + SETTLING_SECONDS
    while time.perf_counter() < settled:
        _sample(contender, 1)
    repeats = 1
    while (once := _undisturbed(contender, repeats)) * repeats < SAMPLE_SECONDS:
        repeats = max(repeats + 1, min(100 * repeats, int(SAMPLE_SECONDS / max(once, 1e-9)) + 1))
    return repeats


def _undisturbed(contender: Contender, repeats: int) -> float:
    """The least of three: by one that was interrupted, a single run would be a sample for good.

    Such a sample is mostly what a call pays after a rest: caches and workers that sleep.
    """
    return min(_sample(contender, repeats) for _ in range(3))


def _sample(contender: Contender, repeats: int) -> float:
    """Seconds per run."""
    if contender.restore is None:
        return _stretch(contender, repeats) / repeats
    length = repeats if contender.queued else 1
    seconds = 0.0
    for _ in range(repeats // length):
        contender.restore()
        seconds += _stretch(contender, length)
    return seconds / repeats


def _stretch(contender: Contender, runs: int) -> float:
    """Seconds of some runs, one after the other."""
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
