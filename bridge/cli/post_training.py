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


def _log_one_plus_exp(x: Any) -> Any:
    """Returns the softplus, whose derivatives are finite, in either framework."""
    if hasattr(x, "log_softmax"):
        import torch

        return torch.nn.functional.softplus(x, threshold=1e9)
    import jax

    return jax.nn.softplus(x)


def _preference_loss(p: Operands) -> Any:
    away = (p["x"] - p["ref_chosen"]) - (p["rejected"] - p["ref_rejected"])
    return _log_one_plus_exp(-0.5 * away)


def _of_layer(function: Callable[[Any, Any], Any]) -> Callable[[Operands], Any]:
    """Returns function(log_probs, labels) of a linear layer's logits."""
    return lambda p: function(_log_probs(p["x"] @ p["weight"].T + p["bias"]), p["labels"])


def _sum(x: Any, y: Any) -> Any:
    return x + y


def _numbers_of_rows(log_p: Any, labels: Any) -> Any:
    entropy = -(_exp(log_p) * log_p).sum(-1)
    if hasattr(log_p, "log_softmax"):
        return log_p.gather(-1, labels.long()[..., None])[..., 0] + entropy
    import jax.numpy as jnp

    return jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0] + entropy


def _of_layers(p: Operands) -> Any:
    log_p, log_q = (_log_probs(p[x] @ p[w].T) for x, w in (("x", "weight"), ("q", "q_weight")))
    return _kl_div(log_p, log_q)


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
    Entry(
        "preference_loss",
        {"x": "full", "rejected": "full", "ref_chosen": "full", "ref_rejected": "full"},
        ("full",),
        lambda ops, p: ops.preference_loss(
            p["x"], p["rejected"], p["ref_chosen"], p["ref_rejected"], beta=0.5, reduction="none"
        ),
        _preference_loss,
        _preference_loss,
    ),
)

# Their matrix products are bridge's own, and exact here.
OF_LAYERS = (
    Entry(
        "linear_token_log_probs",
        {"x": "hidden", "weight": "projection", "labels": "label", "bias": "offset"},
        ("per row",),
        lambda ops, p: _sum(
            *ops.linear_token_log_probs(
                p["x"], p["weight"], p["labels"], bias=p["bias"], bits="portable"
            )
        ),
        _of_layer(_numbers_of_rows),
        _of_layer(_numbers_of_rows),
    ),
    Entry(
        "linear_divergence",
        {"x": "hidden", "weight": "projection", "q": "hidden", "q_weight": "projection"},
        ("per row",),
        lambda ops, p: ops.linear_divergence(
            p["x"], p["weight"], p["q"], p["q_weight"], bits="portable"
        ),
        _of_layers,
        _of_layers,
    ),
)
