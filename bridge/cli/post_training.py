"""Entries of the ops of reinforcement learning, preference learning and distillation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.cli.entries import Entry, Operands


def _log_probs(x: Any) -> Any:
    """Returns the logarithm of the softmax, in float32 for 16-bit numbers, in either framework."""
    if hasattr(x, "log_softmax"):
        return (x.float() if x.element_size() == 2 else x).log_softmax(-1)
    import jax

    return jax.nn.log_softmax(x.astype("float32") if x.dtype.itemsize == 2 else x, axis=-1)


def _exp(x: Any) -> Any:
    if hasattr(x, "log_softmax"):
        return x.exp()
    import jax.numpy as jnp

    return jnp.exp(x)


def _entropy(p: Operands) -> Any:
    log_p = _log_probs(p["x"])
    return -(_exp(log_p) * log_p).sum(-1)


def _kl_div(log_p: Any, log_q: Any) -> Any:
    return (_exp(log_p) * (log_p - log_q)).sum(-1)


def _js_div(log_p: Any, log_q: Any) -> Any:
    if hasattr(log_p, "log_softmax"):
        mixture = (log_p.exp() + log_q.exp()).log()
    else:
        import jax.numpy as jnp

        mixture = jnp.log(jnp.exp(log_p) + jnp.exp(log_q))
    mixture = mixture - 0.6931471805599453  # log 2
    return 0.5 * (_kl_div(log_p, mixture) + _kl_div(log_q, mixture))


def _tv_distance(log_p: Any, log_q: Any) -> Any:
    difference = _exp(log_p) - _exp(log_q)
    return 0.5 * (difference * _sign(difference)).sum(-1)


def _sign(x: Any) -> Any:
    """The sign as a constant; NaN of NaN, where torch's own has 0."""
    if hasattr(x, "detach"):
        x = x.detach()
        return x.sgn() + 0.0 * x
    import jax

    return jax.lax.stop_gradient(jax.numpy.sign(x))


def _policy_loss(p: Operands) -> Any:
    ratio, advantages = _exp(p["x"] - p["old"]), p["advantages"][..., None]
    ours, clipped = ratio * advantages, ratio.clip(0.8, 1.2) * advantages
    if hasattr(ours, "log_softmax"):
        return -ours.minimum(clipped)
    import jax.numpy as jnp

    return -jnp.minimum(ours, clipped)


def _divergence(name: str, plain: Callable[[Any, Any], Any]) -> Entry:
    def run(p: Operands) -> Any:
        return plain(_log_probs(p["x"]), _log_probs(p["q"]))

    def call(ops: Any, p: Operands) -> Any:
        return getattr(ops, name)(p["x"], p["q"])

    return Entry(name, {"x": "full", "q": "full"}, ("per row",), call, run, run)


ENTRIES = (
    Entry(
        "entropy",
        {"x": "full"},
        ("per row",),
        lambda ops, p: ops.entropy(p["x"]),
        _entropy,
        _entropy,
    ),
    _divergence("kl_div", _kl_div),
    _divergence("js_div", _js_div),
    _divergence("tv_distance", _tv_distance),
    Entry(
        "policy_loss",
        {"x": "full", "old": "full", "advantages": "per row"},
        ("full",),
        lambda ops, p: ops.policy_loss(p["x"], p["old"], p["advantages"], reduction="none"),
        _policy_loss,
        _policy_loss,
    ),
)
