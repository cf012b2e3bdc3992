"""Ops of segments for tests, each beside the op of plain rows that it has to equal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import bridge
from bridge import lang as bl


def _softmax(x: Any) -> Any:
    return bl.exp(bl.log_softmax(x))


def _loss(x: Any, old: Any, weight: Any, label: Any) -> Any:
    ratio = bl.exp(bl.mean(x - old))
    chosen = bl.sum(bl.where(bl.column() == label, x, 0.0))
    return bl.sum(ratio * x * weight) + chosen, bl.like(ratio * x + weight, old)


def _statistics(x: Any, weight: Any) -> Any:
    wide = bl.where(bl.column() < 3, weight, 0.5)  # no operand of columns
    return (
        bl.max(x) - bl.min(x) + bl.logsumexp(x) * weight,
        bl.sum(wide) + bl.sum(weight) + 1.0 * bl.argmax(x),
        bl.rsqrt(x * x + 1.0) * weight / bl.columns() + bl.sum(bl.visible(x, first=2)),
    )


@bridge.op
def segment_softmax(x: bridge.Full, cu_seqlens: bridge.Segments):
    return _softmax(x)


@bridge.op
def softmax(x: bridge.Full):
    return _softmax(x)


@bridge.op
def segment_loss(
    x: bridge.Full,
    old: bridge.Full,
    weight: bridge.PerRow,
    label: bridge.PerRow[int],
    cu_seqlens: bridge.Segments,
):
    return _loss(x, old, weight, label)


@bridge.op
def loss(x: bridge.Full, old: bridge.Full, weight: bridge.PerRow, label: bridge.PerRow[int]):
    return _loss(x, old, weight, label)


@bridge.op
def segment_statistics(x: bridge.Full, weight: bridge.PerRow, cu_seqlens: bridge.Segments):
    return _statistics(x, weight)


@bridge.op
def statistics(x: bridge.Full, weight: bridge.PerRow):
    return _statistics(x, weight)


@bridge.op
def segment_gate(
    x: bridge.Full, scale: bridge.Row, table: bridge.Table, mask: bridge.Mask, ends: bridge.Segments
):
    return bl.where(mask, bl.silu(x) * scale, -1.0) + table * bl.mean(x)


@bridge.op
def gate(x: bridge.Full, scale: bridge.Row, table: bridge.Table, mask: bridge.Mask):
    return bl.where(mask, bl.silu(x) * scale, -1.0) + table * bl.mean(x)


@bridge.op
def rotate(
    x: bridge.Halves, cos: bridge.PerPosition, sin: bridge.PerPosition, cu_seqlens: bridge.Positions
):
    first, second = x
    return bl.halves(first * cos - second * sin, second * cos + first * sin)


PAIRS = {
    "softmax": (segment_softmax, softmax, "F"),
    "loss": (segment_loss, loss, "FFPI"),
    "statistics": (segment_statistics, statistics, "FP"),
    "gate": (segment_gate, gate, "FRTM"),
}
LENGTHS = {
    "many": (5, 0, 1, 34, 17, 100, 2, 0),
    "one": (37,),
    "tokens": (1, 1, 1, 1),
    "empty": (0, 0),
    "none": (),
    "long": (1500, 3, 40),
}
FLOATING = "FPRT"


def ends_of(lengths: Sequence[int]) -> Any:
    return np.cumsum([0, *lengths]).astype(np.int32)


def operands_of(kinds: str, lengths: Sequence[int], rows: Sequence[int], seed: int = 0) -> Any:
    """Returns NumPy operands: F full, P per segment, I an integer per segment, R row, T, M."""
    rng = np.random.default_rng(seed)
    total, count = sum(lengths), len(lengths)
    shapes = {"F": (*rows, total), "P": (*rows, count), "R": (total,), "T": (1,) * len(rows)}
    found = []
    for kind in kinds:
        if kind == "I":
            found.append(rng.integers(0, 4, (*rows, count)))
        elif kind == "M":
            found.append(rng.random((*rows, total)) < 0.7)
        elif kind == "T":
            found.append(rng.normal(size=(*shapes["T"], total)).astype(np.float32))
        else:
            found.append(rng.normal(size=shapes[kind]).astype(np.float32))
    return found


def parts_of(kinds: str, operands: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    """Returns the operands of each segment alone."""
    parts = []
    for which, (start, stop) in enumerate(itertools.pairwise(ends_of(lengths).tolist())):
        own = []
        for kind, operand in zip(kinds, operands, strict=True):
            own.append(operand[..., which] if kind in "PI" else operand[..., start:stop])
        parts.append(own)
    return parts


def together(results: Sequence[Any], is_full: bool, join: Callable[..., Any], stack: Any) -> Any:
    """Returns the results of all segments in one array."""
    return join(results, -1) if is_full else stack(results, -1)
