"""User-declared ops for the tests of programs derived from declarations."""

from __future__ import annotations

from bridge import lang as bl


def rms_norm(x: bl.Full, weight: bl.Row | None = None, *, eps: float = 1e-6):
    r = bl.rsqrt(bl.mean(x * x) + eps)
    return x * r if weight is None else x * r * weight


def layer_norm(x: bl.Full, weight: bl.Row, bias: bl.Row, *, eps: float = 1e-5):
    centred = x - bl.mean(x)
    r = bl.rsqrt(bl.mean(centred * centred) + eps)
    return centred * r * weight + bias


def soft_capped_gate(gate: bl.Full, up: bl.Full, *, cap: float = 5.0):
    return cap * bl.tanh(gate / cap) * up


def log_softmax(x: bl.Full):
    return x - bl.logsumexp(x)


def row_dot(x: bl.Full, y: bl.Full):
    return bl.sum(x * y)


def weighted_squared_relu(x: bl.Full, weight: bl.PerRow):
    return bl.maximum(x, 0.0) ** 2 * weight


def swish_gate(x: bl.Halves, bias: bl.Row | None = None):
    gate, up = x
    return bl.silu(gate if bias is None else gate + bias) * up


def cross_entropy(x: bl.Full, label: bl.PerRow[int]):
    lse = bl.logsumexp(x)
    return lse - bl.sum(bl.where(bl.column() == label, x, -0.0))


def rotary(x: bl.Halves, cos: bl.Table, sin: bl.Table):
    first, second = x
    return bl.halves(first * cos - second * sin, second * cos + first * sin)


def turned_pairs(x: bl.Pairs, cos: bl.Table, sin: bl.Table):
    first, second = x
    return bl.pairs(first * cos - second * sin, second * cos + first * sin)


def masked_mean(x: bl.Full, hidden: bl.Mask, scale: bl.PerRow):
    seen = bl.where(hidden, -0.0, x)
    return bl.mean(seen) * scale, seen / (2.0 + bl.max(seen)), bl.column_sum(seen * x)


def spread(x: bl.Full, scale: bl.PerRow, bias: bl.Row):
    """Per-row numbers are added at every column and summed again."""
    mean = bl.mean(x)
    rest = bl.mean(x - mean) + bl.sum(scale + bias)
    return x * (mean + rest), bl.sum(bl.maximum(scale, x - rest) - scale)


def dropped(x: bl.Full, seed: bl.Integer, *, p: float = 0.25):
    return bl.where(bl.dropout_keep(p, seed), x * (1 / (1 - p)), 0.0)


def functions(x: bl.Full, y: bl.Full):
    """Every function of one number, and the functions of two."""
    inner = bl.minimum(bl.exp(x) + bl.exp2(-x), bl.expm1(x) + 9.0) + bl.log(2.0 + x * x)
    outer = bl.log1p(x * x) + bl.softplus(x) * bl.erf(y) + bl.sqrt(1.0 + y * y) + abs(y)
    gates = bl.gelu(x) + bl.gelu(y, "none") + bl.gelu(x, "sigmoid") + bl.silu(y) * bl.sigmoid(x)
    return bl.fma(inner, outer, gates) / (2.0 + bl.tanh(y)) + x**3 - y**-2
