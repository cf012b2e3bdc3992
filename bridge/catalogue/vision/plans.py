"""Texts that describe windows, and their tables.

A text is an option of an op, so that a graph has it instead of the tables. It has the kind, then
the arguments of the function that makes the tables, such as "average;9,8,;3,3,;True".
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bridge.catalogue.vision.resizing import resized
from bridge.catalogue.vision.windows import (
    Direction,
    Plan,
    Window,
    averages,
    even_parts,
    mean_of_row,
    rows_of,
    table_of,
    transposed,
)


def text_of(kind: str, *arguments: Any) -> str:
    """Returns the text; arguments are tuples of integers, numbers, words, truth values or None.

    torch.compile traces this function.
    """
    fields = [kind]
    for each in arguments:
        if isinstance(each, tuple):
            fields.append("".join([f"{number}," for number in each]))
        else:
            fields.append(f"{each}")
    return ";".join(fields)


def read(text: str) -> list[Any]:
    """Returns the kind and the arguments of a text."""
    kind, *fields = text.split(";")
    return [kind, *map(_value, fields)]


def _value(field: str) -> Any:
    if "," in field:
        return tuple([int(number) for number in field.split(",")[:-1]])
    if field in _WORDS:
        return _WORDS[field]
    try:
        return int(field)
    except ValueError:
        pass
    try:
        return float(field)
    except ValueError:
        return field


_WORDS = {"True": True, "False": False, "None": None, "": ()}


@functools.lru_cache(maxsize=64)
def _window(text: str) -> tuple[Any, tuple[int, ...]]:
    """Returns the table of windows and the sizes of the input."""
    _, sizes, *window = read(text)
    return table_of(Window(*window[:5]).places(sizes), sizes), sizes


@functools.lru_cache(maxsize=64)
def window_of(text: str) -> Any:
    """Returns the places of windows, `[taps, outputs]`."""
    return rows_of(_window(text)[0])


@functools.lru_cache(maxsize=64)
def outputs_of(text: str) -> Any:
    """Returns the windows of each place, `[taps, places]`."""
    table, sizes = _window(text)
    return rows_of(transposed(table, math.prod(sizes))[0])


@functools.lru_cache(maxsize=64)
def plan_of(text: str) -> Plan:
    """Returns the tables of a linear map."""
    kind, *arguments = read(text)
    return _PLANS[kind](text, *arguments)


def direction_of(text: str, back: bool) -> Direction:
    """Returns the tables of one direction of a linear map."""
    plan = plan_of(text)
    return plan.back if back else plan.forth


@functools.lru_cache(maxsize=64)
def weights_of(text: str, back: bool, dtype: str) -> Any:
    """Returns the weights of a direction in the dtype of the arithmetic."""
    return direction_of(text, back).weights.astype(dtype)


def _average(text: str, sizes: Any, *window: Any) -> Plan:
    *fields, padding, divisor = window
    made, (table, _) = Window(*fields), _window(text)
    own = made.divisors(sizes, padding) if divisor is None else [divisor] * len(table)
    return averages(table, own, math.prod(sizes))


def _parts(text: str, sizes: Any, outputs: Any) -> Plan:
    parts = even_parts(sizes, outputs)
    divisor = np.ones(1)
    for own in parts:
        divisor = (divisor[:, None] * np.array([len(part) for part in own], float)).reshape(-1)
    return averages(table_of(parts, sizes), divisor, math.prod(sizes))


def _mean(text: str, sizes: Any) -> Plan:
    return mean_of_row(math.prod(sizes))


def _resize(text: str, *arguments: Any) -> Plan:
    return resized(*arguments)


_PLANS: dict[str, Any] = {
    "average": _average,
    "mean": _mean,
    "parts": _parts,
    "resize": _resize,
}
