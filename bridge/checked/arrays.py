"""Arrays in NumPy memory, of any dtype including bfloat16, that both frameworks can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Array:
    """An array of any dtype in NumPy memory.

    Attributes:
      dtype: its name; data: a NumPy array of that dtype, for bfloat16 its bits as uint16.
    """

    dtype: str
    data: Any

    @classmethod
    def of(cls, value: Any) -> Array:
        """Converts a tensor, an array of JAX or NumPy, or a number."""
        if type(value).__module__.partition(".")[0] == "torch":
            import torch

            tensor, dtype = value.detach().cpu(), str(value.dtype).removeprefix("torch.")
            data = (tensor.view(torch.int16) if dtype == "bfloat16" else tensor).numpy()
        else:
            data = np.asarray(value)
            dtype = data.dtype.name
        return cls(dtype, data.view(np.uint16) if dtype == "bfloat16" else data)

    @classmethod
    def rounded(cls, values: Any, dtype: str) -> Array:
        """Converts values to another dtype; for bfloat16 it rounds towards zero."""
        with np.errstate(over="ignore"):
            if dtype != "bfloat16":
                return cls(dtype, np.asarray(values).astype(dtype))
            whole = np.asarray(values, np.float32)
        return cls(dtype, np.asarray(whole.view(np.uint32) >> 16, np.uint16))

    @property
    def values(self) -> Any:
        """The numbers, floating ones in float64."""
        if self.dtype == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return self.data.astype(np.float64) if self.data.dtype.kind == "f" else self.data

    def same(self, other: Array) -> bool:
        """True if dtype, shape and all bits are equal."""
        mine, others = (np.ascontiguousarray(a.data).tobytes() for a in (self, other))
        return self.dtype == other.dtype and self.data.shape == other.data.shape and mine == others


Arrays = Sequence[Array]


def of_smooth(
    function: Callable[..., Any], smooth: Sequence[int], operands: Sequence[Any]
) -> Callable[..., Any]:
    """Returns the function with only its smooth operands as parameters."""

    def run(*moved: Any) -> Any:
        whole = list(operands)
        for position, value in zip(smooth, moved, strict=True):
            whole[position] = value
        return function(*whole)

    return run
