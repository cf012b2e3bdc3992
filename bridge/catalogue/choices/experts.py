"""Mixtures of experts: the router, and the moves of tokens to their experts and back.

Each is written once over functions of arrays; `Functions` describes those that a framework adds.

Sources: Shazeer et al., arXiv:1701.06538; the loss for balance, Fedus et al., arXiv:2101.03961; the
z loss, Zoph et al., arXiv:2202.08906; sigmoid scores and the bias of the choice, DeepSeek-AI,
arXiv:2412.19437.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.arrays import Arrays
from bridge.ops.selection import check_count, check_rows, whole_number

ROUTER, PERMUTE, COMBINE = "moe_router", "moe_permute", "moe_combine"
SCORES = ("softmax", "sigmoid")
# Added to a sum of scores, as DeepSeek's models do: it changes no sum above 10⁻¹².
_LEAST_SUM = 1e-20

_CHECKS = {
    "score": checks.word(SCORES),
    "normalize": checks.flag,
    "losses": checks.flag,
    "scale": checks.finite,
}


@declared()
@named(ROUTER)
def sigmoid_scores(logits: bl.Full):
    return bl.sigmoid(logits)


@declared()
@named(ROUTER)
def shares(scores: bl.Full, *, normalize: bool = True, scale: float = 1.0):
    """Returns a row's scores, divided by their sum and times the scale."""
    weights: Any = scores
    if normalize:
        weights = scores / (bl.sum(scores) + _LEAST_SUM)
    return weights if scale == 1 else weights * scale


@declared()
@named(ROUTER)
def balance(counts: bl.Full, sums: bl.Full, *, k: int = 1):
    """Returns E·Σ f·P for the numbers of choices and the sums of probabilities of E experts."""
    fixed = bl.stop_gradient(counts)
    total = bl.maximum(bl.sum(fixed), 1.0)
    return (bl.columns() * 1.0) * bl.sum((fixed / total) * (sums * (1.0 * k) / total))


@declared()
@named(ROUTER)
def mean_square(x: bl.Full):
    return (bl.sum(x * x) + 0.0) / bl.maximum(bl.columns() * 1.0, 1.0)


class Functions(Protocol):
    """Functions of a framework that are not among `bridge.ops.arrays.Arrays`."""

    def softmax(self, x: Any) -> Any:
        """Returns the softmax of each row."""

    def logsumexp(self, x: Any) -> Any:
        """Returns a number for each row."""

    def constant(self, x: Any) -> Any:
        """Returns x without a gradient."""

    def chosen(self, x: Any, k: int) -> Any:
        """Returns the columns of the k largest numbers of each row."""

    def taken(self, x: Any, columns: Any) -> Any:
        """Returns the numbers of each row in distinct columns."""

    def column_sums(self, x: Any) -> Any:
        """Returns `[d]`, the sums of the columns of `[n, d]`, in the tree of a product."""

    def counts(self, columns: Any, experts: int) -> Any:
        """Returns `[experts]`, how often each number from 0 on occurs, as integers."""

    def sorted_by_expert(self, columns: Any, experts: int) -> tuple[Any, Any]:
        """Returns the order of `[n]` numbers by size, ties in their order, and its inverse.

        A number that is no expert comes behind all others.
        """

    def repeated(self, x: Any, k: int) -> Any:
        """Returns each row of `[n, d]` k times in sequence.

        The gradient adds the k rows in increasing order.
        """

    def moved(self, x: Any, order: Any) -> Any:
        """Returns the rows of `[n, d]` in another order; the gradient moves them back."""

    def weighted_sums(self, weights: Any, y: Any) -> Any:
        """Returns `[n, d]`, the sums of `[n, k, d]` over k with weights `[n, k]` or None.

        The sum is a chain of fused multiply-adds in increasing order.
        """


