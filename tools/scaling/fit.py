"""Latency and bandwidth fitted to measured exchanges, and the accuracy of the fit.

    T(n, part) = c + κ·part + (n−1)·s(n)·(α + part·β),      s(n) = max(1, n ÷ cores)

c is the cost of a call, κ of copying the rank's own part, α and β of a ring's step. The n processes
of one machine share its cores, which do all the copying of a loopback: if there are more processes
than cores they take turns, hence s. Coefficients are at least 0 and minimise Σ ((T − t) ÷ t)² over
the medians t: non-negative least squares (Lawson and Hanson) with rows divided by t, so that 64
bytes count as much as 8 MiB.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

Point = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """The coefficients of T: seconds, and seconds per byte.

    Attributes:
      cores: the number of cores that the processes share; None if each process has its own.
    """

    overhead: float
    copy: float
    alpha: float
    beta: float
    cores: int | None

    def predict(self, processes: int, part: float) -> float:
        """Returns the predicted seconds."""
        coefficients = (self.overhead, self.copy, self.alpha, self.beta)
        terms = _terms(processes, part, self.cores)
        return sum(c * x for c, x in zip(coefficients, terms, strict=True))

    def errors(self, points: Iterable[Point]) -> list[float]:
        """Returns (predicted − measured) ÷ measured for each point."""
        return [self.predict(p["processes"], p["bytes"]) / p["median"] - 1 for p in points]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def points_of(report: dict[str, Any], collective: str) -> list[Point]:
    """Returns the measured points of a collective."""
    return [row for row in report["measured"] if row.get("collective") == collective]


def _terms(processes: int, part: float, cores: int | None) -> tuple[float, ...]:
    turns = 1.0 if cores is None else max(1.0, processes / cores)
    steps = (processes - 1) * turns
    return 1.0, part, steps, steps * part


def fit(points: list[Point], cores: int | None) -> Fit:
    """Fits T to points with "processes", "bytes" (of a part) and "median" (seconds).

    Raises:
      ValueError: fewer than four points.
    """
    if len(points) < 4:
        raise ValueError(f"fit: {len(points)} points, expected at least 4")
    rows = np.array([_terms(p["processes"], p["bytes"], cores) for p in points])
    rows /= np.array([[p["median"]] for p in points])
    # Seconds per byte are a millionth of seconds: unscaled, they are below the solver's tolerance.
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(rows / scale, np.ones(len(points)))
    overhead, copy, alpha, beta = (float(x) for x in found / scale)
    return Fit(overhead, copy, alpha, beta, cores)


def summary(errors: list[float]) -> dict[str, float]:
    """Returns median, root mean square and largest of the absolute relative errors."""
    sizes = [abs(error) for error in errors]
    return {
        "median": statistics.median(sizes),
        "rms": statistics.fmean(size**2 for size in sizes) ** 0.5,
        "worst": max(sizes),
    }


def validation(points: list[Point], cores: int) -> list[dict[str, Any]]:
    """Returns the errors of predictions at points outside the fit."""
    most = max(p["processes"] for p in points)
    sizes = sorted({p["bytes"] for p in points})
    odd = set(sizes[1::2])
    rows = []
    for what, is_held_out, shared in (
        (f"{most} processes, from fewer", lambda p: p["processes"] == most, cores),
        (f"{most} processes, from fewer, s = 1", lambda p: p["processes"] == most, None),
        ("every second size, from the others", lambda p: p["bytes"] in odd, cores),
    ):
        seen = [p for p in points if not is_held_out(p)]
        held_out = [p for p in points if is_held_out(p)]
        if len(seen) < 4 or len({p["processes"] for p in seen}) < 2 or not held_out:
            continue
        found = fit(seen, shared)
        errors = found.errors(held_out)
        rows.append(
            {
                "what": what,
                "fit": found.to_json(),
                "errors": [
                    {
                        "processes": p["processes"],
                        "bytes": p["bytes"],
                        "measured": p["median"],
                        "predicted": found.predict(p["processes"], p["bytes"]),
                        "error": error,
                    }
                    for p, error in zip(held_out, errors, strict=True)
                ],
                **summary(errors),
            }
        )
    return rows
