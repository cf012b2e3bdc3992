"""Seconds, bytes and errors as text, with about three figures."""

from __future__ import annotations


def duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if seconds < 0.9995 * limit:
            return f"{_figures(seconds * scale)} {unit}"
    raise AssertionError


def amount(count: float) -> str:
    """Returns bytes as text, in units of 1024."""
    if count == 0:
        return "0"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1023.5 or unit == "TiB":
            return f"{_figures(count)} {unit}"
        count /= 1024
    raise AssertionError


def _figures(value: float) -> str:
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def rate(seconds_per_byte: float) -> str:
    return f"{_figures(1e-9 / seconds_per_byte)} GB/s" if seconds_per_byte > 0 else "–"


def percent(error: float) -> str:
    return f"{error:.0%}"


def signed(error: float) -> str:
    return f"{error:+.0%}"
