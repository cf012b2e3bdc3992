"""Goes through cases for as long as the time lasts that a command was given."""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
    """The time of a command, from here on: over when it is spent, or at a SIGTERM or Ctrl-C.

    A signal counts inside a `with` block; a second one of its kind ends the process as ever.

    Raises:
      CommandError: if `seconds` is not more than 0. None stands for as long as it takes.
    """

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None and not seconds > 0:
            raise CommandError(f"--seconds is {seconds:g}, expected more than 0")
        self._end = None if seconds is None else time.monotonic() + seconds
        self._previous: dict[int, Any] = {}
        self._asked_to_end = False

    def spent(self) -> bool:
        return self._asked_to_end or (self._end is not None and time.monotonic() >= self._end)

    def __enter__(self) -> Budget:
        with contextlib.suppress(ValueError):  # signals are the main thread's
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
    """Measures for as long as is asked for, writes the files, prints; returns the report.

    Args:
      measure: takes `recording` and `budget`.
      writers: as `outputs.write` takes them.
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
    """A case to be done.

    Attributes:
      op: its op, or "border".
      group: groups take turns.
      words: of the progress bar.
      rows: does it, and yields its rows.
    """

    op: str
    group: Hashable
    words: str
    rows: Callable[[], Iterable[Row]]


def in_turn(groups: Sequence[Hashable]) -> list[int]:
    """Returns the places of `groups` in an order in which a short beginning is a fair sample.

    Groups take turns. Inside a group the order is mixed, the same in every run.
    """
    places: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    for of_group in places.values():
        random.Random(0).shuffle(of_group)
    rounds = itertools.zip_longest(*places.values())
    return [place for found in rounds for place in found if place is not None]


def go_through(steps: Sequence[Step], recording: Recording, budget: Budget) -> bool:
    """Does the steps, and returns whether that were all.

    Raises:
      CommandError: if the time was spent before the first.
    """
    with bar() as progress:
        task = progress.add_task("", total=len(steps))
        for place in in_turn([step.group for step in steps]):
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
