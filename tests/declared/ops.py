"""Seven ops as a user would declare them, whose derivatives nobody wrote."""

from __future__ import annotations

import bridge
from bridge import lang as bl


@bridge.op(keep=("r",))
def rms_norm(x: bridge.Full, weight: bridge.Row, *, eps: float = 1e-6):
    r = bl.rsqrt(bl.mean(x * x) + eps)
    return x * r * weight


@bridge.op
def layer_norm(x: bridge.Full, weight: bridge.Row, bias: bridge.Row, *, eps: float = 1e-5):
    centred = x - bl.mean(x)
    r = bl.rsqrt(bl.mean(centred * centred) + eps)
    return centred * r * weight + bias


@bridge.op
def soft_capped_gate(gate: bridge.Full, up: bridge.Full, *, cap: float = 5.0):
    return cap * bl.tanh(gate / cap) * up


@bridge.op
def log_softmax(x: bridge.Full):
    return x - bl.logsumexp(x)


@bridge.op
def row_dot(x: bridge.Full, y: bridge.Full):
    return bl.sum(x * y)


@bridge.op
def weighted_squared_relu(x: bridge.Full, weight: bridge.PerRow):
    return bl.maximum(x, 0.0) ** 2 * weight


@bridge.op
def swish_gate(x: bridge.Halves, bias: bridge.Row | None = None):
    gate, up = x
    return bl.silu(gate if bias is None else gate + bias) * up
