"""Bias, dropout and residual in one op, linear in all three operands.

Its derivative is the op itself without the residual. The gradient of the residual is the cotangent.
"""

from __future__ import annotations

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared
from bridge.lang.philox import threshold_of


@declared(checks={"p": checks.probability})
def bias_dropout_add(
    x: bl.Full,
    bias: bl.Row | None = None,
    residual: bl.Full | None = None,
    seed: bl.Integer | None = None,
    offset: bl.Integer | None = None,
    *,
    p: float = 0.5,
):
    h = x if bias is None else x + bias
    if threshold_of(p) > 0:
        # A select, not a product: 0 times NaN is NaN.
        keep = bl.dropout_keep(p, seed, 0 if offset is None else offset)
        h = bl.where(keep, h * (1.0 / (1.0 - p) if p < 1.0 else 0.0), 0.0)
    y = h if residual is None else residual + h
    return bl.like(y, x if residual is None else residual)  # type: ignore[arg-type]
