"""Checks and chunk size of linear_cross_entropy, which has the logits of few tokens at a time."""

from __future__ import annotations

from bridge.lang.dtypes import FLOATING, INTEGERS

# Below this many rows, reading the weight and adding to its gradient dominates the product.
_FEWEST = 256
_MANY, _FEWEST_OF_MANY = 4096, 512


def chunk_rows(chunk: int | None, rows: int, features: int, columns: int) -> int:
    """Returns the rows of a chunk; for None, logits take about as much memory as `hidden`."""
    if chunk is None:
        wanted = rows * features // max(columns, 1)
        fewest = _FEWEST if rows < _MANY else _FEWEST_OF_MANY
        chunk = max(1 << max(wanted - 1, 0).bit_length(), fewest)
    return min(chunk, max(rows, 1))


def check_shapes(function: str, shapes: dict[str, tuple[int, ...] | None]) -> None:
    """Raises ValueError for shapes of hidden, weight, labels and bias that do not fit."""
    hidden, weight, labels, bias = (shapes[n] for n in ("hidden", "weight", "labels", "bias"))
    assert hidden is not None
    assert weight is not None
    if len(hidden) == 0:
        raise ValueError(f"{function}: hidden is 0-dimensional, expected [..., features]")
    if len(weight) != 2 or weight[1] != hidden[-1]:
        raise ValueError(
            f"{function}: weight has shape {list(weight)}, expected [columns, {hidden[-1]}]"
        )
    for name, shape, expected in (
        ("labels", labels, hidden[:-1]),
        ("bias", bias, weight[:1]),
    ):
        if shape is not None and shape != expected:
            raise ValueError(
                f"{function}: {name} has shape {list(shape)}, expected {list(expected)}"
            )


def check_dtypes(function: str, floating: dict[str, str], labels: str) -> None:
    """Raises TypeError for dtypes that differ or are not supported."""
    first = floating["hidden"]
    if first not in FLOATING:
        raise TypeError(
            f"{function}: hidden has dtype {first}, expected one of {', '.join(FLOATING)}"
        )
    for name, dtype in floating.items():
        if dtype != first:
            raise TypeError(
                f"{function}: {name} has dtype {dtype}, expected {first}, that of hidden"
            )
    if labels not in INTEGERS:
        raise TypeError(
            f"{function}: labels has dtype {labels}, expected one of {', '.join(INTEGERS)}"
        )
