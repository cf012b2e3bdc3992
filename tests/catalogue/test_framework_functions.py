"""The ops that `invariant` alone runs keep every promise of a declared op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge.catalogue import framework_functions

_rng = np.random.default_rng(0)
X = torch.tensor(_rng.normal(size=(9, 37)), dtype=torch.float32)
LABELS = torch.tensor(_rng.integers(0, 37, 9))
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "silu": ((X,), {}),
    "mean": ((X,), {}),
    "weighted_mean": ((X[:, 0].contiguous(), X[:, 1].abs().contiguous()), {}),
    "weighted_losses": ((X, X[0].abs(), LABELS), {"label_smoothing": 0.125, "ignore_index": 3}),
    "probability_losses": ((X, X.abs(), X[1].abs()), {"label_smoothing": 0.125}),
}


@pytest.mark.parametrize("name", CASES)
def test_promises(name: str) -> None:
    operands, static = CASES[name]
    op = getattr(framework_functions, name)
    assert "holds" in str(bridge.check(op, *operands, quiet=True, **static))