class Router:
    """`moe_router` in one framework."""

    def __init__(self, arrays: Arrays, functions: Functions) -> None:
        self._arrays, self._functions = arrays, functions
        self._sigmoid, self._shares = arrays.entry(sigmoid_scores), arrays.entry(shares)
        self._balance, self._square = arrays.entry(balance), arrays.entry(mean_square)

    def run(self, logits: Any, k: Any, bias: Any, **static: Any) -> tuple[Any, ...]:
        """Returns weights and columns, and the losses if they are asked for.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        known = self._arrays.known
        found = {
            name: check(ROUTER, name, known(ROUTER, name, static[name]))
            for name, check in _CHECKS.items()
        }
        spec = self._arrays.spec_of(logits)
        check_rows(ROUTER, "logits", spec)
        k = check_count(ROUTER, "k", known(ROUTER, "k", k, "an integer"), spec.shape[-1])
        dtype = "float64" if spec.dtype == "float64" else "float32"
        logits = self._arrays.cast(logits, dtype)
        is_softmax = found["score"] == "softmax"
        scores = (
            self._functions.softmax(logits) if is_softmax else self._sigmoid.run((logits,), None)
        )
        ranked = self._functions.constant(scores)
        if bias is not None:
            shape = shape_of(bias)
            if shape != spec.shape[-1:]:
                raise ValueError(
                    f"{ROUTER}: bias has shape {[*shape]}, expected {[*spec.shape[-1:]]}"
                )
            ranked = ranked + self._functions.constant(self._arrays.cast(bias, dtype))
        columns = self._functions.chosen(ranked, k)
        weights = self._functions.taken(scores, columns)
        if found["normalize"] or found["scale"] != 1:
            weights = self._shares.run((weights,), None, found["normalize"], found["scale"])
        if not found["losses"]:
            return weights, columns
        parts = scores if is_softmax else self._shares.run((scores,), None, True, 1.0)
        return weights, columns, *self._losses(logits, parts, columns, k)

    def _losses(self, logits: Any, parts: Any, columns: Any, k: int) -> tuple[Any, Any]:
        experts = shape_of(logits)[-1]
        sums = self._functions.column_sums(parts.reshape(-1, experts))
        counts = self._functions.counts(columns, experts)
        counts = self._arrays.cast(counts, self._arrays.dtype_of(sums))
        numbers = self._functions.logsumexp(logits).reshape(-1)
        return (
            self._balance.run((counts, sums), None, k),
            self._square.run((numbers,), None),
        )


class Moves:
    """`moe_permute` and `moe_combine` in one framework.

    Args:
      check: check(function, numbers, rows, limit, names=words) raises ValueError for a number
        outside of 0 to limit - 1, if the numbers can be read without waiting.
    """

    def __init__(self, arrays: Arrays, functions: Functions, check: Callable[..., None]) -> None:
        self._arrays, self._functions, self._check = arrays, functions, check

    def permute(self, x: Any, columns: Any, experts: Any) -> tuple[Any, Any, Any]:
        """Returns the rows by expert, their places, and the number of rows of each expert.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        spec, chosen = self._arrays.spec_of(x), self._arrays.spec_of(columns)
        check_rows(PERMUTE, "x", spec)
        experts = self._arrays.known(PERMUTE, "experts", experts, "an integer")
        experts = whole_number(PERMUTE, "experts", experts, 1, 2**31 - 1, "the number of experts")
        k = _width(PERMUTE, "columns", chosen, spec.shape[:-1])
        self._check(PERMUTE, columns, x, experts, names=("columns", "experts"))
        order, places = self._functions.sorted_by_expert(columns.reshape(-1), experts)
        rows = self._functions.repeated(x.reshape(-1, spec.shape[-1]), k)
        return (
            self._functions.moved(rows, order),
            places.reshape(chosen.shape),
            self._functions.counts(columns, experts),
        )

    def combine(self, y: Any, weights: Any, places: Any) -> Any:
        """Returns the weighted sums of each token's rows.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        spec, where = self._arrays.spec_of(y), self._arrays.spec_of(places)
        check_rows(COMBINE, "y", spec)
        if len(spec.shape) != 2:
            raise ValueError(f"{COMBINE}: y has shape {[*spec.shape]}, expected [rows, columns]")
        k = _width(COMBINE, "places", where, where.shape[:-1])
        if weights is not None and shape_of(weights) != where.shape:
            raise ValueError(
                f"{COMBINE}: weights has shape {[*shape_of(weights)]}, expected {[*where.shape]}"
            )
        self._check(COMBINE, places, y, spec.shape[0], names=("places", "rows"))
        columns = spec.shape[1]
        moved = self._functions.moved(y, places.reshape(-1)).reshape(-1, k, columns)
        if weights is not None:
            weights = weights.reshape(-1, k)
        found = self._functions.weighted_sums(weights, moved)
        return self._arrays.cast(found, spec.dtype).reshape(*where.shape[:-1], columns)


def _width(function: str, name: str, spec: Any, rows: Any) -> int:
    """Returns k of an array of integers `[..., k]`."""
    if not spec.dtype.removeprefix("u").startswith("int"):
        raise TypeError(f"{function}: {name} has dtype {spec.dtype}, expected an integer dtype")
    if not spec.shape or spec.shape[-1] == 0 or tuple(spec.shape[:-1]) != tuple(rows):
        expected = ", ".join(map(str, (*rows, "k")))
        raise ValueError(
            f"{function}: {name} has shape {[*spec.shape]}, expected [{expected}], k from 1 on"
        )
    return int(spec.shape[-1])
