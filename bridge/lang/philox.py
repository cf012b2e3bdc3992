"""Philox4x32-10 in NumPy: the reference for the random words of dropout.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
"""

from __future__ import annotations

from typing import Any

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def threshold_of(p: float) -> int:
    """round(p·2³²): an element is dropped if its random word is smaller."""
    return round(p * 2.0**32)


def philox4x32(counter: Any, key: tuple[int, int], rounds: int = 10) -> Any:
    """Four random words for each counter.

    Args:
      counter: uint64 array `[..., 4]` of 32-bit words, the lowest first.
      key: two 32-bit words, the low one first.

    Returns:
      A uint64 array `[..., 4]` of 32-bit words.
    """
    import numpy as np

    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(rounds):
        product0 = c0 * np.uint64(_MULTIPLIERS[0])
        product1 = c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            product1 >> shift ^ c1 ^ np.uint64(k0),
            product1 & low,
            product0 >> shift ^ c3 ^ np.uint64(k1),
            product0 & low,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def words(seed: int, offset: int, index: Any) -> Any:
    """The random word of each element.

    Args:
      seed: the 64-bit key, with or without a sign.
      offset: the high half of the counter.
      index: uint64 array of element indices; element i takes word i mod 4 of the counter i ÷ 4.

    Returns:
      A uint64 array of the shape of `index`, of values below 2³².
    """
    import numpy as np

    seed, offset = int(seed) % 2**64, int(offset) % 2**64
    index = np.asarray(index, np.uint64)
    group = index >> np.uint64(2)
    parts = [group & np.uint64(0xFFFFFFFF), group >> np.uint64(32)]
    parts += [np.full_like(group, offset & 0xFFFFFFFF), np.full_like(group, offset >> 32)]
    drawn = philox4x32(np.stack(parts, axis=-1), (seed & 0xFFFFFFFF, seed >> 32))
    return np.take_along_axis(drawn, (index & np.uint64(3)).astype(np.int64)[..., None], -1)[..., 0]
