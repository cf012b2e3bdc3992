"""The error of products against float64: below its bound, and beside that of XLA and torch."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.torch as bt

HALF_UNIT = 2.0**-24


def drawn(kind: str, k: int, rng: np.random.Generator) -> tuple[Any, Any]:
    a, b = rng.standard_normal((33, k)), rng.standard_normal((k, 70))
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    if kind == "outliers":
        a[:, ::97] *= 1e4
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "positive", "outliers"])
@pytest.mark.parametrize("k", [1, 64, 256, 1000, 4096, 65536])
def test_errors(k: int, kind: str, rng: np.random.Generator) -> None:
    a, b = drawn(kind, k, rng)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)

    def error(made: Any) -> Any:
        return np.abs(np.asarray(made) - exact) / (scale * HALF_UNIT)

    ours = error(bt.matmul(torch.from_numpy(a), torch.from_numpy(b)))
    assert ours.max() <= min(k, 256) + math.log2(max(k / 256, 1)) + 1
    root = float(np.sqrt((ours**2).mean()))
    of_xla, of_torch = (
        float(np.sqrt((error(made) ** 2).mean()))
        for made in (jnp.asarray(a) @ jnp.asarray(b), torch.from_numpy(a) @ torch.from_numpy(b))
    )
    assert root <= 1.1 * of_xla
    # Torch's chains may be shorter than a leaf; many leaves make up for it.
    assert root <= (1.3 if k >= 4096 else 3.0) * of_torch
