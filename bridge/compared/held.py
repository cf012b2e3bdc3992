"""Arrays of torch for the search: few are kept at a time, others come from another run."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.compared.axes import in_order
from bridge.compared.recording.recorder import Recording
from bridge.compared.recording.torch_run import TorchSide
from bridge.compared.recording.values import Value

LARGEST = 64  # the bytes of so many values bound the arrays that are kept
ITEM = 8  # bytes of a float64


def bytes_of(value: Value) -> int:
    """Returns the bytes of a value's array."""
    return ITEM * math.prod(value.shape)


def budget(values: Sequence[Value]) -> int:
    """Returns the bytes of the largest 64 values of a run, parameters and inputs left out."""
    computed = (bytes_of(value) for value in values if value.kind != "leaf")
    return sum(heapq.nlargest(LARGEST, computed))


class Held:
    """Arrays of a recorded run in torch.

    Args:
      side: the model.
      recording: its run.
      most: bytes that are kept at a time, or the bytes of one array if it has more.
    """

    def __init__(self, side: TorchSide, recording: Recording, most: float) -> None:
        self.side, self.recording, self.most = side, recording, most
        self._arrays: dict[int, np.ndarray] = {}

    def get(self, index: int, soon: Iterable[int] = ()) -> np.ndarray:
        """Returns the array of a value.

        Args:
          index: the value.
          soon: values that may be asked for next. The same run gives as many as there is room for.
        """
        if index not in self._arrays:
            wanted = {index: None}
            left = self.most - bytes_of(self.recording.values[index])
            for k in soon:
                if k not in wanted:
                    left -= bytes_of(self.recording.values[k])
                    if left < 0:
                        break
                    wanted[k] = None
            self._arrays = {}
            self._arrays = self.side.record(list(wanted))[0].arrays
        return self._arrays[index]


@dataclass(frozen=True)
class Substitute:
    """A value of torch in place of one of JAX; its array comes from another run when it is used.

    Attributes:
      torch: the index of torch's value.
      order: the order of its axes in JAX's arrangement.
      shape: JAX's shape.
      dtype: the dtype of whole numbers, None for float64.
      within: numbers of JAX that differ by more than this share of themselves stay as they are.
    """

    torch: int
    order: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype | None = None
    within: float | None = None

    def arranged(self, array: np.ndarray, own: Any) -> np.ndarray:
        """Returns torch's array in JAX's arrangement.

        Args:
          array: torch's array.
          own: the array of JAX.
        """
        moved = in_order(array, self.order, self.shape)
        if self.dtype is not None:
            return moved.astype(self.dtype)
        if self.within is None:
            return moved
        got = np.asarray(own, np.float64)
        with np.errstate(invalid="ignore"):
            return np.where(np.abs(moved - got) <= self.within * np.abs(got), moved, got)
