"""Choices of columns in NumPy: a stable sort, Philox word by word, and float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frameworks import numpy_dtype


def drawn(rng: np.random.Generator, shape: Any, dtype: str, coarse: bool = False) -> Any:
    """Draws numbers; coarse ones are often equal."""
    numbers = rng.integers(-3, 4, shape) if coarse else 2 * rng.standard_normal(shape)
    return numbers.astype(numpy_dtype(dtype))


def order(x: Any) -> Any:
    """Returns the columns of each row from the largest number to the smallest; NaN is first."""
    x = np.asarray(x).astype(np.float64)
    key = np.where(np.isnan(x), -np.inf, -x)
    # Sort by number, then bring NaN in front; both sorts are stable.
    found = np.argsort(key, -1, kind="stable")
    front = np.argsort(~np.take_along_axis(np.isnan(x), found, -1), -1, kind="stable")
    return np.take_along_axis(found, front, -1)


def philox(key: int, offset: int, group: int) -> list[int]:
    """Returns four words; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11."""
    low = (1 << 32) - 1
    c = [group & low, group >> 32, offset & low, offset >> 32]
    k0, k1 = key & low, key >> 32
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(second >> 32) ^ c[1] ^ k0, second & low, (first >> 32) ^ c[3] ^ k1, first & low]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c


def token(
    logits: Any,
    seed: int,
    offset: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> int:
    """Returns the token of one row of logits."""
    x = np.asarray(logits).astype(np.float64)
    if np.isnan(x).any() or x.max() == -np.inf:
        return -1
    kept = order(x)
    if temperature == 0:
        return int(kept[0])
    with np.errstate(invalid="ignore"):  # infinity less infinity
        below = np.where(x == x.max(), 0.0, (x - x.max()) / temperature)
    if top_k is not None:
        kept = kept[:top_k]
    if top_p is not None:
        sums = np.cumsum(np.exp(below[kept]))
        kept = kept[: int(np.searchsorted(sums, top_p * sums[-1] * (1 - 1e-12))) + 1]
    if min_p is not None:
        kept = kept[np.exp(below[kept]) >= min_p]
    mask = (1 << 64) - 1
    words = [philox(seed & mask, offset & mask, j // 4)[j % 4] for j in range(len(x))]
    noise = -np.log(-np.log((np.array(words) + 0.5) / 2.0**32))
    scores = np.full(len(x), -np.inf)
    scores[kept] = (below + noise)[kept]
    return int(np.argmax(scores))
