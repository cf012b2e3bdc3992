"""The ops on DTensors: the bits of the whole tensors, and only the listed communication."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.dtensor_checks"
_NAMES = ["bias_gelu", "bias_gelu exact", "dropout", "no dropout", "softmax", "masked", "causal"]
_NAMES += ["norm", "halves", "packed", "interleaved", "blocks", "table"]  # declared ops

# A mesh, and the dimension of the arrays that each of its dimensions splits.
_SPLITS: list[tuple[tuple[int, ...], tuple[int | None, ...]]] = [
    *(((2,), (dim,)) for dim in (0, 1, 2, None)),
    *(((2, 2), dims) for dims in ((0, 1), (1, 0), (0, 0), (1, 1), (None, 1), (0, 2))),
]


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("mesh", "dims"), _SPLITS)
def test_bits_of_the_whole(processes: Any, mesh: Any, dims: Any, dtype: str) -> None:
    ranks = processes(JOIN, 2 * len(mesh))
    ranks.run(f"{_CHECKS}:as_unsharded", mesh=mesh, dims=dims, dtype=dtype, names=_NAMES)


# (forward, backward) collectives for each split dimension of [batch, rows, columns].
_COLLECTIVES = {
    "bias_gelu": [(0, 1), (0, 1), (0, 0)],
    "bias_gelu exact": [(0, 0), (0, 0), (0, 0)],
    "dropout": [(0, 1), (0, 1), (0, 0)],
    "no dropout": [(0, 1), (0, 1), (0, 0)],
    "softmax": [(0, 0), (0, 0), (2, 1)],
    "masked": [(0, 0), (0, 0), (2, 1)],
    "causal": [(0, 0), (0, 0), (2, 1)],
    "norm": [(0, 1), (0, 1), (1, 1)],
    "halves": [(0, 1), (0, 1), (1, 2)],  # one exchange of packed x, and of its gradient
    "packed": [(0, 2), (0, 2), (1, 3)],  # packed x, and the gradients of x and of the whole bias
    "interleaved": [(0, 0), (0, 0), (0, 0)],
    "blocks": [(0, 0), (0, 0), (0, 0)],
    "table": [(0, 1), (0, 0), (1, 2)],  # the gradients of the mean, and of the table
}


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 4])
def test_communication(processes: Any, world_size: int) -> None:
    expected = {
        f"{name} {dim}": counts
        for name, dims in _COLLECTIVES.items()
        for dim, counts in enumerate(dims)
    }
    for found in processes(JOIN, world_size).run(f"{_CHECKS}:communication"):
        assert found == expected


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    "check",
    [
        "partial_and_uneven",
        "without_rows",
        "column_parallel",
        "drawn_seeds",
        "seeds_of_others",
        "reductions_of_losses",
        "errors",
        "compiled",
        "embedding",
        "selections",
    ],
)
def test_dtensor(processes: Any, check: str, world_size: int) -> None:
    processes(JOIN, world_size).run(f"{_CHECKS}:{check}")
