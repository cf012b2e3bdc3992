"""Columns, tokens and weights that no release may change, as digests of fixed inputs."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.frameworks import FRAMEWORKS

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)

PINNED = {
    "top_k": "b69033f59387407b",
    "seeded_sample []": "364700872fa5c9f6",
    "seeded_sample ['temperature', 'top_k', 'top_p']": "72a7c459d8041cad",
    "seeded_sample ['min_p']": "5b5109707bdd365a",
    "moe_router softmax": "6ad772e70855d7b3",
    "moe_router sigmoid": "996a110baf57ebeb",
    "moves": "bad4cd3f013fc432",
}


def inputs() -> Any:
    """Returns logits `[50, 160]`, with many equal ones, that no library draws."""
    numbers = np.arange(8000, dtype=np.int64) * 2654435761 % 2**32
    return ((numbers >> 20).astype(np.float32) / 512 - 4).reshape(50, 160)


def digest(*arrays: Any) -> str:
    text = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        text.update((array.astype(np.int64) if array.dtype.kind in "iu" else array).tobytes())
    return text.hexdigest()[:16]


def results(own: Any) -> dict[str, str]:
    ops, logits = own.ops, inputs()
    x = own.array(logits)
    found = {"top_k": digest(*map(np.asarray, ops.top_k(x, 20)))}
    for filters in ({}, {"temperature": 0.7, "top_k": 50, "top_p": 0.9}, {"min_p": 0.1}):
        tokens = ops.seeded_sample(x, 12345, 678, **filters)
        found[f"seeded_sample {[*filters]}"] = digest(np.asarray(tokens))
    for score in ("softmax", "sigmoid"):
        routed = ops.moe_router(x, 6, score=score, scale=2.5, losses=True)
        found[f"moe_router {score}"] = digest(*map(np.asarray, routed))
    weights, columns = ops.moe_router(x, 6)[:2]
    rows, places, counts = ops.moe_permute(x, columns, 160)
    combined = ops.moe_combine(rows, weights, places)
    found["moves"] = digest(*map(np.asarray, (rows, places, counts, combined)))
    return found


@each
def test_pinned(own: Any) -> None:
    assert results(own) == PINNED
