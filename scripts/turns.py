"""Times of runs that take turns in one process, and how many times as fast one is as another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[], Any]
Runs = dict[str, Run]  # by the name of a column
Times = dict[str, list[float]]  # in seconds, of each round


def timed(run: Run, least: float) -> float:
    """Returns seconds for one call, the mean of as many as take `least` seconds."""
    count, begin = 0, time.perf_counter()
    while True:
        run()
        count += 1
        taken = time.perf_counter() - begin
        if taken >= least:
            return taken / count


def in_turn(runs: Runs, rounds: int, least: float, compile_seconds: float = 300) -> Times:
    """Returns the seconds of each run in each round, once everything is compiled."""
    import bridge

    for run in runs.values():
        run()
    bridge.wait(compile_seconds)
    times: Times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(run, least))
    return times


def milliseconds(times: Times) -> dict[str, float]:
    """Returns the median time of each run."""
    return {name: round(1e3 * statistics.median(each), 4) for name, each in times.items()}


def quotient(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """Returns the median of theirs / ours over the rounds, and the distance of the quartiles."""
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return round(statistics.median(ratios), 3), round(quarters[2] - quarters[0], 3)
