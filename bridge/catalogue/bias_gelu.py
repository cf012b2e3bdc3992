"""GELU of x + bias, and its derivative times a cotangent."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared
from bridge.lang.derivatives.modes import differentiated
from bridge.lang.functions import GELU_KINDS

CHECKS = {"approximate": checks.word(GELU_KINDS)}


def _plus(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


@declared(checks=CHECKS)
def bias_gelu(x: bl.Full, bias: bl.Row | None = None, *, approximate: str = "tanh"):
    return bl.gelu(_plus(x, bias), approximate)  # type: ignore[arg-type]


@declared(checks=CHECKS)
def bias_gelu_back(
    y: bl.Full, g: bl.Full, bias: bl.Row | None = None, *, approximate: str = "tanh"
):
    h = _plus(y, bias)
    return g * differentiated(bl.gelu(h, approximate), h)  # type: ignore[arg-type]
