"""Log-probabilities, entropies and divergences of linear layers' logits, a few rows at a time.

The logits of other rows do not exist: `bridge.catalogue.linear_rows` has the composition. With
bits="portable" the results are those of `token_log_probs`, `entropy`, `kl_div`, `js_div` and
`tv_distance` of `linear(...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import lang as bl
from bridge.catalogue.checks import check_each, word
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.labels import at_label, is_column
from bridge.catalogue.linear_cross_entropy import Labels
from bridge.catalogue.linear_rows import BITS, LAYER, RowsOp, checked_operands, rows_at_once
from bridge.catalogue.post_training import divergences
from bridge.lang.reductions import beyond_largest
from bridge.ops.arrays import Arrays

LOG_PROBS, DIVERGENCE = "linear_token_log_probs", "linear_divergence"
LAYERS = ("p_", "q_")
KINDS = {"kl": divergences.kl_div, "js": divergences.js_div, "tv": divergences.tv_distance}


def _vjp(
    logits: Any, labels: Any, log_prob: Any, h: Any, g: Any, of_h: Any, *, temperature: float
) -> Any:
    log_p = bl.log_softmax(_over(logits, temperature))
    p = bl.exp(log_p)
    known = bl.where(is_column(labels), g, 0.0)
    of_label = bl.where(bl.column() == labels, known, 0.0) - p * known
    return (of_label - divergences.weighted(p, log_p + h) * of_h) / temperature


def _over(logits: Any, temperature: float) -> Any:
    return logits if temperature == 1 else logits / temperature


@declared(keep=("largest", "rest", "h"), vjp=_vjp, checks=divergences.TEMPERATURE)
@named(LOG_PROBS)
def numbers_of_rows(logits: bl.Full, labels: bl.PerRow[int], *, temperature: float = 1.0):
    """Returns the log-probability of the label and the entropy of each row."""
    s = _over(logits, temperature)
    largest, rest = bl.logsumexp_parts(s)
    found = (at_label(s, labels) - largest) - beyond_largest(largest, rest)
    h = divergences.entropy_of((s - largest) - beyond_largest(largest, rest))
    return bl.where(is_column(labels), found, math.nan), h


@dataclass(frozen=True)
class Temperature:
    """The options of log-probabilities and of most divergences."""

    temperature: float
    chunk: int = 0


@dataclass(frozen=True)
class BetaAndTemperature:
    """The options of `js_div`."""

    beta: float
    temperature: float
    chunk: int = 0


OPS: Mapping[str, RowsOp] = {
    LOG_PROBS: RowsOp(f"{LOG_PROBS}_rows", numbers_of_rows, Temperature, results=2),
    **{
        kind: RowsOp(
            f"linear_{kind}_rows",
            op,
            BetaAndTemperature if kind == "js" else Temperature,
            layers=LAYERS,
            has_labels=False,
        )
        for kind, op in KINDS.items()
    },
}

Compute = Callable[[str, tuple[Any, ...], Any, Any], Any]


class LinearNumbers:
    """The public functions in one framework.

    Args:
      compute: compute(word, operands, options, bits) runs `OPS[word]` on checked operands, and
        returns arrays with the leading dimensions of hidden, one or a tuple.
    """

    def __init__(self, arrays: Arrays, labels: Labels, compute: Compute) -> None:
        self._arrays, self._labels, self._compute = arrays, labels, compute

    def log_probs(
        self, layer: tuple[Any, Any, Any], labels: Any, chunk: Any, bits: Any, temperature: Any
    ) -> Any:
        """Returns the log-probabilities of labels, and the entropies.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        function, arrays = LOG_PROBS, self._arrays
        check_each(BITS, function, bits=bits)
        (temperature,) = self._numbers(function, divergences.TEMPERATURE, temperature=temperature)
        operands = checked_operands(arrays, function, (layer,), labels)
        self._labels.check_labels(function, labels, layer[0], operands[1].shape[0])
        options = Temperature(temperature, rows_at_once(arrays, function, chunk) or 0)
        *smooth, labels = operands
        readable, _ = self._labels.as_signed(labels, -100)
        return self._compute(function, (*smooth, readable), options, bits)

    def divergence(
        self,
        layers: tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]],
        chunk: Any,
        bits: Any,
        kind: Any,
        beta: Any,
        temperature: Any,
    ) -> Any:
        """Returns the divergences of rows.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        function, arrays = DIVERGENCE, self._arrays
        check_each(BITS, function, bits=bits)
        kind = word(KINDS)(function, "kind", arrays.known(function, "kind", kind))
        checks = divergences.BETA | divergences.TEMPERATURE
        beta, temperature = self._numbers(function, checks, beta=beta, temperature=temperature)
        operands = checked_operands(arrays, function, layers, prefixes=LAYERS)
        rows = rows_at_once(arrays, function, chunk) or 0
        own = (beta,) if kind == "js" else ()
        return self._compute(kind, operands, OPS[kind].options(*own, temperature, rows), bits)

    def _numbers(self, function: str, checks: Mapping[str, Any], **given: Any) -> list[float]:
        known = self._arrays.known
        return [
            check(function, name, known(function, name, given[name]))
            for name, check in checks.items()
        ]


def composed(run: Callable[..., Any], word: str, operands: tuple[Any, ...], options: Any) -> Any:
    """Returns the results of rows in any number of dimensions, by a composition of flat rows.

    Args:
      run: run(operands, options) runs the composition of `OPS[word]`.
    """
    of = OPS[word]
    shape = tuple(operands[0].shape[:-1])
    count = math.prod(shape)  # there may be 0 features
    layers = len(of.layers) * len(LAYER)
    flat = [*operands]
    for place in (*range(0, layers, len(LAYER)), *range(layers, len(operands))):
        x = operands[place]
        flat[place] = x.reshape((count, *x.shape[len(shape) :]))
    found = run(tuple(flat), options)
    if of.results == 1:
        return found.reshape(shape)
    return tuple([found[i].reshape(shape) for i in range(of.results)])
