"""The entropy of the softmax of a row, and divergences between the softmaxes of two rows.

A probability that is 0 in the arithmetic type adds 0, whatever its logarithm is.

Source: the Jensen-Shannon divergence with a weight, Agarwal et al., "On-Policy Distillation of
Language Models: Learning from Self-Generated Mistakes", arXiv:2306.13649.
"""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared
from bridge.catalogue.log_probs import CHECKS, scaled
from bridge.lang.reductions import beyond_largest
from bridge.ops.scalars import LARGEST_FLOAT32, LEAST_FLOAT32

# Temperatures that are 0 or infinite in float32 would make every result NaN.
TEMPERATURE = {
    "temperature": checks.number(
        f"a number from {LEAST_FLOAT32:.1e} to {LARGEST_FLOAT32:.1e}",
        lambda value: LEAST_FLOAT32 <= value <= LARGEST_FLOAT32,
    )
}
# At 0 and 1 the divergence is 0 for all rows; 2^-24 is the least with 1 - beta below 1.
BETA = {
    "beta": checks.number(
        "a number above 0 and below 1, of at least 2^-24 from both (kl_div is the limit)",
        lambda value: 2.0**-24 <= value <= 1 - 2.0**-24,
    )
}


def weighted(p: Any, value: Any) -> Any:
    """p·value; 0 where p is 0, also beside an infinite value."""
    return bl.where(p == 0.0, 0.0, p * value)


def entropy_of(log_p: Any) -> Any:
    """Returns −Σ p·log p of a row of logarithms."""
    p = bl.exp(log_p)
    plain = 0.0 - bl.sum(weighted(p, log_p))
    # An error e that all logarithms share changes the plain sum by e·(plain − 1), and the sum of p
    # by e. A long row has a logsumexp of few digits behind the point, and a large entropy.
    total = bl.sum(p)
    # No column adds nothing: a sum of 0 is no error there.
    return plain + (plain - 1.0) * bl.where(total == 0.0, 0.0, 1.0 - total)


def _entropy_vjp(logits: Any, h: Any, g: Any, *, scale: float) -> Any:
    log_p = bl.log_softmax(scaled(logits, scale))
    return scaled(weighted(bl.exp(log_p), log_p + h) * -g, scale)


@declared(keep=("largest", "rest", "h"), vjp=_entropy_vjp, checks=CHECKS)
def entropy(logits: bl.Full, *, scale: float = 1.0):
    s = scaled(logits, scale)
    largest, rest = bl.logsumexp_parts(s)
    h = entropy_of((s - largest) - beyond_largest(largest, rest))
    return h


def _kl_term(log_p: Any, log_q: Any) -> Any:
    """p·log(p/q) − p + q, at least 0; the sum of a row is the divergence, as p and q add up to 1.

    The terms of both signs do not cancel, and an error that all logarithms of a row share, the one
    of their logsumexp, changes the sum only by its square. The factor before the parenthesis is the
    larger of p and q, so nothing overflows.
    """
    # Equal ones, also two of -inf, have the difference 0.
    d = bl.where(log_p == log_q, 0.0, log_p - log_q)
    p, q = bl.exp(log_p), bl.exp(log_q)
    is_less = d < 0.0
    e = bl.expm1(bl.where(is_less, d, -d))
    below = q * (bl.where(is_less, d, 0.0) * (e + 1.0) - e)
    return bl.where(p == 0.0, q, bl.where(is_less, below, p * (d + e)))


def _kl_vjp(p_logits: Any, q_logits: Any, kl: Any, g: Any, *, temperature: float) -> Any:
    log_p = bl.log_softmax(p_logits / temperature)
    log_q = bl.log_softmax(q_logits / temperature)
    p, rate = bl.exp(log_p), g / temperature
    return weighted(p, log_p - log_q - kl) * rate, (bl.exp(log_q) - p) * rate


