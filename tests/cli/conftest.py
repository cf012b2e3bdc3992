"""Fixtures of the commands."""

from __future__ import annotations

import pytest


class HandClock:
    """Replaces a module's `time`, and moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Returns the clock of the bench's samples."""
    clock = HandClock()
    monkeypatch.setattr("tools.bench.timing.time", clock)
    return clock
