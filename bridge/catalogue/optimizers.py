"""Steps of AdamW and SGD, and clipping by the global norm.

Every operation is rounded where it stands, in float32 for parameters of 16 and 32 bits and in
float64 for float64. The state has that type. One kernel a parameter computes all of them; PyTorch
writes them in place. Its learning rate and weight decay have one number a row, which costs no
memory there; in JAX they are rows, because an operand of XLA's calls has all its elements in
memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bridge import lang as bl
from bridge.catalogue.checks import finite, number
from bridge.catalogue.declaration import declared, named
from bridge.ops.arrays import Arrays

_decay = number("a number from 0 on, below 1", lambda value: 0.0 <= value < 1.0)
not_negative = number("a finite number from 0 on", lambda value: 0.0 <= value < math.inf)
ADAMW_CHECKS = {"b1": _decay, "b2": _decay, "eps": not_negative}
SGD_CHECKS = {"momentum": not_negative, "dampening": finite}

_LEAST_COLUMNS = 64  # shorter rows would spend their time on the numbers of a row
_COLUMNS, _LONG = 4096, 1 << 16
_PART = 1 << 17  # of a long sum: 2⁷ chunks of 1024 columns
_LEAST_PARTS = 16  # fewer take less time as one row than the calls for pairs


def row_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape in which an optimizer's op sees an array: elements in the same order.

    Last dimensions are joined into rows of at least 64 columns. A long vector becomes rows of a
    power of two, for several threads. The bits do not depend on it.
    """
    shape = tuple(shape) or (1,)
    if len(shape) == 1 and shape[0] >= _LONG:
        columns = math.gcd(shape[0], _COLUMNS)
        return (shape[0] // columns, columns) if columns >= _LEAST_COLUMNS else shape
    while len(shape) > 1 and shape[-1] < _LEAST_COLUMNS:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    return shape


def _like(x: Any, operand: Any) -> Any:
    return bl.like(x, operand)


# ---- AdamW ----


def _mean(m: Any, g: Any, b1: float) -> Any:
    return b1 * m + (1.0 - b1) * g


def _square(v: Any, g: Any, b2: float) -> Any:
    return b2 * v + (1.0 - b2) * (g * g)


def _correction(step: Any, b: float) -> Any:
    """1 − bᵗ, within a few units: 1 − b is exact from b = 1/2 on, and nothing cancels."""
    return -bl.expm1(step * bl.log1p(-(1.0 - b)))


def _adamw_change(
    p: Any, m: Any, v: Any, lr: Any, step: Any, weight_decay: Any, b1: float, b2: float, eps: float
) -> Any:
    corrected = m / _correction(step, b1)
    change = corrected / (bl.sqrt(v / _correction(step, b2)) + eps)
    return lr * (change if weight_decay is None else change + weight_decay * p)


def _adamw_step(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    weight_decay: Any,
    largest: Any = None,
    *,
    b1: float,
    b2: float,
    eps: float,
    returns_update: bool = False,
) -> tuple[Any, ...]:
    """Returns the new parameter or its update, then the new state."""
    mean, square = _mean(m, g, b1), _square(v, g, b2)
    state = [mean, square]
    if largest is not None:
        square = bl.maximum(largest, square)
        state.append(square)
    change = _adamw_change(p, mean, square, lr, step, weight_decay, b1, b2, eps)
    first = _like(-change, m) if returns_update else _like(p - change, p)
    return first, *[_like(each, m) for each in state]


@declared(checks=ADAMW_CHECKS)
@named("AdamW")
def adamw_in_place(
    p: bl.Full,
    g: bl.Full,
    m: bl.Full,
    v: bl.Full,
    lr: bl.PerRow,
    step: bl.Integer,
    weight_decay: bl.PerRow | None = None,
    largest: bl.Full | None = None,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    maximize: bool = False,
):
    g = -g if maximize else g
    return _adamw_step(p, g, m, v, lr, step, weight_decay, largest, b1=b1, b2=b2, eps=eps)


def _adamw_of(returns_update: bool) -> Any:
    """Declares a step of AdamW: the new parameter or its update, then the new state."""

    @declared(checks=ADAMW_CHECKS)
    def adamw(
        p: bl.Full,
        g: bl.Full,
        m: bl.Full,
        v: bl.Full,
        lr: bl.Table,
        step: bl.Integer,
        weight_decay: bl.Table | None = None,
        *,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
    ):
        numbers = lr, step, weight_decay
        static: dict[str, Any] = {"b1": b1, "b2": b2, "eps": eps}
        return _adamw_step(p, g, m, v, *numbers, returns_update=returns_update, **static)

    return adamw


adamw, adamw_update = _adamw_of(returns_update=False), _adamw_of(returns_update=True)


# ---- SGD ----


def _buffer(buffer: Any, d: Any, step: Any, momentum: float, dampening: float) -> Any:
    """The first step stores the gradient itself, whatever the dampening is, as torch does."""
    return bl.where(step <= 1, d, momentum * buffer + (1.0 - dampening) * d)


def _sgd_step(
    p: Any,
    g: Any,
    lr: Any,
    buffer: Any,
    step: Any,
    weight_decay: Any,
    *,
    momentum: float,
    dampening: float,
    nesterov: bool,
    returns_update: bool = False,
) -> Any:
    """Returns the new parameter or its update, then the new buffer if any."""
    d = direction = g if weight_decay is None else g + weight_decay * p
    if buffer is not None:
        new = _buffer(buffer, d, step, momentum, dampening)
        direction = d + momentum * new if nesterov else new
    change = lr * direction
    # An update is not rounded to the 16 bits of a parameter: p + update has one rounding.
    first = -change if returns_update else _like(p - change, p)
    return first if buffer is None else (first, _like(new, buffer))


@declared(checks=SGD_CHECKS)
@named("SGD")
def sgd_in_place(
    p: bl.Full,
    g: bl.Full,
    lr: bl.PerRow,
    buffer: bl.Full | None = None,
    step: bl.Integer | None = None,
    weight_decay: bl.PerRow | None = None,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
):
    static: dict[str, Any] = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    return _sgd_step(p, -g if maximize else g, lr, buffer, step, weight_decay, **static)


def _sgd_of(returns_update: bool) -> Any:
    """Declares a step of SGD: the new parameter or its update, then the new buffer if any."""

    @declared(checks=SGD_CHECKS)
    def sgd(
        p: bl.Full,
        g: bl.Full,
        lr: bl.Table,
        buffer: bl.Full | None = None,
        step: bl.Integer | None = None,
        weight_decay: bl.Table | None = None,
        *,
        momentum: float = 0.9,
        dampening: float = 0.0,
        nesterov: bool = False,
    ):
        static: dict[str, Any] = {
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov,
        }
        numbers = lr, buffer, step, weight_decay
        return _sgd_step(p, g, *numbers, **static, returns_update=returns_update)

    return sgd


sgd, sgd_update = _sgd_of(returns_update=False), _sgd_of(returns_update=True)


@declared()
@named("apply_updates")
def parameter_plus_update(p: bl.Full, update: bl.Full):
    return _like(p + update, p)


# ---- Clipping ----


@declared()
@named("clip_by_global_norm")
def sum_of_squares(g: bl.Full):
    return bl.sum(g * g)


@declared()
@named("clip_by_global_norm")
def pair_sums(nodes: bl.Pairs):
    first, second = nodes
    return first + second


def squares(arrays: Arrays, flat: Any) -> Any:
    """Returns `[1]`: the sum of the squares of a vector, in the tree of one row.

    A long vector is cut into parts that are subtrees of the row, for several threads. Pairs of
    their sums are then added level by level, as the tree adds them: a part without a partner moves
    up unchanged.
    """
    sums, count = arrays.entry(sum_of_squares), flat.shape[0] // _PART
    if count < _LEAST_PARTS:
        return sums.run((flat.reshape(1, -1),), None)
    pairs = arrays.entry(pair_sums)
    cut = count * _PART
    nodes = sums.run((flat[:cut].reshape(count, _PART),), None)
    if cut < flat.shape[0]:
        nodes = arrays.concatenated(nodes, sums.run((flat[cut:].reshape(1, -1),), None))
    while (count := nodes.shape[0]) > 1:
        added = pairs.run((nodes[: count // 2 * 2],), None)
        nodes = arrays.concatenated(added, nodes[-1:]) if count % 2 else added
    return nodes


@declared()
@named("clip_by_global_norm")
def norm_and_factor(sums: bl.Full, limit: bl.PerRow):
    norm = bl.sqrt(bl.sum(sums))
    # The factor is min(1, limit/norm), without the NaN of 0/0.
    return norm, bl.where(norm <= limit, 1.0, limit / norm)


@declared()
@named("clip_by_global_norm")
def clipped(g: bl.Full, factor: bl.PerRow):
    return _like(g * factor, g)