@declared(
    keep=("largest_p", "rest_p", "largest_q", "rest_q", "kl"), vjp=_kl_vjp, checks=TEMPERATURE
)
def kl_div(p_logits: bl.Full, q_logits: bl.Full, *, temperature: float = 1.0):
    s, t = p_logits / temperature, q_logits / temperature
    largest_p, rest_p = bl.logsumexp_parts(s)
    largest_q, rest_q = bl.logsumexp_parts(t)
    log_p = (s - largest_p) - beyond_largest(largest_p, rest_p)
    log_q = (t - largest_q) - beyond_largest(largest_q, rest_q)
    kl = bl.sum(_kl_term(log_p, log_q)) + 0.0  # turns -0.0, the sum of no column, into +0.0
    return kl


def _over_mixture(log_p: Any, log_q: Any, beta: float) -> tuple[Any, Any]:
    """Returns log(p/m) and log(q/m) for the mixture m = beta·p + (1 − beta)·q.

    No digit is lost where p and q are nearly equal, and nothing overflows where one of them is 0.
    """
    # Equal ones, also two of -inf, have the difference 0.
    d = bl.where(log_p == log_q, 0.0, log_q - log_p)
    is_more = d > 0.0  # q is the larger one, and m/q lies between beta and 1
    e = bl.expm1(bl.where(is_more, -d, d))
    above = bl.log1p(e * bl.where(is_more, beta, 1.0 - beta))
    return bl.where(is_more, -above - d, -above), bl.where(is_more, -above, d - above)


def _js_vjp(
    p_logits: Any, q_logits: Any, js: Any, g: Any, *, beta: float, temperature: float
) -> Any:
    log_p = bl.log_softmax(p_logits / temperature)
    log_q = bl.log_softmax(q_logits / temperature)
    of_p, of_q = _over_mixture(log_p, log_q, beta)
    p, q, rate = bl.exp(log_p), bl.exp(log_q), g / temperature
    of_p = of_p - bl.sum(weighted(p, of_p))
    of_q = of_q - bl.sum(weighted(q, of_q))
    return weighted(p, of_p) * (beta * rate), weighted(q, of_q) * ((1.0 - beta) * rate)


@declared(
    keep=("largest_p", "rest_p", "largest_q", "rest_q"), vjp=_js_vjp, checks=BETA | TEMPERATURE
)
def js_div(p_logits: bl.Full, q_logits: bl.Full, *, beta: float = 0.5, temperature: float = 1.0):
    s, t = p_logits / temperature, q_logits / temperature
    largest_p, rest_p = bl.logsumexp_parts(s)
    largest_q, rest_q = bl.logsumexp_parts(t)
    log_p = (s - largest_p) - beyond_largest(largest_p, rest_p)
    log_q = (t - largest_q) - beyond_largest(largest_q, rest_q)
    of_p, of_q = _over_mixture(log_p, log_q, beta)
    p, q = bl.exp(log_p), bl.exp(log_q)
    return bl.sum(beta * weighted(p, of_p) + (1.0 - beta) * weighted(q, of_q)) + 0.0


def _tv_vjp(p_logits: Any, q_logits: Any, tv: Any, g: Any, *, temperature: float) -> Any:
    p = bl.exp(bl.log_softmax(p_logits / temperature))
    q = bl.exp(bl.log_softmax(q_logits / temperature))
    d, rate = bl.stop_gradient(p - q), g / temperature
    side = bl.where(d > 0.0, 0.5, bl.where(d < 0.0, -0.5, d))  # d itself is 0 or NaN
    return p * (side - bl.sum(p * side)) * rate, q * (bl.sum(q * side) - side) * rate


@declared(keep=("largest_p", "rest_p", "largest_q", "rest_q"), vjp=_tv_vjp, checks=TEMPERATURE)
def tv_distance(p_logits: bl.Full, q_logits: bl.Full, *, temperature: float = 1.0):
    s, t = p_logits / temperature, q_logits / temperature
    largest_p, rest_p = bl.logsumexp_parts(s)
    largest_q, rest_q = bl.logsumexp_parts(t)
    p = bl.exp((s - largest_p) - beyond_largest(largest_p, rest_p))
    q = bl.exp((t - largest_q) - beyond_largest(largest_q, rest_q))
    return 0.5 * bl.sum(bl.abs(p - q)) + 0.0
