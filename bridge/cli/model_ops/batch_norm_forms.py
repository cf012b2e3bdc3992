"""Forms of `batch_norm` in training and evaluation, and of its running statistics."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact, no_own

_EPS, _KEPT = 1e-3, 0.75


def _is_jax(x: Any) -> bool:
    return hasattr(x, "astype")


def _call(ops: Any, p: Operands) -> Any:
    given = (p.get("means"), p.get("variances"), p["weight"], p["bias"])
    options = {"training": "means" not in p, "eps": _EPS}
    if not _is_jax(p["x"]):
        return ops.batch_norm(p["x"], *given, **options)
    found = ops.batch_norm(p["x"], *given, **options, axis=1)
    return found[0] if isinstance(found, tuple) else found


def _statistics(ops: Any, p: Operands) -> Any:
    """Returns the running statistics by torch's rule, which JAX's function has as an option."""
    if _is_jax(p["x"]):
        import jax.numpy as jnp

        options = {"training": True, "momentum": _KEPT, "axis": 1, "unbiased": True}
        return jnp.stack(ops.batch_norm(p["x"], p["means"], p["variances"], **options)[1:])
    import torch

    running = p["means"].clone(), p["variances"].clone()
    ops.batch_norm(p["x"], *running, training=True, momentum=1.0 - _KEPT)
    return torch.stack(running)


class _Bounds:
    """The errors of a call, whose images are rows `[images and places, c]`."""

    def __init__(self, case: Any, p: Operands) -> None:
        self.case, self.p, self.own = case, p, Arithmetic(case.arithmetic)
        self.channels = p["x"].shape[1]
        self.x = self.rows("x")
        self.count = len(self.x.values)

    def rows(self, name: str) -> Bounded:
        return exact(np.moveaxis(self.p[name], 1, -1).reshape(-1, self.channels))

    def images(self, x: Bounded) -> Bounded:
        shape = np.moveaxis(self.p["x"], 1, -1).shape
        return x.as_view(lambda a: np.moveaxis(a.reshape(shape), -1, 1))

    def each(self, number: float) -> Bounded:
        return exact(np.full(self.channels, number))

    def mean(self, x: Bounded, count: int) -> Bounded:
        return self.own.over(self.own.column_sum(x), self.each(float(count)))

    def moments(self, count: int) -> tuple[Bounded, Bounded]:
        """Returns the mean and the variance over `count`."""
        mean = self.mean(self.x, self.count)
        centred = self.own.subtract(self.x, mean)
        return mean, self.mean(self.own.times(centred, centred), count)

    def statistics(self) -> Mapping[str, Bounded]:
        own = self.own
        batch = dict(zip(("means", "variances"), self.moments(self.count - 1), strict=True))
        found = [
            own.add(own.scaled(exact(self.p[name]), _KEPT), own.scaled(each, 1.0 - _KEPT))
            for name, each in batch.items()
        ]
        fields = ("values", "error", "unit")
        stacked = (np.stack([getattr(each, field) for each in found]) for field in fields)
        return {"forward": Bounded(*stacked)}

    def towards_cotangent(self) -> Mapping[str, Bounded]:
        """Returns d2g: a part by dx, and a part by the sums of g, each in the dtype of g."""
        own, is_given = self.own, "means" in self.p
        if is_given:
            mean, variance = exact(self.p["means"]), exact(self.p["variances"])
        else:
            mean, variance = self.moments(self.count)
        root = own.root(own.add(variance, self.each(_EPS)))
        r = own.over(self.each(1.0), root)
        h = own.times(own.subtract(self.x, mean), r)
        by_dx = own.times(self.rows("v_x"), own.times(r, exact(self.p["weight"])))
        of_bias, of_weight = exact(self.p["v_bias"]), exact(self.p["v_weight"])
        if not is_given:
            of_bias = own.subtract(of_bias, self.mean(by_dx, self.count))
            of_weight = own.subtract(of_weight, self.mean(own.times(by_dx, h), self.count))
        by_sums = own.add(of_bias, own.times(of_weight, h))
        dtype = self.case.dtype_of("g")
        return {"d2g": self.images(own.add(own.rounded(by_dx, dtype), own.rounded(by_sums, dtype)))}


def _own(p: Operands) -> Any:
    """Computes the definition with the operations of either framework."""
    x = p["x"]
    dims = (0, *range(2, x.ndim))
    ops = importlib.import_module("jax.numpy" if _is_jax(x) else "torch")

    def beside(each: Any) -> Any:
        return each.reshape(1, -1, *(1,) * (x.ndim - 2))

    if "means" in p:
        mean, variance = beside(p["means"]), beside(p["variances"])
    else:
        mean = x.mean(dims, keepdims=True)
        centred = x - mean
        variance = (centred * centred).mean(dims, keepdims=True)
    r = 1.0 / ops.sqrt(variance + _EPS)
    return (x - mean) * r * beside(p["weight"]) + beside(p["bias"])


_AFFINE = {"weight": "channels", "bias": "channels"}
_RUNNING = {"means": "means", "variances": "variances"}


def _form(name: str, roles: dict[str, str], *shapes: tuple[int, ...]) -> Entry:
    return Entry(
        name,
        {"x": "full", **roles, **_AFFINE},
        ("full",),
        _call,
        _own,
        _own,
        compared=Comparison(
            "batch_norm",
            bounds=lambda case, p: _Bounds(case, p).towards_cotangent(),
            second_order=True,
            are_rows_independent="means" in roles,
            usual=False,
            own_shapes=shapes,
        ),
    )


BATCH_NORMS = (
    _form("batch_norm", {}, (4, 3, 17, 5)),
    _form("batch_norm of given statistics", _RUNNING, (4, 3, 7, 5)),
    Entry(
        "batch_norm, running statistics",
        {"x": "full", **_RUNNING},
        ("statistics",),
        _statistics,
        no_own,
        no_own,
        compared=Comparison(
            "batch_norm",
            bounds=lambda case, p: _Bounds(case, p).statistics(),
            differentiable=False,
            are_rows_independent=False,
            own=False,
            usual=False,
            shapes=((9, 7), (4, 3, 17, 5)),
        ),
    ),
)
