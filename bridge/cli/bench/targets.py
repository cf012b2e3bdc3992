"""What the numbers are held against, and how one number is drawn from many rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bridge.cli.bench.cases import CHAIN, LARGE

Row = dict[str, Any]
PEERS = {"torch": ("eager", "compile"), "jax": ("jit",)}


@dataclass(frozen=True)
class Target:
    """A number to reach.

    Attributes:
      what: in words.
      value: what was measured; None where nothing was.
      limit: what is asked for; `value` must be at least that, or at most where `at_most`.
    """

    what: str
    value: float | None
    limit: float
    unit: str
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def geometric_mean(values: Iterable[float]) -> float | None:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def speedups(rows: Iterable[Row], peer: str) -> list[float]:
    """How many times faster bridge is than the peer, in each row that has both."""
    return [row["speedup"][peer] for row in rows if row["bytes"] and peer in row["speedup"]]


def targets(rows: list[Row]) -> list[Target]:
    """Returns every target with what these rows say of it."""
    full = [row for row in rows if not row["tiny"]]
    worst = min((min(row["speedup"].values()) for row in full if row["speedup"]), default=None)
    bfloat16_backward = [
        row for row in full if row["what"] == "backward" and row["dtype"] == "bfloat16"
    ]
    found = [
        Target("slowest row against the best peer of its framework", worst, 1.0, "×"),
        Target("geometric mean over torch eager", geometric_mean(speedups(full, "eager")), 3, "×"),
        Target("over torch.compile", geometric_mean(speedups(full, "compile")), 3, "×"),
        Target("over jax.jit", geometric_mean(speedups(full, "jit")), 2, "×"),
        Target(
            "bfloat16 backward with bias gradient over jax.jit",
            geometric_mean(speedups(bfloat16_backward, "jit")),
            5,
            "×",
        ),
        Target("large float32 forward into out=, of the speed of copy_", _of_copy(full), 70, "%"),
    ]
    return found + _tiny([row for row in rows if row["tiny"]])


def _of_copy(rows: list[Row]) -> float | None:
    for row in rows:
        is_it = (row["what"], row["memory"], row["dtype"]) == ("forward", "old", "float32")
        if is_it and row["shape"] == list(LARGE) and "copy" in row["timings"]:
            return 100.0 * _median(row, "copy") / _median(row, "bridge")
    return None


def _tiny(rows: list[Row]) -> list[Target]:
    def first(what: str, value: Callable[[Row], float]) -> float | None:
        return next((value(row) for row in rows if row["what"] == what), None)

    def further_call(row: Row) -> float:
        chain, single = row["timings"][f"bridge ×{CHAIN}"], row["timings"]["bridge"]
        return (chain["median"] - single["median"]) / (CHAIN - 1) * 1e6

    add = first("forward", lambda row: _median(row, "bridge") / _median(row, "add"))
    both = first("forward+backward", lambda row: row["speedup"]["eager"])
    return [
        Target("tiny torch call without grad, of one torch.add", add, 2, "×", at_most=True),
        Target("tiny torch forward+backward over F.gelu(x + b)", both, 1, "×"),
        Target("further call inside one jit", first("chain", further_call), 0.3, "µs", True),
    ]


def _median(row: Row, name: str) -> float:
    return row["timings"][name]["median"]
