"""Logarithms of softmax: log_softmax, logsumexp, and the log-probability of a label."""

from __future__ import annotations

import math
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared
from bridge.catalogue.labels import at_label, is_column
from bridge.catalogue.softmax import check_scale
from bridge.lang.functions import beyond_largest


def _check_scale(function: str, name: str, value: Any) -> float:
    return check_scale(function, value)


_CHECKS = {"scale": _check_scale}


def _scaled(x: Any, scale: float) -> Any:
    return x if scale == 1 else x * scale


@declared(keep=("largest", "rest"), checks=_CHECKS)
def log_softmax(x: bl.Full, *, scale: float = 1.0):
    s = _scaled(x, scale)
    largest, rest = bl.logsumexp_parts(s)
    return (s - largest) - beyond_largest(largest, rest)


@declared(keep=("largest", "rest"), checks=_CHECKS)
def logsumexp(x: bl.Full, *, scale: float = 1.0):
    s = _scaled(x, scale)
    largest, rest = bl.logsumexp_parts(s)  # noqa: RUF059 - which derivatives read
    return bl.logsumexp(s)


@declared(keep=("largest", "rest"), checks=_CHECKS)
def token_log_probs(logits: bl.Full, labels: bl.PerRow[int], *, scale: float = 1.0):
    s = _scaled(logits, scale)
    largest, rest = bl.logsumexp_parts(s)
    found = (at_label(s, labels) - largest) - beyond_largest(largest, rest)
    return bl.where(is_column(labels), found, math.nan)
