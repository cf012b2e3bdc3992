"""Sums of rows from exchanged parts of their columns, for any number and size of parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from bridge.lang.trees import CHUNK_COLUMNS as CHUNK
from bridge.ops.columns import _Nodes
from bridge.ops.splitting import AnySplit
from bridge.ops.sums import sum_along_rows
from bridge.torch._adapter.dispatcher import dispatch
from bridge.torch._sharded.shards import _Part


@dataclass(frozen=True)
class _Numbered(AnySplit):
    """A split as one of its parts knows it."""

    number: int

    def index(self, dim: int) -> int:
        return self.number


# Columns of a part, the number of parts, and the numbers that each sends per row.
SIZES = [
    (CHUNK, 3, 1),
    (4 * CHUNK, 5, 1),
    (3 * CHUNK, 4, 3),
    (6 * CHUNK, 2, 3),
    (CHUNK // 2, 8, 256),  # each has two terms that are first added to one
    (CHUNK // 2, 3, 257),  # the last one has a chunk of its own
    (3 * CHUNK // 2, 8, 2 + 256),
    (CHUNK // 4, 4, 256),
    (16032, 8, 17 + 992),
    (1, 1500, 1),
    (24, 4, 24),
]
SIZES += [(local, 7, 0) for local in (1, 255, 257, 341, 700, 1023, 1025, 2000)]
SIZES += [(CHUNK, parts, 1) for parts in (2, 9, 256, 500, 512, 513, 1023, 1024, 1025, 2050)]


@pytest.mark.parametrize(("local", "parts", "numbers"), SIZES)
def test_bits_and_numbers_that_are_sent(
    local: int, parts: int, numbers: int, rng: np.random.Generator
) -> None:
    columns = local * parts
    x = rng.standard_normal((3, columns)) * 2.0 ** rng.integers(-9, 9, (3, columns))
    x[0] = -0.0
    whole = torch.tensor(x, dtype=torch.float32)
    nodes = _Nodes.of(local, columns)
    views = [
        _Part(dispatch, _Numbered((3, columns), ((), ("a",)), number), 0, 0)
        for number in range(parts)
    ]

    def summed(rows: torch.Tensor) -> Any:
        call = sum_along_rows(rows, "float32", "float32")
        return dispatch(call.op, call.operands, call.params)[0]

    sent = []
    for number, view in enumerate(views):
        terms = whole[:, number * local : (number + 1) * local].contiguous()
        sent.append(nodes.sent(view, summed(terms) if nodes.is_subtree else terms))
    assert sent[0].shape[-1] <= min(local + 2, nodes.touched + CHUNK)
    assert numbers in (0, sent[0].shape[-1])
    found = nodes.added(views[-1], torch.stack(sent, -2))
    assert torch.equal(found.view(torch.int32), summed(whole).view(torch.int32))
