"""Time limits of commands: run as many cases as fit."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import random
import signal
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from bridge.cli import outputs
from bridge.cli.errors import CommandError
from bridge.cli.outputs import Report
from bridge.cli.progress import bar
from bridge.cli.rows import Recording, Row
from bridge.cli.terminal import terminal


class Budget:
    """The time budget of a command. It is spent after `seconds`, or at a SIGTERM or Ctrl-C.

    The clock starts at `begin`, so imports and the start of the frameworks do not count. Signals
    count inside a `with` block; a second signal of the same kind ends the process as usual.

    Raises:
      CommandError: if `seconds` is not more than 0. None means no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None and not seconds > 0:
            raise CommandError(f"--seconds is {seconds:g}, expected more than 0")
        self._seconds = math.inf if seconds is None else seconds
        self._end = math.inf
        self._previous: dict[int, Any] = {}
        self._asked_to_end = False

    def begin(self) -> None:
        """Starts the clock; a later call does not start it again."""
        if self._end == math.inf:
            self._end = time.monotonic() + self._seconds

    def spent(self) -> bool:
        return self._asked_to_end or time.monotonic() >= self._end

    def __enter__(self) -> Budget:
        with contextlib.suppress(ValueError):  # only the main thread may set signal handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._ask_to_end)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _ask_to_end(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_end = True
        signal.signal(number, self._previous[number])


def run_within(
    options: argparse.Namespace,
    measure: Callable[..., Report],
    show: Callable[[Report, Console], None],
    **writers: Callable[[Report, Path], None],
) -> Report:
    """Measures within the time that the user asked for, writes files, prints; returns the report.

    Args:
      measure: takes `recording` and `budget`.
      writers: functions that write files, as in `outputs.write`.
    """
    outputs.check(options)
    console = terminal()
    with Budget(options.seconds) as budget:
        report = measure(recording=Recording(options.jsonl), budget=budget)
        outputs.write(options, report, **writers)
    show(report, console)
    outputs.name(options, console)
    return report


@dataclass(frozen=True)
class Step:
    """A case to run.

    Attributes:
      op: the op of the case, or "border".
      turn: keys of the case for `in_turn`.
      words: text for the progress bar.
      rows: runs the case and yields its rows.
    """

    op: str
    turn: tuple[Hashable, ...]
    words: str
    rows: Callable[[], Iterable[Row]]


def in_turn(turns: Sequence[tuple[Hashable, ...]]) -> list[int]:
    """Returns the indices of `turns` in an order whose first few entries are a fair sample.

    The first keys alternate. Among the entries with one first key the second keys alternate, and so
    on. Entries with equal tuples are shuffled, in the same way in every run.
    """
    return _in_turn(list(range(len(turns))), turns, 0)


def _in_turn(places: list[int], turns: Sequence[tuple[Hashable, ...]], depth: int) -> list[int]:
    groups: dict[Hashable, list[int]] = {}
    for place in places:
        groups.setdefault(turns[place][depth : depth + 1], []).append(place)
    if set(groups) <= {()}:
        random.Random(0).shuffle(places)
        return places
    ordered = [_in_turn(of_group, turns, depth + 1) for of_group in groups.values()]
    rounds = itertools.zip_longest(*ordered)
    return [place for found in rounds for place in found if place is not None]


def go_through(steps: Sequence[Step], recording: Recording, budget: Budget) -> bool:
    """Runs the steps until the time is spent, which starts here; returns True if all were done.

    Raises:
      CommandError: if the time was spent before the first step.
    """
    budget.begin()
    with bar() as progress:
        task = progress.add_task("", total=len(steps))
        for place in in_turn([step.turn for step in steps]):
            if budget.spent():
                break
            step = steps[place]
            progress.update(task, description=step.words)
            for row in step.rows():
                recording.add(place, step.op, row)
            progress.advance(task)
        else:
            return True
    if not recording.records:
        recording.finish(complete=False)
        raise CommandError("the time was spent before anything was measured")
    return False
