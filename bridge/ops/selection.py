"""Choices of columns: the largest numbers of each row, or one column drawn from its softmax.

Both are one op with integers as its result, so that it has no derivative:

    selection  x `[..., cols]`, and perhaps words -> columns `[..., count]`

cpp/include/bridge/bridge.h defines the numbers. NaN is above all numbers, zeros are equal, and
equal numbers come in the order of their columns.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from bridge.lang.dtypes import FLOATING
from bridge.ops.definition import Spec

NAME = "selection"
MOST = 64  # columns of a choice
MOST_TERMS = 1 << 23  # columns of a row with a top_p


@dataclass(frozen=True)
class Selection:
    """Numbers of a call, known when it is compiled.

    Attributes:
      count: the number of chosen columns; 1 for a draw.
      temperature, top_k, top_p, min_p: of a draw. top_k = 0 draws from all columns.
    """

    count: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def check_rows(function: str, name: str, spec: Spec) -> None:
    """Raises TypeError or ValueError unless an array has rows of floating-point numbers."""
    if spec.dtype not in FLOATING:
        raise TypeError(
            f"{function}: {name} has dtype {spec.dtype}, expected one of {', '.join(FLOATING)}"
        )
    if not spec.shape:
        raise ValueError(f"{function}: {name} is 0-dimensional, expected [..., columns]")
    if spec.shape[-1] == 0:
        raise ValueError(
            f"{function}: {name} has shape {list(spec.shape)}, expected at least one column"
        )


def whole_number(function: str, name: str, value: Any, least: int, most: Any, why: str) -> int:
    """Returns an integer in a range.

    Args:
      most: the largest allowed number.
      why: the reason for it, for the message.

    Raises:
      TypeError: it is no integer.
      ValueError: it is out of range.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{function}: {name} has type {type(value).__name__}, expected an integer"
        ) from None
    if not least <= number <= most:
        raise ValueError(
            f"{function}: {name} is {number}, expected an integer from {least} to {most}, {why}"
        )
    return number


def check_count(function: str, name: str, value: Any, columns: Any) -> int:
    """Returns the number of columns to choose, from 1 to 64."""
    why = f"as there are {columns} columns" if columns < MOST else "the most that one call chooses"
    return whole_number(function, name, value, 1, min(MOST, columns), why)
