"""Values and error bounds of attention, of its gradients and its tangent.

The steps are those of docs/ops/attention.md: scores in the arithmetic's dtype, probabilities and
the gradient of scores rounded once to q's dtype. Each is a function of `Bounded` numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.entries import Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact

# Softmax errs by (2 + |scale·x − max|) units of its value (docs/numerics.md), with a sink by more.
_SOFTMAX_UNITS = 4.0


@dataclass(frozen=True)
class Form:
    """The options of a form of attention."""

    causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None

    def options(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, False)}

    def scale_of(self, features: int) -> float:
        return 1.0 / math.sqrt(features) if self.scale is None else self.scale

    def visible(self, queries: int, keys: int, mask: Array | None) -> Array:
        """Returns True for the keys that each query sees, `[queries, keys]`."""
        seen = np.ones((queries, keys), bool) if mask is None else np.asarray(mask) == 0
        if self.causal:
            last = np.arange(queries)[:, None] + keys - queries
            seen = seen & (np.arange(keys) <= last)
            if self.window is not None:
                seen = seen & (np.arange(keys) > last - self.window)
        return seen


class _Attention:
    """One call: the queries of all heads that share a key head are rows of one matrix."""

    def __init__(self, case: Any, p: Operands, form: Form) -> None:
        self.case, self.p, self.arithmetic = case, p, Arithmetic(case.arithmetic)
        batch, heads, self.queries, features = p["x"].shape
        key_heads, keys = p["k"].shape[1:3]
        self.group = heads // key_heads
        self.lead = (batch, key_heads)
        self.softcap = form.softcap
        self.raw_scale = form.scale_of(features)
        self.scale = 1.0 if form.softcap else self.raw_scale
        seen = form.visible(self.queries, keys, p.get("mask"))
        self.seen = np.tile(seen, (self.group, 1))

    def folded(self, name: str) -> Bounded:
        """Returns q or a cotangent as `[batch, key heads, group · queries, d]`."""
        array = self.p[name]
        return exact(array.reshape(*self.lead, -1, array.shape[-1]))

    def unfolded(self, x: Bounded) -> Bounded:
        shape = (self.lead[0], self.lead[1] * self.group, self.queries, x.shape[-1])
        return x.as_view(lambda values: values.reshape(shape))

    def sinks(self, name: str = "sink") -> Array | None:
        """Returns the sink of each row, `[batch, key heads, group · queries, 1]`."""
        if name not in self.p:
            return None
        each = np.repeat(self.p[name], self.queries).reshape(1, self.lead[1], -1, 1)
        return np.broadcast_to(each, (*self.lead, *each.shape[2:]))

    def rounded(self, x: Bounded) -> Bounded:
        return self.arithmetic.rounded(x, self.case.x)

    # ---- Scores and probabilities ----

    def scores(self) -> tuple[Bounded, Bounded | None]:
        """Returns the operand of the softmax, and tanh(scale·q kᵀ / softcap) if there is a cap."""
        raw = self.arithmetic.product(self.folded("x"), exact(self.p["k"]).turned)
        if self.softcap is None:
            return raw, None
        t = self._tanh(self.arithmetic.scaled(raw, self.raw_scale / self.softcap))
        return self.arithmetic.scaled(t, self.softcap), t

    def _tanh(self, z: Bounded) -> Bounded:
        """Returns tanh, whose slope is largest where |z| is least; it errs by up to two units."""
        values = np.tanh(z.values)
        slope = 1.0 - np.tanh(np.maximum(np.abs(z.values) - z.error, 0.0)) ** 2
        error = slope * z.error + 4.0 * self.arithmetic.u * np.abs(values)
        return Bounded(values, error, error / 4.0)

    def probabilities(self, x: Bounded) -> tuple[Bounded, Bounded | None]:
        """Returns the softmax over visible keys, and the probability of the sink."""
        sinks = self.sinks()
        z = np.where(self.seen, self.scale * x.values, -np.inf)
        columns = [z] if sinks is None else [z, sinks]
        error = abs(self.scale) * np.where(self.seen, x.error, 0.0)
        errors = error if sinks is None else np.concatenate((error, 0.0 * sinks), -1)
        every = np.concatenate(columns, -1)
        largest = every.max(-1, keepdims=True, initial=-np.inf)
        below = np.where(
            np.isneginf(every), 0.0, np.where(np.isneginf(largest), 0.0, largest) - every
        )
        power = np.where(np.isneginf(every), 0.0, np.exp(-below))
        total = power.sum(-1, keepdims=True)
        p = power / np.where(total == 0.0, 1.0, total)
        # e^(z + d) / Σ e^(z + d) is within a factor of e^(|d| + max |d|).
        carried = p * np.expm1(errors + errors.max(-1, keepdims=True, initial=0.0))
        own = 2.0 * self.arithmetic.u * p
        error = carried + (_SOFTMAX_UNITS + below) * own + self.arithmetic.least * (p > 0)
        found = Bounded(p, error, own)
        keys = z.shape[-1]
        sink = None if sinks is None else found.as_view(lambda values: values[..., keys:])
        return found.as_view(lambda values: values[..., :keys]), sink

    def jacobian(self, p: Bounded, d: Bounded, sink: Bounded | None = None) -> tuple[Any, Bounded]:
        """Returns scale·p·(d − Σ d·p) and the sum; with `sink`, its term is in the sum."""
        mean = self.arithmetic.row_sum(self.arithmetic.times(p, d))
        if sink is not None:
            mean = self.arithmetic.add(mean, sink)
        apart = self.arithmetic.subtract(d, mean)
        moved = self.arithmetic.times(self.arithmetic.scaled(p, self.scale), apart)
        return moved.where(self.seen), mean

    def uncapped(self, d: Bounded, t: Bounded | None) -> Bounded:
        """Returns the derivative through softcap·tanh(scale·s / softcap) times d."""
        if t is None:
            return d
        slope = self.arithmetic.subtract(exact(np.ones(t.shape)), self.arithmetic.times(t, t))
        return self.arithmetic.times(d, self.arithmetic.scaled(slope, self.raw_scale))

    # ---- Results ----

    def quantities(self) -> dict[str, Bounded]:
        product, k, v = self.arithmetic.product, exact(self.p["k"]), exact(self.p["v"])
        x, t = self.scores()
        p, of_sink = self.probabilities(x)
        hidden = self.rounded(p)  # as the second product reads them
        g = self.folded("g")
        ds, mean = self.jacobian(p, product(g, v.turned))
        ds = self.rounded(self.uncapped(ds, t))
        found = {
            "forward": self.unfolded(product(hidden, v)),
            "dx": self.unfolded(product(ds, k)),
            "dk": product(ds.turned, self.folded("x")),
            "dv": product(hidden.turned, g),
            "jvp": self.unfolded(self.along("t", p, hidden, of_sink, t)),
            "d2g": self.unfolded(self.along("v", p, hidden, of_sink, t)),
        }
        if of_sink is not None:
            found["dsink"] = self.of_sinks(of_sink, mean)
        return found

    def of_sinks(self, of_sink: Bounded, mean: Bounded) -> Bounded:
        """Returns the gradients of the sinks: −Σ p·mean over all queries of a head."""
        rows = self.arithmetic.times(of_sink, mean)
        rows = rows.as_view(lambda x: x.reshape(self.lead[0], -1, self.queries).swapaxes(0, 1))
        heads = rows.shape[0]
        total = self.arithmetic.column_sum(rows.as_view(lambda x: x.reshape(heads, -1, 1)))
        return Bounded(-total.values[:, 0], total.error[:, 0], total.unit[:, 0])

    def along(
        self, kind: str, p: Bounded, hidden: Bounded, of_sink: Bounded | None, t: Bounded | None
    ) -> Bounded:
        """Returns the derivative of y along directions: tangents, or cotangents of gradients.

        The latter meet at the rounded gradient of the scores, the former at the rounded
        probabilities.
        """
        product, k, v = self.arithmetic.product, exact(self.p["k"]), exact(self.p["v"])
        of_scores = self.rounded if kind == "v" else lambda x: x
        of_p = self.rounded if kind == "t" else lambda x: x
        moved_q = of_scores(product(self.folded(f"{kind}_x"), k.turned))
        moved_k = of_scores(product(self.folded("x"), exact(self.p[f"{kind}_k"]).turned))
        moved = of_scores(self.arithmetic.add(moved_q, moved_k))
        moved = self.uncapped(moved.where(self.seen), t)
        beside, sinks = None, self.sinks(f"{kind}_sink")
        if of_sink is not None and sinks is not None:  # its logit is not scaled
            beside = self.arithmetic.times(of_sink, exact(sinks / self.scale))
        moved_p, _ = self.jacobian(p, moved, beside)
        first = self.rounded(product(of_p(moved_p), v))
        second = self.rounded(product(hidden, exact(self.p[f"{kind}_v"])))
        return self.arithmetic.add(first, second)


def bounds(form: Form) -> Any:
    """Returns the bounds of a form of attention, for `bridge.cli.entries.Comparison`."""

    def of_case(case: Any, p: Operands) -> Mapping[str, Bounded]:
        return _Attention(case, p, form).quantities()

    return of_case
