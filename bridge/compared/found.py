"""Results of the search: parts, and the values at which both sides meet again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.compared.recording.values import Value

SMALL = 1e-6  # of a value's scale: below it the difference is a constant held in float32


@dataclass
class Found:
    """A place where the two part, and the values that they go on with.

    Attributes:
      torch, jax: the first dead values; None where a side has none.
      torch_join, jax_join: the values that were made equal; None at the end.
      expected, got: their arrays, in one arrangement, until the cause is looked for in them.
      is_missing: JAX lacks an operation, which torch has.
      error: the difference relative to the value's scale.
      numbers: the cause that the two arrays show, None without one.
      rounded: the line that makes whole numbers of a difference below `SMALL`, and so enlarges it.
    """

    torch: Value | None
    jax: Value | None
    torch_join: Value | None = None
    jax_join: Value | None = None
    expected: np.ndarray | None = None
    got: np.ndarray | None = None
    is_missing: bool = False
    error: float = float("nan")
    numbers: Any = None
    rounded: str = ""


@dataclass
class Join:
    """Values of both sides that are the same one in two forms.

    Attributes:
      torch, jax: torch's value, and the index of JAX's.
      expected, got: their arrays, in JAX's arrangement.
      order: the order of the axes of torch's array in it.
      is_missing: JAX goes on with a value of which torch first makes another one.
      is_turned: the same numbers, with axes of one size exchanged.
      user: the wrong value that JAX computes from it.
    """

    torch: Value
    jax: int
    expected: np.ndarray
    got: np.ndarray
    order: tuple[int, ...]
    is_missing: bool
    is_turned: bool
    user: int
