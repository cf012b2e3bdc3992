"""Numbers of float4_e2m1fn: 0, ½, 1, 1½, 2, 3, 4 and 6 with a sign, and two of them in a byte."""

from __future__ import annotations

import itertools
from typing import Any

from bridge import lang as bl

NAME = "float4_e2m1fn_x2"  # two numbers in a byte, the first one in the low bits
LARGEST = 6.0
_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, LARGEST)  # by their codes


def _by_size(x: Any, outcomes: Any) -> Any:
    """Returns the outcome of the number nearest to |x|; a tie goes to the even code, NaN to 0."""
    size, found = bl.abs(x), outcomes[0]
    for code, (below, above) in enumerate(itertools.pairwise(_NUMBERS), 1):
        middle = (below + above) / 2
        is_above = size > middle if code % 2 else size >= middle
        found = bl.where(is_above, outcomes[code], found)
    return found


def _is_negative(x: Any) -> Any:
    """True for -0.0 too."""
    return (x < 0.0) | (1.0 / x < 0.0)


def code_of(x: Any) -> Any:
    """Returns the code of the nearest number, from 0 to 15; beyond ±6 it is the one of ±6."""
    size = _by_size(x, [float(code) for code in range(8)])
    return bl.where(_is_negative(x), size + 8.0, size)


def nearest(x: Any) -> Any:
    """Returns the nearest number."""
    size = _by_size(x, _NUMBERS)
    return bl.where(_is_negative(x), -size, size)


def number_of(code: Any) -> Any:
    """Returns the number of a code from 0 to 15."""
    is_negative = code >= 8.0
    c = bl.where(is_negative, code - 8.0, code)
    size = bl.where(c <= 4.0, 0.5 * c, bl.where(c <= 6.0, c - 2.0, LARGEST))
    return bl.where(is_negative, -size, size)
