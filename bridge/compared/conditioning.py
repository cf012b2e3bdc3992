"""Variances that JAX computes as a difference of two much larger numbers, and torch does not.

E[x²] − E[x]² equals E[(x − E[x])²], but in float32 it loses as many digits as the two terms have
more than their difference. In float64, in which the models are compared, the loss does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bridge.compared.values import EQUAL, Value

if TYPE_CHECKING:
    from bridge.compared.search import Search

LARGE = 100.0  # two decimal digits are lost
ROUNDING = 1e-15  # of each of the two terms, in float64


def cancelled(search: Search) -> list[str]:
    """Returns a sentence for each line of JAX that loses digits which torch keeps."""
    lines: dict[str, float] = {}
    for value in search.tape.values:
        ratio = cancellation(search.tape.values, value)
        if ratio < LARGE or value.place is None or value.printed is None:
            continue
        # Torch has the variance and neither term. With both terms it would subtract them too.
        if any(parent in search.jax_pairs for parent in value.parents):
            continue
        tolerance = max(EQUAL, ROUNDING * ratio)
        if search.torch_table.partner(value.printed, tolerance) is not None:
            source = value.place.source
            lines[source] = max(lines.get(source, 0.0), ratio)
    return [
        f"{source} subtracts numbers {ratio:.0e} times as large as the result, which loses these "
        "digits in float32; torch does not: take the mean of (x − mean)² for a variance"
        for source, ratio in lines.items()
    ]


def cancellation(values: Sequence[Value], value: Value) -> float:
    """Returns how many times the terms of a difference are larger than it, by their means.

    0 for other operations, and where one of the three has numbers below 0: a variance has none.
    """
    if value.op != "sub" or len(value.parents) != 2:
        return 0.0
    found = [values[k].printed for k in (value.index, *value.parents)]
    means = []
    for one in found:
        if one is None or not one.size or one.sums[4] < -ROUNDING * one.sums[3]:
            return 0.0
        means.append(one.sums[2] / one.size)
    return min(means[1:]) / means[0] if means[0] else 0.0
