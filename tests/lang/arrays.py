"""Random operands for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.lang import roles
from bridge.lang.program import Operand

SPACE = (3, 4, 7)


def draw(rng: np.random.Generator, operand: Operand, space: Sequence[int] = SPACE) -> Any:
    """Returns an operand's array; a table lacks a dimension and has another of size 1."""
    shape = {
        roles.Full: tuple(space),
        roles.Row: (space[-1],),
        roles.PerRow: tuple(space[:-1]),
        roles.PerRowOfIntegers: tuple(space[:-1]),
        roles.Table: (1, *space[2:]) if len(space) > 2 else (space[-1],),
        roles.Mask: (space[-2], 1) if len(space) > 1 else (space[-1],),
        **dict.fromkeys(roles.DOUBLE, (*space[:-1], 2 * space[-1])),
        roles.Integer: (),
    }[operand.role]
    if operand.role is roles.Integer:
        return np.int64(rng.integers(2**40))
    if operand.dtype == "int":
        return rng.integers(0, max(space[-1], 1), shape)
    if operand.dtype == "bool":
        return rng.random(shape) < 0.3
    return rng.normal(size=shape)
