"""Losses of rows of hidden @ weight.T + bias: only a few rows of these products exist at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bridge.lang.dtypes import FLOATING
from bridge.ops.form import INTEGERS

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


def check_shapes(
    function: str,
    labels: Sequence[int] | None,
    hidden: Sequence[int],
    weight: Sequence[int],
    bias: Sequence[int] | None = None,
    prefix: str = "",
) -> None:
    """Raises ValueError for shapes that do not fit.

    Args:
      prefix: begins the names of hidden, weight and bias.
    """
    if len(hidden) == 0:
        raise ValueError(f"{function}: {prefix}hidden is 0-dimensional, expected [..., features]")
    if len(weight) != 2 or weight[1] != hidden[-1]:
        raise ValueError(
            f"{function}: {prefix}weight has shape {list(weight)}, expected [columns, {hidden[-1]}]"
        )
    for name, shape, expected in (
        ("labels", labels, hidden[:-1]),
        (f"{prefix}bias", bias, weight[:1]),
    ):
        if shape is not None and shape != expected:
            raise ValueError(
                f"{function}: {name} has shape {list(shape)}, expected {list(expected)}"
            )


def check_dtypes(function: str, floating: dict[str, str], labels: str | None) -> None:
    """Raises TypeError for dtypes that differ or are not supported; the first is that of hidden."""
    name, first = next(iter(floating.items()))
    if first not in FLOATING:
        raise TypeError(
            f"{function}: {name} has dtype {first}, expected one of {', '.join(FLOATING)}"
        )
    for each, dtype in floating.items():
        if dtype != first:
            raise TypeError(
                f"{function}: {each} has dtype {dtype}, expected {first}, that of {name}"
            )
    if labels is not None and labels not in INTEGERS:
        raise TypeError(
            f"{function}: labels has dtype {labels}, expected one of {', '.join(INTEGERS)}"
        )


class Losses(Protocol):
    """A loss of rows and its reductions, in one framework.

    Its options are a dataclass of numbers and texts, with the properties `static`, the static
    arguments of a row's loss, and `is_mean`.
    """

    def of_rows(self, operands: tuple[Any, Any], options: Any) -> tuple[Any, ...]:
        """Returns the loss of each row and, for a mean, 1 for each row that counts."""

    def reduced(self, reduction: str, *found: Any) -> Any:
        """Returns the results of `of_rows` reduced as `reduction` says."""


class Products(Protocol):
    """Matrix products in one framework; sums over rows have the dtype of sums."""

    def linear(self, hidden: Any, weight: Any, bias: Any) -> Any:
        """Returns hidden @ weight.T + bias."""

    def times(self, d: Any, weight: Any) -> Any:
        """Returns d @ weight."""

    def added(self, total: Any, d: Any, hidden: Any) -> Any:
        """Returns total + d.T @ hidden."""

    def added_rows(self, total: Any, d: Any) -> Any:
        """Returns total plus the sum of the rows of d."""


def step(
    products: Products,
    pull: Callable[[Any], tuple[Any, Any]],
    sums: tuple[Any, Any],
    operands: tuple[Any, Any, Any],
    wanted: Sequence[Any],
) -> tuple[tuple[Any, Any], Any, Any]:
    """Computes the losses of a chunk of rows and their gradients.

    Args:
      pull: pull(logits) returns the losses and the gradient of the logits.
      sums: the gradients of weight and bias of the chunks before.
      operands: hidden, weight and bias.
      wanted: three flags: compute the gradient of hidden, of weight, of bias.

    Returns:
      The sums with those of this chunk; the losses; the gradient of hidden or None.
    """
    hidden, weight, bias = operands
    found, d = pull(products.linear(hidden, weight, bias))
    of_weight, of_bias = sums
    if wanted[1]:
        of_weight = products.added(of_weight, d, hidden)
    if wanted[2]:
        of_bias = products.added_rows(of_bias, d)
    return (of_weight, of_bias), found, products.times(d, weight) if wanted[0] else None
