"""The form of `linear_cross_entropy` whose products are bridge's, with bounds of its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact
from bridge.lang.dtypes import DTYPES

# log Σ eˣ errs by at most four units of the largest number that takes part (docs/numerics.md), and
# the softmax of logits by (2 + max − x) units of its value.
_LOG_UNITS, _SOFTMAX_UNITS = 8.0, 4.0
# Gradients in 16 bits are within 0.52 units, and within 2⁻²³ of the factor of p − 1 at the label.
_NARROW_ULP = 0.02


class _Losses:
    """Losses of hidden·weightᵀ + bias for labels, row by row."""

    def __init__(self, case: Any, p: Operands) -> None:
        self.case, self.p, self.arithmetic = case, p, Arithmetic(case.arithmetic)
        self.hidden, self.weight = exact(p["x"]), exact(p["weight"])
        rows = np.arange(len(p["labels"]))
        self.is_label = np.zeros((len(rows), len(p["weight"])), bool)
        self.is_label[rows, p["labels"]] = True
        value = self.arithmetic.product(self.hidden, self.weight.turned)
        bias = exact(np.broadcast_to(p["bias"], value.shape))
        self.logits = self.rounded(self.arithmetic.add(value, bias))
        x = self.logits.values
        self.below = x.max(-1, keepdims=True) - x
        power = np.exp(-self.below)
        self.total = power.sum(-1, keepdims=True)
        self.softmax = power / self.total

    def rounded(self, x: Bounded) -> Bounded:
        return self.arithmetic.rounded(x, self.case.x)

    def losses(self) -> Bounded:
        """Returns log Σ e^(x − label's x), whose terms are taken relative to the largest."""
        own = np.where(self.is_label, self.below, 0.0).sum(-1)
        log = np.log(self.total[..., 0])
        size = 1.0 + own + log
        error = _LOG_UNITS * self.arithmetic.u * size
        carried = self.logits.error.max(-1) + self.at_label(self.logits.error)
        return Bounded(own + log, error + carried, np.maximum(error / 4.0, carried / 8.0))

    def at_label(self, array: Array) -> Array:
        return np.where(self.is_label, array, 0.0).sum(-1)

    def probabilities(self) -> Bounded:
        """Returns softmax − 1 at the label: the bound does not shrink where 1 − p cancels."""
        p, error = self.softmax, self.logits.error
        carried = p * np.expm1(error + error.max(-1, keepdims=True))
        own = 2.0 * self.arithmetic.u * ((_SOFTMAX_UNITS + self.below) * p + self.is_label)
        return Bounded(p - self.is_label, carried + own, np.maximum(own / 4.0, carried / 8.0))

    def gradient_of_logits(self) -> Bounded:
        g = exact(np.broadcast_to(self.p["g"][:, None], self.is_label.shape))
        d = self.arithmetic.times(self.probabilities(), g)
        return self.rounded(self.with_narrow_functions(d, np.abs(d.values)))

    def with_narrow_functions(self, x: Bounded, size: Array) -> Bounded:
        """Adds the errors of functions with 16-bit accuracy, of terms up to `size`."""
        if not self.arithmetic.is_narrower(self.case.x):
            return x
        dtype = DTYPES[self.case.x]
        exponent = np.frexp(np.where(size == 0.0, 1.0, size))[1]
        ulp = np.ldexp(1.0, np.maximum(exponent - dtype.bits, dtype.least))
        return Bounded(x.values, x.error + _NARROW_ULP * ulp, x.unit)

    def second(self) -> dict[str, Bounded]:
        """Returns the gradients of Σ g·(Σ p·l − l at the label), for the tangents l along v.

        The gradient of logits is e = a − p·Σ a with a = p·g·l. Operands have a second use, in the
        first gradients: d for the label's p − 1, and v beside it.
        """
        times, product, rounded = self.arithmetic.times, self.arithmetic.product, self.rounded
        g = exact(np.broadcast_to(self.p["g"][:, None], self.is_label.shape))
        p = self.probabilities()
        p = Bounded(self.softmax, p.error, p.unit)
        a = times(p, times(g, self.tangent("v")))
        b = times(p, self.arithmetic.row_sum(a))
        e = self.with_narrow_functions(self.arithmetic.subtract(a, b), a.size + b.size)
        e, d = rounded(e), self.gradient_of_logits()
        of_x = product(e, self.weight), product(d, exact(self.p["v_weight"]))
        of_weight = product(e.turned, self.hidden), product(d.turned, exact(self.p["v_x"]))
        return {
            "d2x": self.arithmetic.add(*map(rounded, of_x)),
            "d2weight": self.arithmetic.add(*map(rounded, of_weight)),
            "d2bias": self.arithmetic.column_sum(e),
        }

    def tangent(self, kind: str) -> Bounded:
        """Returns the tangents of the logits.

        Their three terms are added in any order, so the bound has two roundings of their sizes.
        """
        product, rounded = self.arithmetic.product, self.rounded
        terms = [
            rounded(product(exact(self.p[f"{kind}_x"]), self.weight.turned)),
            rounded(product(self.hidden, exact(self.p[f"{kind}_weight"]).turned)),
            exact(np.broadcast_to(self.p[f"{kind}_bias"], self.is_label.shape)),
        ]
        values = np.sum([term.values for term in terms], 0)
        size = np.sum([term.size for term in terms], 0)
        bits = min(DTYPES[self.case.x].bits, DTYPES[self.case.arithmetic].bits)
        error = np.sum([term.error for term in terms], 0) + 2.0 * 2.0**-bits * size
        return Bounded(values, error, error / 2.0)

    def along(self, kind: str) -> Bounded:
        """Returns Σ p·l − l at the label, for the tangents l of the logits."""
        terms = self.arithmetic.times(self.probabilities(), self.tangent(kind))
        return self.arithmetic.row_sum(terms).as_view(lambda x: x[..., 0])


def loss_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    """Returns the values and bounds of the losses, their gradients and tangents."""
    own = _Losses(case, p)
    d = own.gradient_of_logits()
    return {
        "forward": own.losses(),
        "dx": own.arithmetic.product(d, own.weight),
        "dweight": own.arithmetic.product(d.turned, own.hidden),
        "dbias": own.arithmetic.column_sum(d),
        "jvp": own.along("t"),
        "d2g": own.along("v"),
        **own.second(),
    }


def portable_loss(in_torch: Callable[[Operands], Any], in_jax: Callable[[Operands], Any]) -> Entry:
    """Returns the entry, given the losses in the frameworks' own operations."""
    return Entry(
        "linear_cross_entropy portable",
        {
            "x": "left",
            "weight": "layer of logits",
            "labels": "label of rows",
            "bias": "logits bias",
        },
        ("losses",),
        lambda ops, p: ops.linear_cross_entropy(
            p["x"], p["weight"], p["labels"], bias=p["bias"], reduction="none", bits="portable"
        ),
        in_torch,
        in_jax,
        compared=Comparison(
            "losses",
            bounds=loss_bounds,
            second_order=True,
            are_rows_independent=False,
            usual=False,
            own_shapes=((300, 23, 7),),
        ),
    )
