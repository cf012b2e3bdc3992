"""Random numbers that are the same on every machine and with every version of NumPy."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

Array = np.ndarray


class FrozenRandom:
    """A part of the interface of `numpy.random.Generator`, whose numbers no version changes.

    The bits of call number i are SHAKE128 (FIPS 202) of the seed and i. Integer operations, and
    IEEE operations that round in one way, make numbers of them; so they depend on no package and
    no mathematical library.
    """

    def __init__(self, seed: str) -> None:
        self._seed, self._calls = seed, 0

    def _words(self, shape: tuple[int, ...]) -> Array:
        """Returns 64-bit words."""
        self._calls += 1
        text = f"{self._seed} {self._calls}".encode()
        found = hashlib.shake_128(text).digest(8 * math.prod(shape))
        return np.frombuffer(found, "<u8").astype(np.uint64).reshape(shape)

    def random(self, shape: tuple[int, ...]) -> Array:
        """Returns multiples of 2⁻⁵³ in [0, 1)."""
        return (self._words(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        return low + (high - low) * self.random(shape)

    def integers(
        self, low: int, high: int, shape: tuple[int, ...], endpoint: bool = False
    ) -> Array:
        """Returns int64 numbers from `low` to below `high`, or to `high` with `endpoint`."""
        count = high - low + endpoint
        words = self._words(shape)
        if count < 2**64:
            words = np.asarray(words % np.uint64(count))
        # The sum wraps around; NumPy warns of that in scalars, but not in arrays.
        return np.asarray(words + np.uint64(low % 2**64)).view(np.int64)

    def choice(self, values: Any, shape: tuple[int, ...]) -> Array:
        return np.asarray(values)[self.integers(0, len(values), shape)]

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        """Returns sums of four uniform numbers, with mean 0, variance 1, and no tails beyond 3.5.

        A normal number would need a logarithm, whose last bit depends on the machine.
        """
        words = self._words((4, *shape))
        uniform = (words >> np.uint64(2)).view(np.int64) - np.int64(2**61)
        return uniform.sum(0).astype(np.float64) * (math.sqrt(3.0) * 2.0**-62)
