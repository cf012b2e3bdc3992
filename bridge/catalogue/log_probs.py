"""Logarithms of softmax: log_softmax, logsumexp, and the log-probability of a label."""

from __future__ import annotations

import math
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared
from bridge.catalogue.labels import at_label, is_column
from bridge.catalogue.softmax import check_scale
from bridge.lang.reductions import beyond_largest
from bridge.ops.scalars import LARGEST_FLOAT32


def _check_scale(function: str, name: str, value: Any) -> float:
    return check_scale(function, value)


CHECKS = {"scale": _check_scale}


def scaled(x: Any, scale: float) -> Any:
    """Returns scale·x."""
    if scale == 1:
        return x
    # A scale beyond float32 is a product of several factors: infinity times 0 would be NaN.
    count = 0
    while abs(scale) > LARGEST_FLOAT32:
        scale, count = scale * 2.0**-64, count + 1
    x = x * scale
    for _ in range(count):
        x = x * 2.0**64
    return x


@declared(keep=("largest", "rest"), checks=CHECKS)
def log_softmax(x: bl.Full, *, scale: float = 1.0):
    s = scaled(x, scale)
    largest, rest = bl.logsumexp_parts(s)
    return (s - largest) - beyond_largest(largest, rest)


@declared(keep=("largest", "rest"), checks=CHECKS)
def logsumexp(x: bl.Full, *, scale: float = 1.0):
    s = scaled(x, scale)
    largest, rest = bl.logsumexp_parts(s)  # noqa: RUF059 - which derivatives read
    return bl.logsumexp(s)


@declared(keep=("largest", "rest"), checks=CHECKS)
def token_log_probs(logits: bl.Full, labels: bl.PerRow[int], *, scale: float = 1.0):
    s = scaled(logits, scale)
    largest, rest = bl.logsumexp_parts(s)
    found = (at_label(s, labels) - largest) - beyond_largest(largest, rest)
    return bl.where(is_column(labels), found, math.nan)
