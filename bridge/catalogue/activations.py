"""Activations that `replace` puts in the place of those of the frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named

# Functions of x and a slope; only the last two have a slope.
KINDS: dict[str, Callable[[Any, float], Any]] = {
    "silu": lambda x, slope: bl.silu(x),
    "sigmoid": lambda x, slope: bl.sigmoid(x),
    "tanh": lambda x, slope: bl.tanh(x),
    "mish": lambda x, slope: x * bl.tanh(bl.softplus(x)),
    "hardswish": lambda x, slope: x * (bl.maximum(bl.minimum(x + 3.0, 6.0), 0.0) / 6.0),
    "leaky_relu": lambda x, slope: bl.where(x > 0.0, x, slope * x),
    "elu": lambda x, slope: bl.where(x > 0.0, x, slope * bl.expm1(x)),
}

# The usual slopes: of leaky_relu, and the factor of elu.
SLOPES = {"leaky_relu": (0.01, 0.2), "elu": (1.0,)}


@declared(checks={"kind": checks.word(KINDS), "slope": checks.finite})
@named("activation")
def activation(x: bl.Full, *, kind: str = "silu", slope: float = 1.0):
    return KINDS[kind](x, slope)  # type: ignore[arg-type]
