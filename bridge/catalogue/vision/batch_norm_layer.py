"""The function `batch_norm` of both frameworks: checks, running statistics, values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.vision.batch_norm import NAME
from bridge.catalogue.vision.batch_norm_programs import dtype_of
from bridge.lang.dtypes import FLOATING, promote
from bridge.ops.arrays import Arrays

# The names of the operands in messages.
OPERANDS = ("input", "running_mean", "running_var", "weight", "bias")


@dataclass(frozen=True)
class Rule:
    """A framework's rule of the running statistics.

    new = keep·old + take·batch; the batch's variance is Σ (x − μ)² / (n − less).
    """

    keep: float
    take: float
    less: int


def check_operands(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool,
    axis: int,
) -> str:
    """Returns the dtype of the result.

    Args:
      axis: the dimension of the channels, possibly counted from the end.

    Raises:
      TypeError, ValueError: for dtypes and shapes that do not fit.
    """
    operands = (input, running_mean, running_var, weight, bias)
    named = dict(zip(OPERANDS, operands, strict=True))
    for name, array in named.items():
        if array is not None and dtype_of(array) not in FLOATING:
            raise TypeError(
                f"{NAME}: {name} has dtype {dtype_of(array)}, expected one of {', '.join(FLOATING)}"
            )
    shape = shape_of(input)
    if len(shape) < 2:
        raise ValueError(
            f"{NAME}: input has shape {list(shape)}, expected at least two dimensions, images and "
            "channels"
        )
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"{NAME}: axis is {axis}, expected {-len(shape)} to {len(shape) - 1} for an input of "
            f"{len(shape)} dimensions"
        )
    channels = shape[axis]
    for name, array in list(named.items())[1:]:
        if array is not None and shape_of(array) != (channels,):
            raise ValueError(
                f"{NAME}: {name} has shape {list(shape_of(array))}, expected [{channels}]"
            )
    if (running_mean is None) != (running_var is None):
        absent = "running_mean" if running_mean is None else "running_var"
        raise ValueError(f"{NAME}: {absent} is None, expected both running statistics or neither")
    if running_mean is None and not training:
        raise ValueError(
            f"{NAME}: running_mean is None, expected running statistics unless training"
        )
    present = [array for array in (input, weight, bias) if array is not None]
    return promote(*map(dtype_of, present))


def check_numbers(arrays: Arrays, momentum: Any, eps: Any) -> tuple[float, float]:
    """Returns both numbers.

    Raises:
      TypeError, ValueError: for numbers that are not allowed.
    """
    momentum, eps = arrays.known(NAME, "momentum", momentum), arrays.known(NAME, "eps", eps)
    return checks.finite(NAME, "momentum", momentum), checks.eps(NAME, "eps", eps)


@declared()
@named(NAME)
def updated(
    old: bl.Full, value: bl.Full, *, keep: float = 0.9, take: float = 0.1, count: float = 3.0
):
    return bl.like(keep * old + take * (value / count), old)  # type: ignore[arg-type]


def running(
    arrays: Arrays, mean: Any, variance: Any, pair: Any, rule: Rule, count: int
) -> tuple[Any, Any]:
    """Returns the new running mean and variance, in the dtypes of the old ones.

    Args:
      pair: the batch's statistics of the composition, `[2, c]`.
      count: the number of rows, at least 1.
    """
    run, rest = arrays.entry(updated).run, float(max(count - rule.less, 1))
    return (
        run((mean, pair[0]), None, rule.keep, rule.take, 1.0),
        run((variance, pair[1]), None, rule.keep, rule.take, rest),
    )


def rows_of(shape: Sequence[int], axis: int) -> int:
    """Returns the number of rows of an array: its elements, except channels."""
    place = axis % len(shape)
    return math.prod([size for dim, size in enumerate(shape) if dim != place])


def check_rows(shape: Sequence[int]) -> None:
    """Raises ValueError for one row, in torch's training."""
    if rows_of(shape, 1) == 1:
        raise ValueError(
            f"{NAME}: input has shape {list(shape)}, expected more than one row in training: "
            "torch's running variance divides by their number minus 1"
        )
