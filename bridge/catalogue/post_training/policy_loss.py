"""The clipped losses of policy gradients: a number for each token, and their means.

Sources: PPO, arXiv:1707.06347; GRPO, arXiv:2402.03300; DAPO, arXiv:2503.14476; Dr. GRPO,
arXiv:2503.20783; GSPO, arXiv:2507.18071; CISPO, arXiv:2506.13585; SAPO, arXiv:2511.20347; the
estimate of the divergence from a reference, Schulman, "Approximating KL divergence" (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.cross_entropy import mean, total
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import LARGEST_FLOAT32, LEAST_FLOAT32

NAME = "policy_loss"
# The reduction of each kind in its paper.
KINDS = {
    "ppo": "token_mean",
    "grpo": "sequence_mean",
    "dapo": "token_mean",
    "dr_grpo": "length_mean",
    "gspo": "sequence_mean",
    "cispo": "token_mean",
    "sapo": "sequence_mean",
}
REDUCTIONS = ("sequence_mean", "token_mean", "length_mean", "sum", "none")

_size = checks.number(
    f"a number from 0 to {LARGEST_FLOAT32:.1e}", lambda value: 0 <= value <= LARGEST_FLOAT32
)
_temperature = checks.number(
    f"a number from {LEAST_FLOAT32:.1e} to {LARGEST_FLOAT32:.1e}",
    lambda value: LEAST_FLOAT32 <= value <= LARGEST_FLOAT32,
)

_CHECKS = {
    "kind": checks.word(KINDS),
    "level": checks.word(("token", "sequence")),
    "reduction": checks.optional(checks.word(REDUCTIONS)),
    "kl": _size,
}


def _token_losses(
    log_probs: Any,
    old: Any,
    advantages: Any,
    ref: Any,
    mask: Any,
    kind: str,
    level: str,
    numbers: tuple[float, ...],
) -> Any:
    """Returns the loss of each token; 0, without a gradient, where the mask is False."""
    low, high, first, second, kl = numbers

    def seen(x: Any) -> Any:
        return x if mask is None else bl.where(mask, x, 0.0)

    log_probs, advantages = seen(log_probs), seen(advantages)
    change = log_probs - seen(old)
    if level == "sequence":
        change = bl.sum(change) / bl.maximum(_count(mask), 1.0)
    ratio = bl.exp(change)
    clipped = bl.minimum(bl.maximum(ratio, 1.0 - low), 1.0 + high)
    if kind == "cispo":
        loss = -(bl.stop_gradient(clipped) * advantages * log_probs)
    elif kind == "sapo":
        rate = bl.where(advantages > 0.0, first, second)
        # The sigmoid of an infinite ratio has the slope 0, which the ratio's own would make NaN.
        is_infinite = ratio == math.inf
        ratio = bl.where(is_infinite, math.inf, bl.exp(bl.where(is_infinite, 0.0, change)))
        loss = -(bl.sigmoid(rate * (ratio - 1.0)) * (4.0 / rate) * advantages)
    else:
        loss = -bl.minimum(ratio * advantages, clipped * advantages)
    if kl:
        away = seen(ref) - log_probs
        loss = loss + kl * (bl.expm1(away) - away)
    return seen(loss)


def _count(mask: Any) -> Any:
    """Returns the number of tokens of a sequence that count."""
    return bl.columns() * 1.0 if mask is None else bl.sum(bl.where(mask, 1.0, 0.0))


@declared(checks={"kl": _size}, needs={"kl": "ref_log_probs"})
@named(NAME)
def token_losses(
    log_probs: bl.Full,
    old_log_probs: bl.Full,
    advantages: bl.Table,
    ref_log_probs: bl.Full | None = None,
    mask: bl.Mask | None = None,
    *,
    kind: str = "grpo",
    level: str = "token",
    low: float = 0.2,
    high: float = 0.2,
    first: float = 1.0,
    second: float = 1.05,
    kl: float = 0.0,
):
    numbers = low, high, first, second, kl
    return _token_losses(
        log_probs, old_log_probs, advantages, ref_log_probs, mask, kind, level, numbers
    )


@declared(checks={"kl": _size}, needs={"kl": "ref_log_probs"})
@named(NAME)
def sequence_losses(
    log_probs: bl.Full,
    old_log_probs: bl.Full,
    advantages: bl.Table,
    ref_log_probs: bl.Full | None = None,
    mask: bl.Mask | None = None,
    *,
    kind: str = "grpo",
    level: str = "token",
    low: float = 0.2,
    high: float = 0.2,
    first: float = 1.0,
    second: float = 1.05,
    kl: float = 0.0,
    reduction: str = "sequence_mean",
):
    """Returns a number for each sequence, and the number by which a batch divides their sum."""
    numbers = low, high, first, second, kl
    loss = bl.sum(
        _token_losses(
            log_probs, old_log_probs, advantages, ref_log_probs, mask, kind, level, numbers
        )
    )
    count = _count(mask)
    if reduction in ("sequence_mean", "length_mean"):
        by = count if reduction == "sequence_mean" else bl.columns() * 1.0
        loss, count = loss / bl.maximum(by, 1.0), 1.0
    # A result must depend on the row, which a constant does only by a condition.
    return loss, bl.where(loss == 0.0, count, count)


class PolicyLoss:
    """`policy_loss` in one framework; `flat` removes all dimensions of an array but one."""

    def __init__(self, arrays: Arrays, flat: Callable[[Any], Any]) -> None:
        self._arrays, self._flat = arrays, flat
        self._tokens, self._sequences = arrays.entry(token_losses), arrays.entry(sequence_losses)
        self._total, self._mean = arrays.entry(total, NAME), arrays.entry(mean, NAME)

    def run(
        self,
        log_probs: Any,
        old_log_probs: Any,
        advantages: Any,
        mask: Any,
        ref_log_probs: Any,
        reduction: Any,
        **options: Any,
    ) -> Any:
        """Returns the losses of tokens, or their reduction.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        static, reduction = self._static(reduction, **options)
        log_probs, old_log_probs, advantages, ref_log_probs = self._arrays.checked(
            NAME,
            3,
            log_probs=log_probs,
            old_log_probs=old_log_probs,
            advantages=advantages,
            ref_log_probs=ref_log_probs,
        )
        shape = shape_of(log_probs)
        if len(shape) == 0:
            raise ValueError(f"{NAME}: log_probs is 0-dimensional, expected [sequences, tokens]")
        if shape_of(advantages) == shape[:-1]:
            advantages = advantages[..., None]
        elif shape_of(advantages) != shape:
            raise ValueError(
                f"{NAME}: advantages has shape {[*shape_of(advantages)]}, expected "
                f"{[*shape[:-1]]} or {[*shape]}"
            )
        if mask is not None and shape_of(mask) != shape:
            raise ValueError(f"{NAME}: mask has shape {[*shape_of(mask)]}, expected {[*shape]}")
        operands = log_probs, old_log_probs, advantages, ref_log_probs, mask
        if reduction == "none":
            return self._tokens.run(operands, None, *static)
        losses, counts = self._sequences.run(operands, None, *static, reduction)
        flat = self._flat(losses), self._flat(counts)
        if reduction == "sum":
            return self._total.run(flat[:1], None)
        return self._mean.run(flat, None)

    def _static(
        self, reduction: Any, kind: Any, clip: Any, temperatures: Any, kl: Any, level: Any
    ) -> tuple[tuple[Any, ...], str]:
        """Returns the checked static arguments of a declaration, and the reduction."""
        given = {"kind": kind, "level": level, "reduction": reduction, "kl": kl}
        known = self._arrays.known
        found = {
            name: check(NAME, name, known(NAME, name, given[name]))
            for name, check in _CHECKS.items()
        }
        low, high = self._pair("clip", clip, _size)
        first, second = self._pair("temperatures", temperatures, _temperature)
        level = "sequence" if kind == "gspo" else found["level"]
        numbers = low, high, first, second, found["kl"]
        return (kind, level, *numbers), found["reduction"] or KINDS[kind]

    def _pair(self, name: str, value: Any, check: Callable[..., Any]) -> list[float]:
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ValueError(f"{NAME}: {name} is {value!r}, expected two numbers")
        return [check(NAME, name, self._arrays.known(NAME, name, each)) for each in value]
