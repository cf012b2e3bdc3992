"""The seven ops of docs/declare.md, and others, from the declarations of `tests.lang`."""

from __future__ import annotations

import bridge
from tests.lang import declarations

rms_norm = bridge.op(keep=("r",))(declarations.rms_norm)
layer_norm = bridge.op(declarations.layer_norm)
soft_capped_gate = bridge.op(declarations.soft_capped_gate)
log_softmax = bridge.op(declarations.log_softmax)
row_dot = bridge.op(declarations.row_dot)
weighted_squared_relu = bridge.op(declarations.weighted_squared_relu)
swish_gate = bridge.op(declarations.swish_gate)
SEVEN = (
    rms_norm,
    layer_norm,
    soft_capped_gate,
    log_softmax,
    row_dot,
    weighted_squared_relu,
    swish_gate,
)
_OTHERS = ("cross_entropy", "rotary", "turned_pairs", "masked_mean", "dropped", "functions")
OTHERS = {name: bridge.op(getattr(declarations, name)) for name in _OTHERS}
