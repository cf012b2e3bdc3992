"""Draws of tokens: the checks of their arguments, and the numbers of a call."""

from __future__ import annotations

from typing import Any

from bridge.catalogue import checks
from bridge.ops.arrays import Arrays
from bridge.ops.definition import Spec
from bridge.ops.selection import MOST_TERMS, Selection, check_rows, whole_number

NAME = "seeded_sample"

_temperature = checks.number("a number from 0 to 1e300", lambda value: 0.0 <= value <= 1e300)
_top_p = checks.number("a probability above 0 and at most 1", lambda value: 0.0 < value <= 1.0)


def checked(
    arrays: Arrays, spec: Spec, temperature: Any, top_k: Any, top_p: Any, min_p: Any
) -> Selection:
    """Returns the numbers of a draw from logits of this shape and dtype.

    Raises:
      TypeError, ValueError: an argument is not allowed.
    """
    check_rows(NAME, "logits", spec)
    columns = spec.shape[-1]

    def known(name: str, value: Any) -> Any:
        return None if value is None else arrays.known(NAME, name, value)

    if (top_k := known("top_k", top_k)) is not None:
        why = f"as there are {columns} columns"
        top_k = whole_number(NAME, "top_k", top_k, 1, columns, why)
    top_p = checks.optional(_top_p)(NAME, "top_p", known("top_p", top_p))
    min_p = checks.optional(checks.probability)(NAME, "min_p", known("min_p", min_p))
    if top_p is not None and top_p < 1 and columns > MOST_TERMS:
        raise ValueError(
            f"{NAME}: logits has {columns} columns, expected at most {MOST_TERMS} where top_p is "
            "given"
        )
    return Selection(
        1,
        _temperature(NAME, "temperature", known("temperature", temperature)),
        top_k or 0,
        1.0 if top_p is None else top_p,
        min_p or 0.0,
    )


def check_offsets(spec: Spec, rows: Any) -> None:
    """Raises TypeError or ValueError unless offsets are integers, one for all rows or for each."""
    if spec.dtype.removeprefix("u") not in ("int8", "int16", "int32", "int64"):
        raise TypeError(f"{NAME}: offset has dtype {spec.dtype}, expected an integer dtype")
    if spec.shape and tuple(spec.shape) != tuple(rows):
        raise ValueError(
            f"{NAME}: offset has shape {[*spec.shape]}, expected {[*rows]}, or a 0-dimensional "
            "array"
        )
