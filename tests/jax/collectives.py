"""The collectives of a compiled program."""

from __future__ import annotations

import math
import re

_BYTES = {
    "pred": 1,
    "u8": 1,
    "s8": 1,
    "bf16": 2,
    "f16": 2,
    "u16": 2,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "f64": 8,
}
_COLLECTIVE = re.compile(
    r"= (?P<results>.*?) (?P<name>all-gather|all-reduce|all-to-all|reduce-scatter|collective-\w+|"
    r"ragged-all-to-all)(-start)?\("
)


def collectives_of(text: str) -> dict[str, list[int]]:
    """Returns the bytes of the results of a program's collectives, by name."""
    found: dict[str, list[int]] = {}
    for match in _COLLECTIVE.finditer(text):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", match["results"])
        size = sum(
            _BYTES[dtype] * math.prod(int(n) for n in sizes.split(",") if n)
            for dtype, sizes in arrays
        )
        found.setdefault(match["name"], []).append(size)
    return found
